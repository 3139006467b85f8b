// Which GID a port uses, on tables as they are seen in the field.
#include "transports/verbs/gid.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <vector>

namespace weft::verbs {
namespace {

Gid gid(int index, const char* text, GidType type) {
  Gid result{.index = index, .type = type};
  EXPECT_EQ(::inet_pton(AF_INET6, text, result.raw.data()), 1) << text;
  return result;
}

// B22: the table of a usual RoCE port.
TEST(Gids, MappedV2First) {
  const std::vector<Gid> table = {
      gid(0, "fe80::1", GidType::roce_v1),
      gid(1, "fe80::1", GidType::roce_v2),
      gid(2, "::ffff:10.0.0.7", GidType::roce_v1),
      gid(3, "::ffff:10.0.0.7", GidType::roce_v2),
  };
  EXPECT_EQ(choose_gid(table, "any"), 3);
  EXPECT_EQ(choose_gid(table, "inet"), 3);
  EXPECT_EQ(choose_gid(table, "inet6"), -1);
}

// The same with holes, and shifted: the index is the entry's own, not its place in the list.
TEST(Gids, HolesAndShifts) {
  const std::vector<Gid> holes = {
      gid(0, "fe80::1", GidType::roce_v1),
      gid(1, "::", GidType::roce_v2),
      gid(2, "::", GidType::roce_v1),
      gid(3, "::", GidType::roce_v2),
      gid(6, "::ffff:10.0.0.7", GidType::roce_v1),
      gid(7, "::ffff:10.0.0.7", GidType::roce_v2),
  };
  EXPECT_EQ(choose_gid(holes, "any"), 7);
  const std::vector<Gid> shifted = {
      gid(4, "::ffff:10.0.0.7", GidType::roce_v2),
      gid(5, "fe80::1", GidType::roce_v2),
  };
  EXPECT_EQ(choose_gid(shifted, "any"), 4);
}

TEST(Gids, WhatThereIs) {
  EXPECT_EQ(choose_gid({}, "any"), -1);
  const std::vector<Gid> local = {gid(0, "fe80::1", GidType::roce_v2), gid(1, "::", GidType::roce_v2)};
  EXPECT_EQ(choose_gid(local, "any"), -1);
  const std::vector<Gid> six = {gid(0, "fe80::1", GidType::roce_v2), gid(1, "2001:db8::1", GidType::roce_v1),
                                gid(2, "2001:db8::1", GidType::roce_v2)};
  EXPECT_EQ(choose_gid(six, "any"), 2);
  EXPECT_EQ(choose_gid(six, "inet6"), 2);
  EXPECT_EQ(choose_gid(six, "inet"), -1);
  // Version 2 can be routed, version 1 of an IPv4 address cannot.
  const std::vector<Gid> mixed = {gid(0, "::ffff:10.0.0.7", GidType::roce_v1), gid(1, "2001:db8::1", GidType::roce_v2)};
  EXPECT_EQ(choose_gid(mixed, "any"), 1);
  // Of two addresses the first: a container's comes behind the host's.
  const std::vector<Gid> two = {gid(2, "::ffff:10.0.0.7", GidType::roce_v2),
                                gid(9, "::ffff:172.17.0.1", GidType::roce_v2)};
  EXPECT_EQ(choose_gid(two, "any"), 2);
}

TEST(Gids, Text) {
  EXPECT_EQ(to_text(gid(0, "::ffff:192.168.70.1", GidType::roce_v2).raw), "::ffff:192.168.70.1");
  EXPECT_TRUE(is_ipv4_mapped(gid(0, "::ffff:1.2.3.4", GidType::roce_v2).raw));
  EXPECT_FALSE(is_ipv4_mapped(gid(0, "2001::ffff:1.2.3.4", GidType::roce_v2).raw));
  EXPECT_TRUE(is_link_local(gid(0, "febf::1", GidType::roce_v2).raw));
  EXPECT_FALSE(is_link_local(gid(0, "fec0::1", GidType::roce_v2).raw));
}

}  // namespace
}  // namespace weft::verbs
