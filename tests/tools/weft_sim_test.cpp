#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "process.hpp"
#include "weft-probe/cluster.hpp"

namespace weft::test {
namespace {

std::string weft_sim(const std::string& arguments) { return std::string(WEFT_SIM) + " " + arguments; }

std::string out_of(const std::string& command) {
  Process run(command);
  EXPECT_EQ(run.wait(), 0) << command << "\n" << run.err();
  return run.out();
}

void expect_error(const std::string& command, const std::string& words) {
  Process run(command);
  EXPECT_NE(run.wait(), 0) << command;
  EXPECT_NE(run.err().find(words), std::string::npos) << command << "\n" << run.err();
}

// A cluster that is only described: its file, a table, a choice.
TEST(WeftSim, ATableOfAlgorithms) {
  const Directory directory;
  for (const char* kind : {"fat-tree", "rail", "dragonfly", "sites"}) {
    const std::string file = directory / (std::string(kind) + ".json");
    std::ofstream(file) << out_of(weft_sim(fmt::format("topology {} --ranks 4 --nodes 3 --groups 2", kind)));
    const std::string text = out_of(weft_sim("run allreduce -T " + file + " -b 8,64M"));
    EXPECT_EQ(std::ranges::count(text, '*'), 2) << text;
    EXPECT_NE(text.find("simulated, not measured"), std::string::npos);
    const auto json = nlohmann::json::parse(out_of(weft_sim("run allreduce -b 64M --format json -T " + file)));
    double ring = 0, hierarchical = 0;
    for (const auto& call : json) {
      EXPECT_EQ(call["ranks"], 24);
      if (call["algorithm"] == "ring") ring = call["microseconds"];
      if (call["algorithm"] == "hierarchical") hierarchical = call["microseconds"];
    }
    EXPECT_GT(ring, 0) << kind;
    EXPECT_GT(hierarchical, 0) << kind;
  }
}

TEST(WeftSim, TimelinesAndWhatIf) {
  const Directory directory;
  const std::string file = directory / "t.json";
  std::ofstream(file) << out_of(weft_sim("topology rail --ranks 2 --nodes 2 --groups 2"));
  const std::string call = "timeline allreduce hierarchical -b 1M -T " + file;
  EXPECT_NE(out_of(weft_sim(call)).find("waited for"), std::string::npos);
  EXPECT_EQ(out_of(weft_sim(call + " --format svg")).substr(0, 4), "<svg");
  const auto trace = nlohmann::json::parse(out_of(weft_sim(call + " --format perfetto")));
  EXPECT_GT(trace["traceEvents"].size(), 50U);
  const auto time = [&](const std::string& more) {
    const auto json =
        nlohmann::json::parse(out_of(weft_sim("run allreduce hierarchical -b 1M --format json -T " + file + more)));
    return json[0]["microseconds"].get<double>();
  };
  EXPECT_GT(time(" --slow-group node:1:50"), 2 * time(" --slow-group node:1:1"));
  EXPECT_GT(time(" --slow-rank 2:200"), 1.1 * time(" --slow-rank 2:1"));
  expect_error(weft_sim("run allreduce -T " + file + " --slow-rank 9:2"), "with a rank of 0 to 7");
  expect_error(weft_sim("run allreduce -T " + file + " --slow-group rack:1:2"), "with node:0..3");
}

// Ranks that do the same are simulated once, where that is not switched off, and it says so.
TEST(WeftSim, ClassesAndSharing) {
  const Directory directory;
  const std::string file = directory / "t.json";
  std::ofstream(file) << out_of(weft_sim("topology rail --ranks 4 --nodes 4 --groups 2"));
  const auto call = [&](const std::string& more) {
    return nlohmann::json::parse(
        out_of(weft_sim("run allreduce hierarchical -b 1M --format json -T " + file + " " + more)))[0];
  };
  const auto fair = call("--sharing fair"), every = call("--sharing fair --classes none");
  EXPECT_EQ(fair["classes"], 1);
  EXPECT_EQ(fair["simulated_ranks"], 1);
  EXPECT_EQ(fair["classes_from"], "all plans");
  EXPECT_EQ(every["simulated_ranks"], 32);
  EXPECT_LT(fair["events"], every["events"]);
  EXPECT_NEAR(fair["microseconds"].get<double>() / every["microseconds"].get<double>(), 1, 1e-9);
  EXPECT_EQ(call("")["classes"], 4);
  expect_error(weft_sim("run allreduce -T " + file + " --sharing even"), "fifo");
}

TEST(WeftSim, SaysWhatIsWrong) {
  const Directory directory;
  const std::string file = directory / "t.json";
  std::ofstream(file) << out_of(weft_sim("topology rail --ranks 2 --nodes 1 --groups 2"));
  expect_error(weft_sim("run allreduc -T " + file), "no collective is called allreduc");
  expect_error(weft_sim("run allreduce rink -T " + file), "no allreduce is called rink; legal: ");
  expect_error(weft_sim("run allreduce -b 1X -T " + file), "'1X' is not a size");
  expect_error(weft_sim("run allreduce -T /no/such"), "/no/such: No such file");
  expect_error(weft_sim("timeline allreduce ring -b 8,16 -T " + file), "a timeline is of one call, not of 2");
  std::ofstream(file) << "{\"weft_topology\": 1}";
  expect_error(weft_sim("run allreduce -T " + file), "it says nothing of ranks");
}

// Round trips in two kinds.
TEST(Cluster, NearAndFar) {
  probe::Latencies latencies{5, std::vector<double>(25, -1)};
  const auto set = [&](int a, int b, double us) {
    latencies.us[static_cast<size_t>(a * 5 + b)] = latencies.us[static_cast<size_t>(b * 5 + a)] = us;
  };
  const int site[] = {0, 1, 0, 1, 1};
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < a; ++b) set(a, b, site[a] == site[b] ? 20 + a + b : 900 + 10 * a);
  }
  const auto threshold = probe::gap(latencies, 4);
  ASSERT_TRUE(threshold.has_value());
  EXPECT_GT(*threshold, 27);
  EXPECT_LT(*threshold, 900);
  EXPECT_EQ(probe::cluster(latencies, *threshold), (std::vector<int>{0, 1, 0, 1, 1}));
  set(3, 4, -1);  // not measured: 1 joins them
  EXPECT_EQ(probe::cluster(latencies, *threshold), (std::vector<int>{0, 1, 0, 1, 1}));
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < a; ++b) set(a, b, 20 + 5 * a);
  }
  EXPECT_FALSE(probe::gap(latencies, 4).has_value());
}

