// What a user sees of a job: launchers, weft-info while it hangs, the log of a timeout, the trace (B63, B121).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/faults/job.hpp"

namespace weft::faults {
namespace {

std::string from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}
std::string program() { return from_environment("FAULTS_PROGRAM"); }
std::string weft_run() { return from_environment("FAULTS_WEFT_RUN"); }
std::string weft_info() { return from_environment("FAULTS_WEFT_INFO"); }

struct Output {
  int status = -1;
  std::string text;  // standard output
};
Output run(const std::string& command) {
  Output out;
  FILE* pipe = ::popen(("timeout -k 2 40 " + command).c_str(), "r");
  if (pipe == nullptr) return out;
  char part[4096];
  while (const size_t got = std::fread(part, 1, sizeof part, pipe)) out.text.append(part, got);
  const int status = ::pclose(pipe);
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return out;
}
bool installed(const std::string& name) {
  return std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0;
}

// Every rank of `size` printed one line with the right sum.
void expect_all_right(const Output& out, int size) {
  EXPECT_EQ(out.status, 0) << out.text;
  std::set<int> ranks;
  size_t at = 0;
  while ((at = out.text.find('{', at)) != std::string::npos) {
    const auto line = nlohmann::json::parse(out.text.substr(at, out.text.find('}', at) + 1 - at), nullptr, false);
    ASSERT_TRUE(line.is_object()) << out.text;
    EXPECT_EQ(line["size"], size);
    EXPECT_EQ(line["right"], true);
    ranks.insert(line["rank"].get<int>());
    ++at;
  }
  EXPECT_EQ(ranks.size(), static_cast<size_t>(size)) << out.text;
}

#define NEEDS(name) \
  if ((name).empty()) GTEST_SKIP() << "run by meson test, which says where the programs are"

TEST(Launchers, WeftRun) {
  NEEDS(program());
  expect_all_right(run(fmt::format("{} -n 4 {} 3 100000", weft_run(), program())), 4);
}
TEST(Launchers, OpenMpi) {
  NEEDS(program());
  if (!installed("mpirun.openmpi")) GTEST_SKIP() << "mpirun.openmpi is not installed";
  expect_all_right(run(fmt::format("env LSAN_OPTIONS=detect_leaks=0 mpirun.openmpi --allow-run-as-root --oversubscribe "
                                   "-n 3 {} 3 100000",
                                   program())),
                   3);
}
TEST(Launchers, Mpich) {
  NEEDS(program());
  if (!installed("mpirun.mpich")) GTEST_SKIP() << "mpirun.mpich is not installed";
  expect_all_right(run(fmt::format("mpirun.mpich -n 3 {} 3 100000", program())), 3);
}
TEST(Launchers, TorchrunsVariables) {
  NEEDS(program());
  std::string command = "sh -c '";
  const int port = 20000 + ::getpid() % 20000;
  for (int rank = 0; rank < 3; ++rank) {
    command += fmt::format(
        "RANK={} WORLD_SIZE=3 LOCAL_RANK={} LOCAL_WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT={} "
        "TORCHELASTIC_RUN_ID=faults {} 3 100000 & ",
        rank, rank, port, program());
  }
  expect_all_right(run(command + "wait'"), 3);
}
TEST(Launchers, Torchrun) {
  NEEDS(program());
  if (!installed("torchrun")) GTEST_SKIP() << "torchrun is not installed";
  expect_all_right(run(fmt::format("torchrun --standalone --nproc_per_node=3 --no_python {} 3 100000", program())), 3);
}
// Steps on one node, on two, and with a PMI that is not MPICH's.
TEST(Launchers, Slurm) {
  NEEDS(program());
  std::string directory = ::testing::TempDir() + "weft-slurm-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  std::string command = fmt::format("{} {} '", from_environment("FAULTS_SLURM"), directory);
  const std::string steps[] = {"-n 4", "-N 2 -n 4", "--mpi=pmi2 -n 4"};
  for (const std::string& step : steps)
    command += fmt::format("srun {} {} 3 100000 2>&1 || exit; echo @;", step, program());
  const Output out = run(command + "'");
  std::filesystem::remove_all(directory);
  if (out.status == 77) GTEST_SKIP() << out.text;
  size_t at = 0;
  for (const std::string& step : steps) {
    SCOPED_TRACE("srun " + step);
    const size_t end = out.text.find('@', at);
    expect_all_right({out.status, out.text.substr(at, end - at)}, 4);
    at = end == std::string::npos ? out.text.size() : end + 1;
  }
}
TEST(Launchers, None) {
  NEEDS(program());
  expect_all_right(run(program() + " 2 1000"), 1);
}
TEST(Launchers, AFailureIsTheExitCodeAndEndsTheRest) {
  NEEDS(program());
  const Output out = run(fmt::format("env WEFT_TIMEOUT=1 {} -n 3 {} 5 1000 6000 2>&1", weft_run(), program()));
  EXPECT_NE(out.status, 0);
  EXPECT_NE(out.text.find("rank 0 did not take part"), std::string::npos) << out.text;
}

// B63: weft-info --job shows who hangs where, from outside, whatever the ranks are doing.
TEST(Info, B63_AHangIsSeenFromOutside) {
  NEEDS(weft_info());
  for (const size_t count : {size_t{10}, size_t{1} << 20}) {
    SCOPED_TRACE(count);
    Job job({.size = 3, .environment = {{"WEFT_TIMEOUT", "20"}, {"WEFT_JOB_ID", "hang"}}}, [count](Rank& rank) {
      std::vector<float> data(count);
      const auto reduce = [&] {
        return rank.keep(weftAllReduce(data.data(), data.data(), count, weftFloat32, weftMax, rank.comm, nullptr));
      };
      reduce();
      weftBarrier(rank.comm, nullptr);
      rank.stage(1);
      if (rank.rank == 2) rank.wait(0);  // idle, as the user's own computation
      reduce();
    });
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(job.reached(rank, 1));
    sleep_ms(1500);
    job.signal(1, SIGSTOP);  // one of them even stopped
    const std::string command = fmt::format("{} --job hang --dir {}/status", weft_info(), job.directory());
    const Output text = run(command), json = run(command + " --json");
    job.signal(1, SIGCONT);
    ++job.board().word[0];
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 3; ++rank) expect_success(job[rank]);
    EXPECT_NE(text.text.find("behind: rank 2 has begun #1; others are at #2"), std::string::npos) << text.text;
    const auto groups = nlohmann::json::parse(json.text, nullptr, false);
    ASSERT_TRUE(groups.is_array() && groups.size() == 1) << json.text;
    EXPECT_EQ(groups[0]["behind"], nlohmann::json::array({2}));
    EXPECT_EQ(groups[0]["waiting"], nlohmann::json::array({0, 1}));
    EXPECT_EQ(groups[0]["missing"], nlohmann::json::array());
    bool says_whom = false;
    for (const auto& rank : groups[0]["ranks"]) {
      const auto& last = rank["operations"].back();
      says_whom = says_whom || last.value("waiting_for", -1) == 2;
      EXPECT_EQ(last["collective"], rank["rank"] == 2 ? "barrier" : "allreduce");
    }
    EXPECT_TRUE(says_whom) << json.text;
  }
}

