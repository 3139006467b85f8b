// Max-min fair shares as textbooks have them.
#include "simulate/fair.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace weft::simulation {
namespace {

using Use = FairLinks::Use;

uint32_t begin(FairLinks& links, std::vector<Use> uses, double bytes = 100, double now = 0) {
  return links.begin(now, bytes, uses);
}

TEST(FairLinks, TwoOnOneLinkHaveHalfEach) {
  FairLinks links({10});
  const uint32_t a = begin(links, {{0}}), b = begin(links, {{0}}, 50);
  links.share(0);
  EXPECT_DOUBLE_EQ(links.rate(a), 5);
  EXPECT_DOUBLE_EQ(links.rate(b), 5);
  // When the one has ended the other has all: 50 bytes are left of it.
  links.end(b);
  const auto& changes = links.share(10);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].flow, a);
  EXPECT_DOUBLE_EQ(changes[0].end, 15);
  EXPECT_DOUBLE_EQ(links.rate(a), 10);
}

// One goes over both links, and each link has one of its own (Bertsekas and Gallager): the narrow link is halved, and
// who is on the wide one only gets the rest.
TEST(FairLinks, ThreeOnTwoLinks) {
  FairLinks links({10, 4});
  const uint32_t both = begin(links, {{0}, {1}}), wide = begin(links, {{0}}), narrow = begin(links, {{1}});
  links.share(0);
  EXPECT_DOUBLE_EQ(links.rate(both), 2);
  EXPECT_DOUBLE_EQ(links.rate(narrow), 2);
  EXPECT_DOUBLE_EQ(links.rate(wide), 8);
}

// A flow that stands for three has three shares of the link, and the rate of one.
TEST(FairLinks, Weights) {
  FairLinks links({12, 100});
  const uint32_t three = begin(links, {{0, 3}, {1, 1}}), one = begin(links, {{0}});
  links.share(0);
  EXPECT_DOUBLE_EQ(links.rate(three), 3);
  EXPECT_DOUBLE_EQ(links.rate(one), 3);
}

// What the definition says, of any flows: no port has more than it can, and each flow passes a full port where none is
// faster than it.
TEST(FairLinks, NoneCouldBeFaster) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> capacities;
    for (int i = 0; i < 8; ++i) capacities.push_back(1 + random() % 20);
    FairLinks links(capacities);
    std::map<uint32_t, std::vector<Use>> flows;
    for (int i = 0; i < 20; ++i) {
      std::vector<Use> uses;
      for (uint32_t port = 0; port < 8; ++port) {
        if (random() % 3 == 0) uses.push_back({port, 1.0 + random() % 2});
      }
      if (!uses.empty()) flows[begin(links, uses)] = uses;
      if (i % 5 == 4) links.share(i);
      if (i % 7 == 6) {
        links.end(flows.begin()->first);
        flows.erase(flows.begin());
      }
    }
    links.share(20);
    std::vector<double> load(8), fastest(8);
    for (const auto& [flow, uses] : flows) {
      for (const Use& use : uses) {
        load[use.port] += links.rate(flow) * use.weight;
        fastest[use.port] = std::max(fastest[use.port], links.rate(flow));
      }
    }
    for (size_t port = 0; port < 8; ++port) EXPECT_LE(load[port], capacities[port] * (1 + 1e-9));
    for (const auto& [flow, uses] : flows) {
      const bool held = std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
        return load[use.port] > capacities[use.port] * (1 - 1e-9) && links.rate(flow) > fastest[use.port] * (1 - 1e-9);
      });
      EXPECT_TRUE(held);
    }
  }
}

}  // namespace
}  // namespace weft::simulation
