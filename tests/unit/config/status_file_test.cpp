#include "trace/status_file.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

class StatusFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weft-status-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    config_.status_dir = dir_.string();
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::unique_ptr<StatusFile> make(int rank, int size = 4, const std::string& job = "j1") {
    auto made = StatusFile::create(config_, {job, "label", 0xfeed, rank, size});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made.value());
  }
  std::vector<RankStatus> read() {
    auto ranks = read_status(dir_.string());
    EXPECT_TRUE(ranks.ok());
    return ranks.value();
  }
  static void run_op(FlightRecorder& recorder, uint32_t sequence, bool ends = true) {
    OpShape shape;
    shape.collective = recorder.name("barrier");
    const uint64_t ticket = recorder.begin(shape, sequence);
    if (ends) recorder.end(ticket);
  }
  std::filesystem::path dir_;
  Config config_;
};

// B63: the state can be had from outside, from an idle rank and from one inside destroy, with no help from it.
TEST_F(StatusFiles, B63_AnotherProcessSeesTheLastOperationAndPhase) {
  int ready[2], quit[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(quit), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(quit[1]);
    auto file = make(2);
    FlightRecorder recorder(file->recorder());
    for (uint32_t i = 0; i < 5; ++i) run_op(recorder, i);
    file->set_phase(CommPhase::finalizing);
    char byte = 0;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    if (::read(quit[0], &byte, 1) != 0) ::_exit(1);  // stuck until the parent says so
    file.reset();
    ::_exit(0);
  }
  ::close(quit[0]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(pid, SIGSTOP);
  const auto ranks = read();
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].identity.rank, 2);
  EXPECT_EQ(ranks[0].identity.label, "label");
  EXPECT_EQ(ranks[0].pid, pid);
  EXPECT_EQ(ranks[0].phase, CommPhase::finalizing);
  ASSERT_EQ(ranks[0].ops.size(), 5u);
  EXPECT_EQ(ranks[0].ops.back().sequence, 4u);
  EXPECT_EQ(ranks[0].ops.back().collective, "barrier");
  ::kill(pid, SIGCONT);
  ::close(quit[1]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(read().empty());
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST_F(StatusFiles, FilesOfKilledProcessesAreIgnoredAndRemoved) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    auto file = make(0);
    char byte = 0;
    if (::write(ready[1], &byte, 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(read().size(), 1u);
  ::kill(pid, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(read().empty()) << "still a zombie";
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(read().empty());
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

// B29: what a killed process left is reclaimed by the next.
TEST_F(StatusFiles, B29_TheNextProcessReclaimsFilesOfTheDead) {
  const auto child = [&](bool dies) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto file = make(0);
      if (dies) ::kill(::getpid(), SIGKILL);
      file.reset();
      ::_exit(0);
    }
    ::waitpid(pid, nullptr, 0);
  };
  child(true);
  EXPECT_FALSE(std::filesystem::is_empty(dir_));
  child(false);
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST_F(StatusFiles, AForkedChildDoesNotRemoveItsParentsFile) {
  auto file = make(0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    file.reset();
    ::_exit(0);
  }
  ::waitpid(pid, nullptr, 0);
  EXPECT_EQ(read().size(), 1u);
}

TEST_F(StatusFiles, ForeignAndDamagedFilesAreIgnored) {
  const auto file = make(0);
  std::ofstream(dir_ / "short") << "x";
  std::filesystem::copy_file(file->path(), dir_ / "copy");
  std::fstream(dir_ / "copy", std::ios::in | std::ios::out | std::ios::binary) << "garbage!";
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink(file->path(), dir_ / "link");
  EXPECT_EQ(read().size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "short"));
}

TEST_F(StatusFiles, ADirectoryThatCannotBeUsedIsAnError) {
  config_.status_dir = "/proc/no";
  const auto made = StatusFile::create(config_, {"j", "", 1, 0, 1});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("/proc/no"), std::string::npos);
  EXPECT_EQ(StatusFile::try_create(config_, {"j", "", 1, 0, 1}), nullptr);
  EXPECT_FALSE(read_status("/proc/no/where").value().size() > 0);
}

TEST_F(StatusFiles, TheDefaultDirectoryMustBeOursAlone) {
  config_.status_dir.clear();
  ::setenv("XDG_RUNTIME_DIR", dir_.c_str(), 1);
  EXPECT_EQ(StatusFile::directory(config_), dir_.string() + "/weft");
  EXPECT_TRUE(StatusFile::create(config_, {"j", "", 1, 0, 1}).ok());
  ::chmod((dir_ / "weft").c_str(), 0777);
  EXPECT_FALSE(StatusFile::create(config_, {"j", "", 1, 0, 1}).ok());
  ::unsetenv("XDG_RUNTIME_DIR");
}

// B34: making and removing leaves nothing.
TEST_F(StatusFiles, B34_ManyTimesLeavesNothing) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = descriptors();
  for (int i = 0; i < 500; ++i) make(i % 4);
  EXPECT_EQ(descriptors(), before);
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST_F(StatusFiles, TheReportSaysWhoIsBehindAndWhoIsMissing) {
  auto zero = make(0), one = make(1), three = make(3);
  FlightRecorder a(zero->recorder()), b(one->recorder()), c(three->recorder());
  for (uint32_t i = 0; i <= 5; ++i) run_op(a, i, i < 5);
  for (uint32_t i = 0; i <= 5; ++i) run_op(b, i, i < 5);
  for (uint32_t i = 0; i <= 4; ++i) run_op(c, i);
  // Point-to-point calls are counted apart.
  run_op(c, FlightRecorder::kPointToPoint | 1000);

  const uint64_t later = monotonic_ns() + 5'000'000'000;
  const std::string text = status_text(read(), "", later);
  EXPECT_NE(text.find("job j1  communicator 000000000000feed \"label\"  3 of 4 ranks here\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("missing: rank 2 "), std::string::npos) << text;
  EXPECT_NE(text.find("behind: rank 3 has begun #4; others are at #5\n"), std::string::npos) << text;
  EXPECT_NE(text.find("waiting: ranks 0, 1 for"), std::string::npos) << text;
  EXPECT_NE(text.find("#5 barrier"), std::string::npos) << text;

  const auto json = nlohmann::json::parse(status_json(read(), "j1", later));
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["missing"], std::vector<int>{2});
  EXPECT_EQ(json[0]["behind"], std::vector<int>{3});
  EXPECT_EQ(json[0]["newest_sequence"], 5);
  EXPECT_EQ(json[0]["ranks"].size(), 3u);
  EXPECT_EQ(status_text(read(), "other", later), "no job other runs here\n");
  EXPECT_EQ(status_text({}, "", later), "no job of this user runs here\n");
}

}  // namespace
}  // namespace weft