TEST(Info, B63_InsideDestroy) {
  NEEDS(weft_info());
  Job job({.environment = {{"WEFT_JOB_ID", "leaving"}}}, [](Rank& rank) {
    weftStream_t stream = nullptr;
    std::vector<float> data(1 << 20);
    weftBarrier(rank.comm, nullptr);
    if (rank.rank == 0) {
      // Destroying waits for what is queued, and that waits for rank 1.
      weftStreamCreate(&stream);
      weftAllReduce(data.data(), data.data(), data.size(), weftFloat32, weftMax, rank.comm, stream);
      rank.stage(1);
      rank.leave();
      weftStreamDestroy(stream);
    } else {
      rank.wait(0);
      rank.keep(weftAllReduce(data.data(), data.data(), data.size(), weftFloat32, weftMax, rank.comm, nullptr));
    }
  });
  ASSERT_TRUE(job.reached(0, 1));
  sleep_ms(300);
  const Output json = run(fmt::format("{} --job leaving --json --dir {}/status", weft_info(), job.directory()));
  ++job.board().word[0];
  ASSERT_TRUE(job.finish());
  const auto groups = nlohmann::json::parse(json.text, nullptr, false);
  ASSERT_TRUE(groups.is_array() && groups.size() == 1) << json.text;
  const auto& last = groups[0]["ranks"][0]["operations"].back();
  EXPECT_EQ(last["collective"], "allreduce");
  EXPECT_EQ(last["sequence"], 1);
  EXPECT_EQ(last["state"], "running");
  EXPECT_EQ(groups[0]["ranks"][0]["phase"], "finalizing");
}

