// Which entry of a port's GID table to use.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace weft::verbs {

enum class GidType : uint8_t { infiniband, roce_v1, roce_v2 };

using RawGid = std::array<uint8_t, 16>;  // network byte order

struct Gid {
  int index = -1;
  RawGid raw{};
  GidType type = GidType::roce_v2;
};

bool is_empty(const RawGid& gid);
bool is_link_local(const RawGid& gid);
bool is_ipv4_mapped(const RawGid& gid);
std::string to_text(const RawGid& gid);

// Index of the best entry for an Ethernet port, or -1. RoCE v2 before v1; an IPv4-mapped address before a global IPv6
// one; empty and link-local ones never. `family` (inet, inet6 or any) leaves out the other kind. Both ends may well
// come to different indices. Of equals the first: what stands further down belongs to other networks, or containers.
int choose_gid(std::span<const Gid> table, const std::string& family);

}  // namespace weft::verbs
