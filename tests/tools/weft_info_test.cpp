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
