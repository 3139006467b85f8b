#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "process.hpp"

namespace weft::test {
namespace {

constexpr const char* kStar =
    "broadcast star\nstep {\n  if r == root { for k in 1..P send (r+k)%P out[0] }\n  else recv root out[0]\n}\n";

std::string weft_plan(const std::string& arguments) { return std::string(WEFT_PLAN) + " " + arguments; }

void expect_error(const std::string& command, const std::string& words) {
  Process run(command);
  EXPECT_NE(run.wait(), 0) << command;
  EXPECT_NE(run.err().find(words), std::string::npos) << command << "\n" << run.err();
}

TEST(WeftPlan, FilesAndNamesMeanTheSame) {
  const Directory directory;
  std::ofstream(directory / "star.algo") << kStar;
  const std::string file = directory / "star.algo";
  for (const std::string& command :
       {weft_plan("expand " + file + " -P 3 -r 1 --root 2"),
        weft_plan("expand broadcast star -P 3 -r 1 --root 2 --path " + directory.path()),
        "WEFT_ALGO_PATH=" + directory.path() + " " + weft_plan("expand star -P 3 -r 1 --root 2")}) {
    Process run(command);
    EXPECT_EQ(run.wait(), 0) << run.err();
    EXPECT_NE(run.out().find("broadcast star: rank 1 of 3, root 2"), std::string::npos) << run.out();
    EXPECT_NE(run.out().find("recv from 2: out[0]"), std::string::npos) << run.out();
  }
  for (const std::string& what : {file, directory.path() + "/", "star --path " + file, "broadcast --path " + file}) {
    Process run(weft_plan("verify " + what + " -P 1..9"));
    EXPECT_EQ(run.wait(), 0) << run.out() << run.err();
    EXPECT_NE(run.out().find("star                    right for 9 rank counts"), std::string::npos) << run.out();
  }
  Process list("WEFT_ALGO_PATH=" + directory.path() + " " + weft_plan("list"));
  EXPECT_EQ(list.wait(), 0);
  EXPECT_NE(list.out().find("reducescatter   bruck                   reducescatter-bruck.algo"), std::string::npos);
  EXPECT_NE(list.out().find("broadcast       star                    " + file), std::string::npos) << list.out();
}

TEST(WeftPlan, AllThatIsBuiltInIsRight) {
  Process run(weft_plan("verify -P 1..5,8"));
  EXPECT_EQ(run.wait(), 0) << run.out();
  EXPECT_NE(run.out().find("right for 6 rank counts"), std::string::npos) << run.out();
  EXPECT_EQ(run.out().find("WRONG"), std::string::npos) << run.out();
}

TEST(WeftPlan, WhyAndBest) {
  const Directory directory;
  const std::string file = directory / "t.json";
  std::ofstream(file) << R"({"weft_topology": 1, "ranks": 8, "levels": [
      {"name": "node", "size": 4, "latency_us": 0.5, "bandwidth_GBs": 10},
      {"name": "world", "latency_us": 500, "bandwidth_GBs": 1}]})";
  Process why(weft_plan("why allreduce 64M -T " + file)), flat(weft_plan("why allreduce 64M -P 4 --kind shm"));
  EXPECT_EQ(why.wait(), 0) << why.err();
  EXPECT_NE(why.out().find("allreduce of 67108864 bytes, 8 ranks, 2 levels"), std::string::npos) << why.out();
  EXPECT_EQ(std::ranges::count(why.out(), '*'), 1) << why.out();
  EXPECT_EQ(flat.wait(), 0) << flat.err();
  EXPECT_NE(flat.out().find("x "), std::string::npos) << flat.out();  // corrections
  Process best(weft_plan("best allreduce 64M -T " + file));
  EXPECT_EQ(best.wait(), 0) << best.err();
  EXPECT_NE(best.out().find("simulated, not measured"), std::string::npos) << best.out();
  EXPECT_NE(best.out().find("WEFT_ALGO=allreduce:"), std::string::npos) << best.out();
  EXPECT_NE(best.out().find("as the library chooses: "), std::string::npos) << best.out();
  expect_error(weft_plan("why allreduce 64M"), "of how many ranks?");
  expect_error(weft_plan("why allreduse 64M -P 2"), "no collective is called 'allreduse'");
  expect_error(weft_plan("best allreduce 64X -P 2"), "'64X' is not a size");
}

