#include "topology/topology_file.hpp"

#include <gtest/gtest.h>

#include <random>

#include "mutations.hpp"
#include "tuner/cost_model.hpp"

namespace weft {
namespace {

constexpr const char* kWhole = R"({"weft_topology": 1, "ranks": 6,
  "levels": [{"name": "node", "groups": [0, 0, 1, 1, 4, 4], "latency_us": 0.5, "bandwidth_GBs": 8},
             {"name": "rack", "size": 4},
             {"name": "world", "latency_us": 12, "message_us": 0.25, "bandwidth_GBs": 2.5}],
  "hosts": {"node7": {"rack": "r1", "site": "east"}, "node8": {}}})";

TEST(TopologyFile, Reads) {
  auto file = parse_topology(kWhole, "test.json");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->hosts.at("node7").site, "east");
  EXPECT_EQ(file->hosts.at("node8").rack, "");
  const Topology topology = topology_of(*file);
  EXPECT_EQ(topology.ranks, 6);
  EXPECT_EQ(topology.nodes, 3);
  EXPECT_EQ(topology.node, (std::vector<int>{0, 0, 2, 2, 4, 4}));
  ASSERT_EQ(topology.hierarchy.levels(), 3);
  EXPECT_EQ(topology.hierarchy.span(1), 2);
  EXPECT_DOUBLE_EQ(topology.links.at("world").byte_ns, 0.4);
  EXPECT_FALSE(topology.links.contains("rack"));
}

TEST(TopologyFile, WhatIsWrittenIsReadBack) {
  const Topology topology = topology_of(*parse_topology(kWhole, "test.json"));
  auto again = parse_topology(to_json(topology), "again.json");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(to_json(topology_of(*again)), to_json(topology));
}

TEST(TopologyFile, Rings) {
  auto file = parse_topology(R"({"weft_topology": 1, "ranks": 4, "ring": [2, 0, 3, 1],
    "levels": [{"name": "node", "groups": [0, 0, 1, 1]}, {"name": "world"}]})",
                             "test.json");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Topology topology = topology_of(*file);
  EXPECT_EQ(topology.hierarchy.ring(), (std::vector<int>{2, 3, 0, 1}));
  auto again = parse_topology(to_json(topology), "again.json");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->ring, topology.hierarchy.ring());
}

TEST(TopologyFile, AnEmptyPathSaysNothing) {
  auto file = read_topology("");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->ranks, 0);
  EXPECT_EQ(read_topology("/no/such/file").status().message(), "/no/such/file: No such file or directory");
}

TEST(TopologyFile, SaysWhatIsWrong) {
  const auto expect = [](const std::string& text, const std::string& reason) {
    auto file = parse_topology(text, "test.json");
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_EQ(file.status().code(), weftInvalidArgument);
    EXPECT_NE(file.status().message().find(reason), std::string::npos) << file.status().message();
  };
  expect("{", "test.json: not JSON");
  expect("\n<system/>", "test.json: XML, which tells of one machine");
  expect("[]", "the topology is []; legal: an object");
  expect("{}", "weft_topology is null; legal: 1");
  const std::string begin = R"({"weft_topology": 1, "ranks": 4, )";
  expect(R"({"weft_topology": 1, "ranks": 0})", "ranks is 0; legal: 1 to 1048576");
  expect(R"({"weft_topology": 1, "ranks": 18446744073709551615})", "legal: 1 to 1048576");
  expect(begin + R"("rank": 1})", "has 'rank'; legal: weft_topology, ranks, levels, ring, hosts");
  expect(begin + R"("levels": {}})", "levels is {}; legal: a list of up to 8");
  expect(begin + R"("levels": [{"size": 2}, {"name": "world"}]})", "levels[0].name is null");
  expect(begin + R"("levels": [{"name": "node", "groups": [0, 1]}, {"name": "world"}]})", "a list of 4 numbers");
  expect(begin + R"("levels": [{"name": "node", "groups": [0, 1, -1, 2]}, {"name": "world"}]})", "is -1; legal");
  expect(begin + R"("levels": [{"name": "node"}, {"name": "world"}]})", "either groups or size");
  expect(begin + R"("levels": [{"name": "a", "size": 2}, {"name": "a"}]})", "names that differ");
  expect(begin + R"("levels": [{"name": "world", "latency_us": -1, "bandwidth_GBs": 1}]})", "latency_us is -1");
  expect(begin + R"("levels": [{"name": "world", "latency_us": 1}]})", "latency_us and bandwidth_GBs together");
  expect(begin + R"("levels": [{"name": "world", "latency_us": 1, "bandwidth_GBs": 0}]})", "bandwidth_GBs is 0");
  expect(R"({"weft_topology": 1, "levels": [{"name": "a", "size": 2}, {"name": "b"}]})", "ranks is null");
  expect(begin + R"("ring": [0, 1, 2]})", "ring is [0,1,2]; legal: a list of the ranks 0 to 3, each of them once");
  expect(begin + R"("ring": [0, 1, 2, 2]})", "ring is 2; legal");
  expect(begin + R"("ring": [0, 1, 2, 4]})", "ring is 4; legal");
  expect(R"({"weft_topology": 1, "ring": [0]})", "ranks is null");
  expect(R"({"weft_topology": 1, "hosts": {"a": {"rak": "1"}}})", "hosts.a has 'rak'; legal: rack, site");
  expect(R"({"weft_topology": 1, "hosts": {"a": {"rack": 1}}})", "hosts.a.rack is 1; legal: a name");
}