// The flight recorder is in the log of every rank that a timeout ends.
TEST(Log, ATimeoutDumpsTheLastOperations) {
  const std::string log = fmt::format("{}weft-dump-{}", ::testing::TempDir(), ::getpid());
  Job job({.size = 3, .environment = {{"WEFT_TIMEOUT", "1"}, {"WEFT_DEBUG", "warn"}, {"WEFT_DEBUG_FILE", log + ".%r"}}},
          [](Rank& rank) {
            for (int op = 0; op < 4; ++op) weftBarrier(rank.comm, nullptr);
            if (rank.rank == 1) return rank.wait(0, 2);
            std::vector<float> data(12345);
            rank.keep(weftAllReduce(data.data(), data.data(), data.size(), weftFloat32, weftMax, rank.comm, nullptr));
            rank.raise(0);
          });
  ASSERT_TRUE(job.finish());
  for (const int rank : {0, 2}) {
    expect_error(job[rank], weftTimeout, {"operation 4", "rank 1"});
    const std::string path = fmt::format("{}.{}", log, rank), text = slurp(path);
    EXPECT_NE(text.find("#3 barrier"), std::string::npos) << text;
    EXPECT_NE(text.find("#4 allreduce"), std::string::npos) << text;
    EXPECT_NE(text.find("count 12345"), std::string::npos) << text;
    EXPECT_NE(text.find("waits for rank"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 did not take part"), std::string::npos) << text;
  }
  for (int rank = 0; rank < 3; ++rank) ::unlink(fmt::format("{}.{}", log, rank).c_str());
}

TEST(TraceFile, B121_IsWrittenAndCountsWhatItDropped) {
  const std::string trace = fmt::format("{}weft-trace-{}", ::testing::TempDir(), ::getpid());
  for (const bool overrun : {false, true}) {
    Job job({.environment = {{"WEFT_TRACE_FILE", trace + ".%r"}, {"WEFT_TRACE_EVENTS", overrun ? "16" : "65536"}}},
            [](Rank& rank) {
              std::vector<float> data(100000);
              for (const size_t count : {size_t{10}, data.size()}) {
                for (int op = 0; op < 10; ++op) {
                  rank.keep(weftAllReduce(data.data(), data.data(), count, weftFloat32, weftMax, rank.comm, nullptr));
                }
              }
            });
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 2; ++rank) {
      expect_success(job[rank]);
      const std::string path = fmt::format("{}.{}", trace, rank);
      const auto json = nlohmann::json::parse(slurp(path), nullptr, false);
      ::unlink(path.c_str());
      ASSERT_TRUE(json.is_object()) << path;
      size_t operations = 0, tiles = 0;
      for (const auto& event : json["traceEvents"]) {
        if (event["ph"] != "X") continue;
        EXPECT_EQ(event["pid"], rank);
        operations += event["cat"] == "operation";
        tiles += event["cat"] == "send" || event["cat"] == "recv" || event["cat"] == "copy";
      }
      const int dropped = json["otherData"]["dropped_events"];
      if (overrun) {
        EXPECT_GT(dropped, 0);
        EXPECT_EQ(operations + tiles, 16u);
      } else {
        EXPECT_EQ(dropped, 0);
        EXPECT_EQ(operations, 20u);
        EXPECT_GE(tiles, 20u);
      }
    }
  }
}

}  // namespace
}  // namespace weft::faults
