// The simulator against what can be counted by hand, and against itself.
#include "simulate/simulate.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tuner/cost_model.hpp"

namespace weft {
namespace {

ProgramPtr builtin(const std::string& collective, const std::string& name) {
  for (const ProgramPtr& program : builtin_programs()) {
    if (name_of(program->collective()) == collective && program->name() == name) return program;
  }
  ADD_FAILURE() << collective << " " << name;
  return nullptr;
}

Topology flat(int ranks) { return topology_of(TopologyKind::hosts, ranks); }

// Nodes of `each` ranks, `per_rack` nodes to a rack where there are racks.
Topology nodes(int count, int each, int per_rack = 0) {
  std::vector<Hierarchy::Level> levels{{"node", {}}};
  if (per_rack > 0) levels.push_back({"rack", {}});
  Topology topology = flat(count * each);
  for (int rank = 0; rank < topology.ranks; ++rank) {
    levels[0].group_of.push_back(rank / each);
    if (per_rack > 0) levels[1].group_of.push_back(rank / each / per_rack);
  }
  topology.hierarchy = Hierarchy::create(topology.ranks, levels);
  return topology;
}

Simulation run(const std::string& collective, const std::string& name, const Topology& topology, const Links& links,
               SimulateOptions options) {
  const ProgramPtr program = builtin(collective, name);
  auto result = simulate(*program, topology, links, options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : Simulation{};
}

constexpr Link kOnlyBytes{0, 0, 1};

// A ring moves 2 (P-1)/P of the vector through each rank's port, and its steps have a latency each.
TEST(Simulate, Ring) {
  for (const int ranks : {2, 3, 8, 17}) {
    const double p = ranks;
    const size_t bytes = 1000 * static_cast<size_t>(ranks);
    const SimulateOptions options{.bytes = bytes, .eager_bytes = 0, .combine_ns = 0};
    const Topology topology = flat(ranks);
    EXPECT_NEAR(run("allreduce", "ring", topology, {kOnlyBytes}, options).microseconds, 2 * (p - 1), 1e-6);
    EXPECT_NEAR(run("allreduce", "ring", topology, {{5, 0, 0}}, options).microseconds, 2 * (p - 1) * 5, 1e-6);
    EXPECT_NEAR(run("allreduce", "ring", topology, {{0, 0, 0}}, {.bytes = bytes, .combine_ns = 1}).microseconds, p - 1,
                1e-6);
  }
}

// Nodes of different sizes.
Topology uneven(const std::vector<int>& sizes) {
  Hierarchy::Level node{"node", {}};
  for (size_t i = 0; i < sizes.size(); ++i)
    node.group_of.insert(node.group_of.end(), static_cast<size_t>(sizes[i]), static_cast<int>(i));
  const int ranks = static_cast<int>(node.group_of.size());
  Topology topology = flat(ranks);
  topology.hierarchy = Hierarchy::create(ranks, {node});
  return topology;
}

// One rank of each class stands for all, or each for itself: the same time, whatever the program and the groups.
TEST(Simulate, ClassesAreTheSameAsAllRanks) {
  const Links three = {{1, 0.2, 0.1}, {5, 0.5, 0.5}, {40, 1, 2}};
  int merged = 0;
  for (const Topology& topology : {flat(8), flat(13), flat(24), nodes(4, 4), nodes(6, 2, 3), uneven({3, 1, 3, 1}),
                                   uneven({4, 2, 2, 4, 1}), nodes(5, 3)}) {
    const Links links(three.end() - topology.hierarchy.levels(), three.end());
    for (const ProgramPtr& program : builtin_programs()) {
      if (!program->supports(topology.hierarchy)) continue;
      for (const Sharing sharing : {Sharing::fifo, Sharing::fair}) {
        for (const size_t bytes : {size_t{64}, size_t{3} << 20}) {
          SCOPED_TRACE(fmt::format("{} {}, {} ranks, {} levels, {} bytes, {}", name_of(program->collective()),
                                   program->name(), topology.ranks, topology.hierarchy.levels(), bytes,
                                   sharing == Sharing::fair ? "fair" : "fifo"));
          SimulateOptions options{
              .bytes = bytes, .tile_bytes = 128 << 10, .window = 3, .sharing = sharing, .classes = Classes::plans};
          auto one = simulate(*program, topology, links, options);
          options.classes = Classes::none;
          auto all = simulate(*program, topology, links, options);
          ASSERT_TRUE(one.ok() && all.ok());
          EXPECT_EQ(all->simulated_ranks, topology.ranks);
          merged += one->classes < topology.ranks;
          EXPECT_NEAR(one->microseconds / all->microseconds, 1, 1e-9) << one->classes << " classes";
          for (size_t level = 0; level < all->levels.size(); ++level) {
            EXPECT_NEAR(one->levels[level].bytes, all->levels[level].bytes, 1e-9 * all->levels[level].bytes);
            EXPECT_EQ(one->levels[level].messages, all->levels[level].messages);
            EXPECT_NEAR(one->levels[level].busiest, all->levels[level].busiest, 1e-9);
          }
        }
      }
    }
  }
  EXPECT_GT(merged, 100);
}

// The same with as many ranks as are simulated one by one in a test.
TEST(Simulate, ClassesOfManyRanks) {
  const Links two = {{1, 0.2, 0.1}, {5, 0.5, 0.5}};
  struct Case {
    const char *collective, *name;
    Topology topology;
    int fifo, fair;  // classes
  };
  const Case cases[] = {{"allreduce", "ring", flat(128), 1, 1},
                        {"allreduce", "recursive_doubling", flat(1024), 1, 1},
                        {"allreduce", "recursive_doubling", flat(1000), 0, 0},
                        {"allreduce", "recursive_doubling", flat(768), 0, 0},
                        {"broadcast", "binomial", flat(1024), 1024, 1024},
                        {"allreduce", "double_tree", flat(1023), 0, 0},
                        {"allreduce", "hierarchical", nodes(64, 8), 8, 1},
                        {"allreduce", "hierarchical", nodes(32, 4, 8), 32, 1},
                        {"allreduce", "ring", nodes(16, 8), 8, 8}};
  for (const Case& test : cases) {
    for (const Sharing sharing : {Sharing::fifo, Sharing::fair}) {
      SCOPED_TRACE(fmt::format("{} {}, {} ranks", test.collective, test.name, test.topology.ranks));
      Links links = two;
      links.resize(static_cast<size_t>(test.topology.hierarchy.levels()), {40, 1, 2});
      SimulateOptions options{.bytes = 1 << 20, .sharing = sharing, .classes = Classes::plans};
      const Simulation one = run(test.collective, test.name, test.topology, links, options);
      options.classes = Classes::none;
      const Simulation all = run(test.collective, test.name, test.topology, links, options);
      EXPECT_NEAR(one.microseconds / all.microseconds, 1, 1e-9) << one.classes << " classes";
      const int expected = sharing == Sharing::fair ? test.fair : test.fifo;
      if (expected > 0) {
        EXPECT_EQ(one.classes, expected);
      }
      options.classes = Classes::sample;
      const Simulation some = run(test.collective, test.name, test.topology, links, options);
      EXPECT_NEAR(some.microseconds / all.microseconds, 1, 1e-9) << some.classes << " classes";
    }
  }
}

// A straggler and a slow node are classes of their own.
TEST(Simulate, ClassesOfWhatIsSlow) {
  const Topology topology = nodes(16, 4);
  for (const Sharing sharing : {Sharing::fifo, Sharing::fair}) {
    SimulateOptions options{.bytes = 1 << 20, .sharing = sharing, .classes = Classes::plans};
    options.slow_ranks = {{9, 20}};
    options.slow_groups = {{0, 5, 4}};
    const Links links = {{1, 0.2, 0.1}, {5, 0.5, 0.5}};
    const Simulation one = run("allreduce", "hierarchical_tree", topology, links, options);
    options.classes = Classes::none;
    const Simulation all = run("allreduce", "hierarchical_tree", topology, links, options);
    EXPECT_NEAR(one.microseconds / all.microseconds, 1, 1e-9) << one.classes << " classes";
  }
}

// One for all of a node, where what leads out of it has a queue, is in the middle of the queue.
TEST(Simulate, OneForAllIsInTheMiddle) {
  const Topology topology = nodes(4, 256);
  const Links links = {{1, 0.2, 0.1}, {5, 0.5, 0.05}};
  SimulateOptions options{.bytes = 64 << 20};
  const Simulation one = run("allreduce", "hierarchical", topology, links, options);
  EXPECT_EQ(one.classes, 1);
  EXPECT_TRUE(one.sampled);
  options.classes = Classes::none;
  EXPECT_NEAR(one.microseconds / run("allreduce", "hierarchical", topology, links, options).microseconds, 1, 0.35);
}

// Tiles of a chain follow each other.
TEST(Simulate, TilesOfAChain) {
  const SimulateOptions options{.bytes = 100000, .tile_bytes = 1000, .window = 8, .eager_bytes = 0, .combine_ns = 0};
  EXPECT_NEAR(run("broadcast", "chain", flat(9), {kOnlyBytes}, options).microseconds, 100 + 7, 1e-6);
}

// Ranks of a node share what leads out of it.
TEST(Simulate, NodesShareTheirLink) {
  const Topology topology = nodes(2, 4);
  const Links links = {{0, 0, 0}, kOnlyBytes};
  const SimulateOptions options{.bytes = 8000, .eager_bytes = 0, .combine_ns = 0};
  // Out of each node: 2 (N-1)/N of the vector.
  EXPECT_NEAR(run("allreduce", "hierarchical", topology, links, options).microseconds, 8, 0.6);
  const Simulation all_to_all = run("alltoall", "flat", topology, links, options);
  EXPECT_NEAR(all_to_all.microseconds, 16, 1e-6);  // four ranks send four blocks of 1000 bytes each
  EXPECT_NEAR(all_to_all.levels[1].busiest, 1, 1e-9);
  EXPECT_EQ(all_to_all.levels[1].messages, 32U);
}

// Ranks that send at once have the same share of what leads out of their node, and end at once; one after the other,
// they end one after the other.
TEST(Simulate, FairSharesOfALink) {
  const Topology topology = nodes(2, 4);
  const Links links = {{0, 0, 0}, kOnlyBytes};
  SimulateOptions options{.bytes = 8000, .eager_bytes = 0, .combine_ns = 0, .sharing = Sharing::fair};
  EXPECT_NEAR(run("alltoall", "flat", topology, links, options).microseconds, 16, 1e-6);
  // 2 (N-1)/N of the vector out of each node.
  EXPECT_NEAR(run("allreduce", "hierarchical", topology, links, options).microseconds, 8, 1e-6);
  // Tiles of a wire go one after the other, so that a chain is a chain.
  const SimulateOptions chain{
      .bytes = 100000, .tile_bytes = 1000, .eager_bytes = 0, .combine_ns = 0, .sharing = Sharing::fair};
  EXPECT_NEAR(run("broadcast", "chain", flat(9), {kOnlyBytes}, chain).microseconds, 100 + 7, 1e-6);
}

TEST(Simulate, StragglersAndSlowLinks) {
  const Topology topology = nodes(4, 2);
  const Links links = {{1, 0.1, 0.1}, {5, 0.1, 1}};
  const SimulateOptions even{.bytes = 1 << 20};
  SimulateOptions slow_rank = even, slow_node = even;
  slow_rank.slow_ranks = {{3, 50}};
  slow_node.slow_groups = {{0, 1, 10}};
  const double before = run("allreduce", "hierarchical", topology, links, even).microseconds;
  EXPECT_GT(run("allreduce", "hierarchical", topology, links, slow_rank).microseconds, before * 1.5);
  const double slow = run("allreduce", "hierarchical", topology, links, slow_node).microseconds;
  EXPECT_GT(slow, before * 4);
  EXPECT_LT(slow, before * 11);
}

// It begins at the beginning, ends at the end, and nothing on it overlaps what it waited for by more than a message.
TEST(Simulate, CriticalPath) {
  const Topology topology = nodes(3, 2);
  for (const char* name : {"ring", "hierarchical", "hierarchical_tree", "flat"}) {
    const Simulation result =
        run("allreduce", name, topology, {{1, 0.2, 0.1}, {5, 0.5, 1}}, {.bytes = 4 << 20, .record = true});
    ASSERT_FALSE(result.critical_path.empty()) << name;
    EXPECT_NEAR(result.spans[result.critical_path.back()].end, result.microseconds, 1e-9);
    EXPECT_LT(result.spans[result.critical_path.front()].begin, result.microseconds / 10) << name;
    for (size_t i = 1; i < result.critical_path.size(); ++i) {
      EXPECT_LE(result.spans[result.critical_path[i - 1]].end, result.spans[result.critical_path[i]].end);
    }
  }
}

// Every program of every shape comes to its end.
TEST(Simulate, EveryProgramEnds) {
  for (const ProgramPtr& program : builtin_programs()) {
    for (const Topology& topology : {flat(1), flat(2), flat(7), flat(16), nodes(2, 3), nodes(4, 2, 2)}) {
      if (!program->supports(topology.hierarchy)) continue;
      const Links links(static_cast<size_t>(topology.hierarchy.levels()), Link{1, 0.1, 0.01});
      for (const size_t bytes : {size_t{0}, size_t{100}, size_t{3} << 20}) {
        auto result = simulate(*program, topology, links,
                               {.bytes = bytes, .tile_bytes = 65536, .window = 3, .root = topology.ranks / 2});
        ASSERT_TRUE(result.ok()) << result.status().message();
      }
    }
  }
}

// What no machine here could run.
TEST(Simulate, AtScale) {
  EXPECT_EQ(run("allreduce", "ring", flat(4096), {{1, 0.1, 0.1}}, {.bytes = 64 << 20}).simulated_ranks, 1);
  EXPECT_GT(run("broadcast", "binomial", flat(4096), {{1, 0.1, 0.1}}, {.bytes = 64 << 20}).microseconds, 6400);
  const Simulation odd = run("allreduce", "recursive_doubling", flat(5000), {{1, 0, 0}}, {.bytes = 8, .combine_ns = 0});
  EXPECT_LT(odd.simulated_ranks, 5000);
  // Twelve exchanges. Who waits for its neighbour before the first gives its result away while others still exchange.
  EXPECT_NEAR(odd.microseconds, 13, 1e-6);
  // An even hierarchy is what one rank of it does.
  const Simulation many =
      run("allreduce", "hierarchical", nodes(4096, 8, 64), {{1, 0.1, 0.1}, {5, 0.1, 0.1}, {9, 0, 0.1}},
          {.bytes = 64 << 20, .sharing = Sharing::fair});
  EXPECT_EQ(many.classes, 1);
  const auto refused = simulate(*builtin("alltoall", "flat"), nodes(600, 7), {{1, 1, 1}, {1, 1, 1}},
                                {.bytes = 1 << 30, .tile_bytes = 1, .window = 64, .record = true});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("legal: up to"), std::string::npos) << refused.status().message();
}

}  // namespace
}  // namespace weft
