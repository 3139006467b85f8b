#include <nlohmann/json.hpp>

#include "config/config.hpp"
#include "process.hpp"
#include "trace/status_file.hpp"

namespace weft::test {
namespace {

std::string weft_info(const std::string& arguments) { return std::string(WEFT_INFO) + " " + arguments; }

TEST(WeftInfo, VersionIsTheLibrarys) {
  Process run(weft_info("--version"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.out(), "weft " WEFT_TEST_VERSION "\n");
}

TEST(WeftInfo, EveryVariableIsShown) {
  Process text(weft_info("--env")), json(weft_info("--env --json"));
  EXPECT_EQ(text.wait(), 0);
  EXPECT_EQ(json.wait(), 0);
  const auto list = nlohmann::json::parse(json.out());
  EXPECT_EQ(list.size(), variables().size());
  const std::string shown = text.out();
  for (const Variable& variable : variables()) {
    EXPECT_NE(shown.find(std::string(variable.name) + "  ("), std::string::npos) << variable.name;
    EXPECT_NE(shown.find(std::string(variable.help)), std::string::npos) << variable.name;
  }
}

// The documentation is made from the table, and this fails when someone forgot to.
TEST(WeftInfo, DocumentationIsFresh) {
  Process run(weft_info("--env --markdown"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.out(), slurp(WEFT_SOURCE "/docs/environment.md"))
      << "run: weft-info --env --markdown > docs/environment.md";
}

// B10: the environment that it is started in is judged.
TEST(WeftInfo, B10_WrongEnvironmentIsSaid) {
  Process run("WEFT_TIMEOT=1 WEFT_TIMEOUT=abc " + weft_info("--env"));
  EXPECT_EQ(run.wait(), 1);
  EXPECT_NE(run.err().find("WEFT_TIMEOT is not a variable of Weft"), std::string::npos) << run.err();
  EXPECT_NE(run.err().find("WEFT_TIMEOUT=abc: not a number of seconds; legal: 0.1..2147483"), std::string::npos);
}

TEST(WeftInfo, TransportsAreShown) {
  Process text(weft_info("--transports")), json(weft_info("--transports --json"));
  EXPECT_EQ(text.wait(), 0) << text.err();
  EXPECT_EQ(json.wait(), 0) << json.err();
  std::vector<std::string> names;
  for (const auto& line : nlohmann::json::parse(json.out())) names.push_back(line["name"]);
  EXPECT_EQ(names, (std::vector<std::string>{"loop", "shm", "verbs", "tcp", "ucx"}));
  for (const std::string& name : names) EXPECT_NE(text.out().find(name + " "), std::string::npos) << text.out();
}

// A file of NCCL's, drawn in every form, and this machine as such a file.
TEST(WeftInfo, MachinesAreDrawn) {
  const std::string file = WEFT_SOURCE "/tests/unit/topology/machines/eight_gpus.xml";
  const auto shown = [](const std::string& arguments) {
    Process run(weft_info("--topology " + arguments));
    EXPECT_EQ(run.wait(), 0) << run.err();
    EXPECT_EQ(run.err(), "");
    return run.out();
  };
  const std::string text = shown(file);
  EXPECT_NE(text.find("2 NUMA nodes, 8 GPUs, 8 network adapters\n"), std::string::npos) << text;
  EXPECT_NE(text.find("GPU 7, rank 7, sm 90, NVLinks: 18 to switches (450 GB/s)"), std::string::npos) << text;
  EXPECT_NE(text.find("adapter 3 mlx5_3, 400 Gbit/s"), std::string::npos) << text;
  EXPECT_NE(shown(file + " --svg").find("GPUs 0, 1, 2, 3, 4, 5, 6, 7 to NVSwitches"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(shown(file + " --json"))["gpus"][6]["numa"], 1);
  EXPECT_NE(shown(file + " --xml").find("target=\"0000:03:00.0\" count=\"4\""), std::string::npos);
  EXPECT_EQ(shown("--xml").find("<system version=\"1\">\n  <cpu numaid="), 0U);
  EXPECT_NE(shown("").find("NUMA node 0"), std::string::npos);

  Process small(weft_info("--topology " WEFT_SOURCE "/tests/unit/topology/machines/small.xml"));
  EXPECT_EQ(small.wait(), 0);
  EXPECT_NE(small.err().find("weft-info: warning: "), std::string::npos) << small.err();
  EXPECT_NE(small.out().find("4 to GPU 3"), std::string::npos) << small.out();
}

TEST(WeftInfo, JobsAreShownWithTheirLastOperation) {
  const Directory directory;
  Config config;
  config.status_dir = directory.path();
  auto file = StatusFile::create(config, {"job7", "", 1, 1, 2});
  ASSERT_TRUE(file.ok()) << file.status().message();
  FlightRecorder recorder(file.value()->recorder());
  OpShape shape;
  shape.collective = recorder.name("allreduce");
  recorder.begin(shape, 41);

  Process all("WEFT_STATUS_DIR=" + directory.path() + " " + weft_info("--job"));
  EXPECT_EQ(all.wait(), 0);
  EXPECT_NE(all.out().find("job job7"), std::string::npos) << all.out();
  EXPECT_NE(all.out().find("#41 allreduce"), std::string::npos) << all.out();
  EXPECT_NE(all.out().find("missing: rank 0 "), std::string::npos) << all.out();

  Process one(weft_info("--job job7 --json --dir " + directory.path()));
  EXPECT_EQ(one.wait(), 0);
  EXPECT_EQ(nlohmann::json::parse(one.out())[0]["ranks"][0]["operations"][0]["sequence"], 41);

  Process other(weft_info("--job nine --dir " + directory.path()));
  EXPECT_EQ(other.wait(), 1);
  EXPECT_EQ(other.out(), "no job nine runs here\n");
}

}  // namespace
}  // namespace weft::test