// A program that is not right can still be looked at, in each form.
TEST(WeftPlan, WrongProgramsAreShownAndRefused) {
  const Directory directory;
  const std::string file = directory / "half.algo";
  std::ofstream(file) << "allreduce half\nstep {\n  if r > 0 send 0 out[0]\n  else for k in 1..P send k out[0]\n}\n";
  Process verify(weft_plan("verify " + file));
  EXPECT_EQ(verify.wait(), 1);
  EXPECT_NE(verify.out().find("WRONG  " + file + ":4: allreduce half for 2 ranks"), std::string::npos) << verify.out();
  Process text(weft_plan("show " + file + " -P 2")), json(weft_plan("show " + file + " -P 2 --format json")),
      svg(weft_plan("show " + file + " -P 2 --format svg")), source(weft_plan("show " + file + " --source"));
  EXPECT_EQ(text.wait(), 0);
  EXPECT_NE(text.out().find("send to 0: in[0]"), std::string::npos) << text.out();
  EXPECT_EQ(json.wait(), 0);
  EXPECT_EQ(nlohmann::json::parse(json.out())[1]["ops"][0]["line"], 3);
  EXPECT_EQ(svg.wait(), 0);
  EXPECT_EQ(svg.out().substr(0, 4), "<svg");
  EXPECT_EQ(source.wait(), 0);
  EXPECT_EQ(source.out(), slurp(file));
}

TEST(WeftPlan, CostsAndWhichOneIsTaken) {
  Process text(weft_plan("cost allreduce -P 2,3 -b 8,64M")),
      json(weft_plan("cost -P 4 -b 1K --kind tcp --format json"));
  EXPECT_EQ(text.wait(), 0) << text.err();
  EXPECT_NE(text.out().find("allreduce       ring                         3    67108864"), std::string::npos)
      << text.out();
  EXPECT_EQ(std::ranges::count(text.out(), '*'), 4) << text.out();  // two sizes, two rank counts
  ASSERT_EQ(json.wait(), 0) << json.err();
  std::map<std::string, double> taken, least;
  for (const auto& line : nlohmann::json::parse(json.out())) {
    const std::string collective = line["collective"];
    if (line["chosen"]) taken[collective] = line["microseconds"];
    least.try_emplace(collective, 1e30);
    least[collective] = std::min(least[collective], line["microseconds"].get<double>());
  }
  EXPECT_EQ(least.size(), 14U);
  for (const auto& [collective, microseconds] : least) {
    if (collective.ends_with('v')) continue;  // these are taken for calls of another size
    EXPECT_EQ(taken[collective], microseconds) << collective;
  }
}

TEST(WeftPlan, MistakesAreNamed) {
  expect_error(weft_plan("cost allreduce -P x"), "-P: 'x'");
  expect_error(weft_plan("cost allreduce -P 2 -b 8,9Q"), "-b: '9Q'");
  expect_error(weft_plan("cost allreduce -P 2 --tune /nonexistent/my.tune"), "/nonexistent/my.tune");
  const Directory directory;
  std::ofstream(directory / "typo.algo") << "broadcast typo\nsned 1 out[0]\n";
  expect_error(weft_plan("show alreduce ring"), "'alreduce' is no file (*.algo), collective or algorithm");
  expect_error(weft_plan("show allreduce rnig"), "there is no allreduce 'rnig'; legal are double_tree, flat");
  expect_error(weft_plan("show bruck"), "'bruck' may be allgather bruck, reducescatter bruck, alltoall bruck");
  expect_error(weft_plan("show " + (directory / "absent.algo")), "absent.algo: No such file");
  expect_error(weft_plan("show " + (directory / "typo.algo")), "typo.algo:2:1: expected a statement");
  expect_error(weft_plan("expand allreduce ring -r 4"), "rank 4 of 4 ranks; legal are 0 to 3");
  expect_error(weft_plan("show reduce chain --root -1"), "root -1 of 4 ranks; legal are 0 to 3");
  expect_error(weft_plan("show allgather doubling -P 3"), "is not for 3 ranks, by its 'requires'");
  expect_error(weft_plan("verify ring -P 3-5"), "-P: '3-5' is not a number, a range a..b, or a list");
  Process none(weft_plan("verify allgather doubling -P 3,5"));
  EXPECT_EQ(none.wait(), 1);
  EXPECT_NE(none.out().find("not for 2 rank counts, by its 'requires'"), std::string::npos) << none.out();
  Process some(weft_plan("verify allgather doubling -P 3,4"));
  EXPECT_EQ(some.wait(), 0) << some.out();
}

}  // namespace
}  // namespace weft::test