// Two far pairs: the ring crosses between them where it is nearest.
TEST(Cluster, RingsAvoidTheWorstLink) {
  const probe::Latencies times{4, {-1, 90, 10, 20, 90, -1, 20, 10, 10, 20, -1, 90, 20, 10, 90, -1}};
  EXPECT_EQ(probe::ring_through(times, 1.25), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_TRUE(probe::ring_through(times, 5).empty());
}

#ifdef WEFT_PROBE
// The file is one that the library takes.
TEST(WeftProbe, WritesWhatTheLibraryReads) {
  const Directory directory;
  const std::string file = directory / "t.json";
  for (const char* transport : {"shm", "tcp"}) {
    SCOPED_TRACE(transport);
    const std::string run = fmt::format("WEFT_TRANSPORT={} {} -n 4 --no-prefix ", transport, WEFT_RUN);
    EXPECT_NE(out_of(run + WEFT_PROBE + " -o " + file).find("world: up to 4 parts"), std::string::npos);
    const auto json = nlohmann::json::parse(slurp(file));
    EXPECT_EQ(json["ranks"], 4);
    EXPECT_GT(json["levels"][0]["bandwidth_GBs"], 0.01);
    EXPECT_GT(json["levels"][0]["latency_us"], 0);
    EXPECT_NE(out_of("WEFT_TOPOLOGY=" + file + " " + run + WEFT_PROBE).find("weft_topology"), std::string::npos);
  }
  // Nodes and sites that labels make.
  std::ofstream(directory / "rank.sh")
      << "#!/bin/sh\nexport WEFT_NODE=n$((WEFT_RANK/2)) WEFT_SITE=s$((WEFT_RANK/4))\nexec " << WEFT_PROBE
      << " \"$@\"\n";
  out_of(fmt::format("{} -n 8 --no-prefix sh {} -o {}", WEFT_RUN, directory / "rank.sh", file));
  const auto json = nlohmann::json::parse(slurp(file));
  ASSERT_EQ(json["levels"].size(), 3U);
  EXPECT_EQ(json["levels"][0]["groups"], nlohmann::json::parse("[0,0,1,1,2,2,3,3]"));
  EXPECT_EQ(json["levels"][1]["name"], "site");
}
#endif

}  // namespace
}  // namespace weft::test
