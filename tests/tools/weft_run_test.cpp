#include <algorithm>
#include <cctype>
#include <sstream>
#include <vector>

#include "process.hpp"

namespace weft::test {
namespace {

// The tool under test comes from the build.
std::string weft_run(const std::string& arguments) { return std::string("exec ") + WEFT_RUN + " " + arguments; }

std::vector<std::string> sorted_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(WeftRun, GivesEveryRankItsPlace) {
  Process run(weft_run("-n 3 sh -c 'echo $WEFT_RANK $WEFT_WORLD_SIZE $WEFT_LOCAL_RANK $WEFT_LOCAL_SIZE'"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(sorted_lines(run.out()), (std::vector<std::string>{"[0] 0 3 0 3", "[1] 1 3 1 3", "[2] 2 3 2 3"}));
  EXPECT_EQ(run.err(), "");
}

// B31: what identifies a job is common to its ranks and differs between jobs.
TEST(WeftRun, B31_JobsHaveTheirOwnIdSecretAndRoot) {
  std::vector<std::string> lines;
  for (int job = 0; job < 2; ++job) {
    Process run(weft_run("-n 2 --no-prefix sh -c 'echo $WEFT_JOB_ID $WEFT_SECRET $WEFT_ROOT'"));
    EXPECT_EQ(run.wait(), 0);
    const auto out = sorted_lines(run.out());
    ASSERT_EQ(out.size(), 2u);
    EXPECT_EQ(out[0], out[1]);
    lines.push_back(out[0]);
  }
  std::istringstream first(lines[0]), second(lines[1]);
  for (std::string a, b; first >> a && second >> b;) EXPECT_NE(a, b);
}

TEST(WeftRun, KeepsStandardOutputAndErrorApartAndLinesWhole) {
  Process run(
      weft_run("-n 4 sh -c 'for i in 1 2 3 4 5 6 7 8 9; do printf a; printf \"b\\n\"; echo e >&2; done; "
               "printf unfinished'"));
  EXPECT_EQ(run.wait(), 0);
  const auto out = sorted_lines(run.out()), err = sorted_lines(run.err());
  EXPECT_EQ(out.size(), 40u);
  EXPECT_EQ(err.size(), 36u);
  for (const auto& line : out) EXPECT_TRUE(line.substr(4) == "ab" || line.substr(4) == "unfinished") << line;
  for (const auto& line : err) EXPECT_EQ(line.substr(4), "e");
}

TEST(WeftRun, AManyLineOutputArrivesWhole) {
  Process run(weft_run("-n 2 --no-prefix seq 1 200000"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(sorted_lines(run.out()).size(), 400'000u);
}

TEST(WeftRun, OneRankIsNotPrefixedNorPiped) {
  Process run(weft_run("-n 1 sh -c 'echo x; echo $WEFT_WORLD_SIZE'"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.out(), "x\n1\n");
}

TEST(WeftRun, OutputGoesToFilesOnDemand) {
  const Directory directory;
  Process run(weft_run("-n 2 --output " + (directory / "logs") + " sh -c 'echo out $WEFT_RANK; echo err >&2'"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.out() + run.err(), "");
  EXPECT_EQ(slurp(directory / "logs/rank-1.out"), "out 1\n");
  EXPECT_EQ(slurp(directory / "logs/rank-0.err"), "err\n");
}

TEST(WeftRun, TheFirstFailureEndsTheRestAndIsTheExitCode) {
  Process run(weft_run("-n 4 sh -c 'test $WEFT_RANK = 2 && exit 7; exec sleep 1000'"));
  EXPECT_EQ(run.wait(), 7);
  EXPECT_NE(run.err().find("weft-run: rank 2 (pid "), std::string::npos) << run.err();
  EXPECT_NE(run.err().find(") exited with code 7; ending the other ranks\n"), std::string::npos) << run.err();
  EXPECT_EQ(sorted_lines(run.err()).size(), 1u) << run.err();
}

TEST(WeftRun, ASignalIsNamed) {
  Process run(weft_run("-n 2 sh -c 'test $WEFT_RANK = 1 && kill -KILL $$; exec sleep 1000'"));
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_NE(run.err().find("was ended by signal 9 (SIGKILL, Killed)"), std::string::npos) << run.err();
}

TEST(WeftRun, ARankThatIgnoresSigtermIsKilledAfterTheGrace) {
  Process run(
      weft_run("-n 2 --grace 0.3 sh -c 'test $WEFT_RANK = 1 && { sleep 0.3; exit 3; }; trap \"\" TERM; while :; do "
               "sleep 0.1; done'"));
  EXPECT_EQ(run.wait(), 3);
  EXPECT_NE(run.err().find("SIGKILL"), std::string::npos) << run.err();
}

TEST(WeftRun, KeepGoingLetsTheOthersEndByThemselves) {
  Process run(weft_run("-n 3 --keep-going sh -c 'test $WEFT_RANK = 0 && exit 4; sleep 0.3; echo done'"));
  EXPECT_EQ(run.wait(), 4);
  EXPECT_EQ(sorted_lines(run.out()), (std::vector<std::string>{"[1] done", "[2] done"}));
}

TEST(WeftRun, TimeoutEndsTheJob) {
  Process run(weft_run("-n 2 --timeout 0.3 sleep 1000"));
  EXPECT_EQ(run.wait(), 124);
  EXPECT_NE(run.err().find("--timeout"), std::string::npos);
}

TEST(WeftRun, SignalsArePassedOn) {
  for (const auto& [signal, code] : {std::pair(SIGINT, 0), std::pair(SIGTERM, 0), std::pair(SIGHUP, 0)}) {
    Process run(
        weft_run("-n 2 sh -c 'trap \"echo got; exit 0\" INT TERM HUP; echo ready; while :; do sleep 0.05; done'"));
    ASSERT_TRUE(run.wait_for("[0] ready"));
    ASSERT_TRUE(run.wait_for("[1] ready"));
    ::kill(run.pid(), signal);
    EXPECT_EQ(run.wait(), code);
    EXPECT_NE(run.out().find("[0] got"), std::string::npos);
    EXPECT_NE(run.out().find("[1] got"), std::string::npos);
  }
  Process run(weft_run("-n 2 sh -c 'echo ready; exec sleep 1000'"));
  ASSERT_TRUE(run.wait_for("[1] ready"));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
}

std::vector<pid_t> numbers(const std::string& text) {
  std::istringstream stream(text);
  std::vector<pid_t> found;
  for (pid_t pid = 0; stream >> pid;) found.push_back(pid);
  return found;
}

// A process that a rank leaves behind, in a session of its own, goes with the job.
TEST(WeftRun, NothingIsLeftBehind) {
  const Directory directory;
  Process run("TMPDIR=" + directory.path() + " " +
              weft_run("-n 2 --no-prefix sh -c 'setsid sleep 1000 & echo $!; sleep 1000 & echo $!; sleep 0.2'"));
  EXPECT_EQ(run.wait(), 0);
  const auto pids = numbers(run.out());
  EXPECT_EQ(pids.size(), 4u);
  for (const pid_t pid : pids) EXPECT_FALSE(alive(pid));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(WeftRun, RanksDieWithIt) {
  Process run(weft_run("-n 2 --no-prefix sh -c 'echo $$; echo x >&2; exec sleep 1000'"));
  for (int i = 0; i < 1000 && numbers(run.out()).size() < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto pids = numbers(run.out());
  ASSERT_EQ(pids.size(), 2u);
  ::kill(run.pid(), SIGKILL);
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  for (const pid_t pid : pids) EXPECT_TRUE(gone_soon(pid));
}

TEST(WeftRun, StandardInputIsRankZeros) {
  Process run("echo hello | " + std::string(WEFT_RUN) + " -n 2 sh -c 'cat; exit 0'");
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.out(), "[0] hello\n");
}

TEST(WeftRun, AReaderThatLeavesEndsTheJob) {
  Process run(std::string(WEFT_RUN) + " -n 2 yes | head -1");
  EXPECT_EQ(run.wait(), 0);
}

TEST(WeftRun, SetsVariables) {
  Process run("HERE=1 " + weft_run("-n 1 -x A=b=c -x HERE -x EMPTY= sh -c 'echo $A $HERE ${EMPTY-unset}.'"));
  EXPECT_EQ(run.wait(), 0);
  EXPECT_EQ(run.out(), "b=c 1 .\n");
}

TEST(WeftRun, BindsToCoresThatWeMayUse) {
  Process run(weft_run("-n 4 --no-prefix --bind core sh -c 'taskset -pc $$ | sed \"s/.*: //\"'"));
  EXPECT_EQ(run.wait(), 0);
  for (const auto& line : sorted_lines(run.out())) {
    EXPECT_TRUE(!line.empty() && std::all_of(line.begin(), line.end(), [](unsigned char c) { return std::isdigit(c); }))
        << line;
  }
}

TEST(WeftRun, WrongUseIsAnErrorThatSaysWhatIsLegal) {
  struct Case {
    const char* arguments;
    int code;
    const char* says;
  };
  const Case cases[] = {
      {"-n 2 /no/such/program", 127, "cannot run /no/such/program: No such file or directory"},
      {"-n 2 /etc/passwd", 126, "cannot run /etc/passwd: Permission denied"},
      {"-n 0 true", 2, "Value 0 not in range 1 to 65536"},
      {"-n x true", 2, "x"},
      {"true", 2, "required"},
      {"-n 2", 2, "no program given"},
      {"-n 2 --bind socket true", 2, "{none,core}"},
      {"-n 2 -x NOT_SET_ANYWHERE true", 2, "-x NOT_SET_ANYWHERE: not set here"},
      {"-n 2 -x =1 true", 2, "legal: VAR=value"},
      {"-n 2 --timeout -1 true", 2, "--timeout"},
      {"-n 2 --output /proc/x true", 1, "/proc/x"},
  };
  for (const Case& one : cases) {
    Process run(weft_run(one.arguments));
    EXPECT_EQ(run.wait(), one.code) << one.arguments;
    EXPECT_NE(run.err().find(one.says), std::string::npos) << one.arguments << ": " << run.err();
  }
}

TEST(WeftRun, ManyRanksStartAndEnd) {
  Process run("ulimit -Sn 64; " + weft_run("-n 64 sh -c 'echo x'"));
  EXPECT_EQ(run.wait(60), 0) << run.err();
  EXPECT_EQ(sorted_lines(run.out()).size(), 64u);
}

}  // namespace
}  // namespace weft::test