// Whatever bytes come, there is an answer.
TEST(TopologyFile, Mutations) {
  std::mt19937 random(3);
  const std::string whole = kWhole;
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = mutated(whole, random, 3, 12);
    if (auto file = parse_topology(text, "test.json"); file.ok()) {
      ++read;
      if (file->ranks < 1000) static_cast<void>(to_json(topology_of(*file)));
    }
  }
  EXPECT_GT(read, 10);
}

Topology nodes_of(int nodes, int each, double slow_GBs) {
  const std::string text = fmt::format(
      R"({{"weft_topology": 1, "ranks": {}, "levels": [
          {{"name": "node", "size": {}, "latency_us": 0.3, "bandwidth_GBs": 10}},
          {{"name": "world", "latency_us": 20, "message_us": 1, "bandwidth_GBs": {}}}]}})",
      nodes * each, each, slow_GBs);
  return topology_of(*parse_topology(text, "test.json"));
}

double cost(const Topology& topology, Collective collective, const std::string& name, size_t bytes) {
  AlphaBetaModel model(default_tune(), topology, 512 << 10);
  for (const ProgramPtr& program : builtin_programs()) {
    if (program->collective() == collective && program->name() == name) return model.cost(*program, bytes).microseconds;
  }
  ADD_FAILURE() << name;
  return 0;
}

// Ranks of a node share what leads out of it.
TEST(LevelsModel, NodesShareTheirLink) {
  const Topology topology = nodes_of(4, 8, 1);
  const size_t bytes = 64 << 20;
  const double seconds = static_cast<double>(bytes) / 1000;  // microseconds for the vector at 1 GB/s
  // A ring in the order of the ranks crosses each node's border once, with 2 (P-1)/P of the vector.
  EXPECT_NEAR(cost(topology, Collective::allreduce, "ring", bytes) / seconds, 2.0 * 31 / 32, 0.1);
  // The hierarchical one sends 2 (N-1)/N of it over the border.
  EXPECT_NEAR(cost(topology, Collective::allreduce, "hierarchical", bytes) / seconds, 2.0 * 3 / 4, 0.45);
  // In the flat one each rank's parts go to each of 24 ranks elsewhere.
  EXPECT_GT(cost(topology, Collective::allreduce, "flat", bytes) / seconds, 8.0 * 24 / 32);
  EXPECT_LT(cost(topology, Collective::allreduce, "hierarchical_tree", 8),
            cost(topology, Collective::allreduce, "ring", 8) / 5);
}

TEST(LevelsModel, LargeJobs) {
  const Topology topology = nodes_of(512, 8, 10);
  EXPECT_GT(cost(topology, Collective::allreduce, "hierarchical", 1 << 20), 0);
  EXPECT_LT(cost(topology, Collective::allreduce, "hierarchical_tree", 8),
            cost(topology, Collective::allreduce, "ring", 8) / 50);
}

}  // namespace
}  // namespace weft
