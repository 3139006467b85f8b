// Stable colourings that can be seen by eye.
#include "simulate/refine.hpp"

#include <gtest/gtest.h>

#include <set>

namespace weft::simulation {
namespace {

size_t colours(const std::vector<uint32_t>& found) { return std::set<uint32_t>(found.begin(), found.end()).size(); }

struct Graph {
  std::vector<uint64_t> initial;
  std::vector<uint32_t> begin{0};
  std::vector<int> peers;
  void add(std::initializer_list<int> list, uint64_t value = 0) {
    peers.insert(peers.end(), list);
    begin.push_back(static_cast<uint32_t>(peers.size()));
    initial.push_back(value);
  }
  std::vector<uint32_t> refined(const Hierarchy& tree, size_t most = SIZE_MAX) const {
    return refine(tree, initial, begin, peers, most);
  }
};

Graph ring(int ranks) {
  Graph graph;
  for (int r = 0; r < ranks; ++r) graph.add({(r + 1) % ranks, (r + ranks - 1) % ranks});
  return graph;
}

TEST(Refine, ARingIsOfOneColour) { EXPECT_EQ(colours(ring(100).refined(Hierarchy::flat(100))), 1U); }

// One rank that is not as the others sets all apart, by how far they are from it.
TEST(Refine, OneThatDiffers) {
  Graph graph = ring(100);
  graph.initial[3] = 7;
  EXPECT_EQ(colours(graph.refined(Hierarchy::flat(100))), 100U);
  EXPECT_TRUE(graph.refined(Hierarchy::flat(100), 20).empty());
  // Both neighbours look alike where they cannot be told apart.
  Graph undirected;
  for (int r = 0; r < 100; ++r) undirected.add({(r + 1) % 2 == 1 ? (r + 1) % 100 : (r + 99) % 100}, r == 10);
  EXPECT_EQ(colours(undirected.refined(Hierarchy::flat(100))), 3U);
}

// Two nodes whose ranks are alike but for one: so are their others.
TEST(Refine, GroupsOfTheSameColours) {
  const Hierarchy tree = Hierarchy::create(8, {{"node", {0, 0, 1, 1, 2, 2, 3, 3}}});
  Graph graph;
  for (int r = 0; r < 8; ++r) graph.add({}, r == 5);
  const auto found = graph.refined(tree);
  EXPECT_EQ(colours(found), 3U);
  EXPECT_EQ(found[0], found[7]);
  EXPECT_NE(found[4], found[5]);
  EXPECT_NE(found[4], found[0]);
}

}  // namespace
}  // namespace weft::simulation
