#include "bootstrap/launch.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "bootstrap/meeting.hpp"
#include "tests/unit/bootstrap/support.hpp"

namespace weft {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Launch> detect(const Variables& variables, milliseconds timeout = seconds(15),
                      const Config& config = loopback_config()) {
  const Getter get = [&variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  return detect_launch(config, get, Deadline::after(timeout));
}

// Detects, joins and gathers as one rank; the error, or nothing.
Status take_part(const Variables& variables, milliseconds timeout = seconds(15)) {
  const Config config = loopback_config();
  auto launch = detect(variables, timeout, config);
  if (!launch.ok()) return launch.status();
  auto joined = join({.id = launch->id,
                      .rank = launch->rank,
                      .size = launch->size,
                      .listener = launch->listener,
                      .deadline = Deadline::after(timeout),
                      .config = &config});
  if (!joined.ok()) return joined.status();
  auto all = (*joined)->all_gather("", Deadline::after(timeout));
  (*joined)->leave();
  return all.status();
}

// A port that was free a moment ago, with a few after it.
uint16_t free_port(unsigned span = 1) {
  static std::atomic<unsigned> next{20000 + static_cast<unsigned>(::getpid()) % 8000};
  while (true) {
    const unsigned port = next += span + 1;
    bool all_free = true;
    for (unsigned p = port; p < port + span; ++p) {
      all_free = all_free && Listener::bind(SocketAddress::any(AF_INET, static_cast<uint16_t>(p))).ok();
    }
    if (all_free) return static_cast<uint16_t>(port);
  }
}

Variables weft_run(int rank, int size, const std::string& root) {
  return {{"WEFT_RANK", std::to_string(rank)}, {"WEFT_WORLD_SIZE", std::to_string(size)}, {"WEFT_ROOT", root}};
}

TEST(Launch, NoLauncherIsOneRank) {
  auto launch = detect({});
  ASSERT_TRUE(launch.ok());
  EXPECT_EQ(launch->launcher, "none");
  EXPECT_EQ(launch->size, 1);
  EXPECT_TRUE(take_part({}).ok());
}

// B01: a variable that lacks is named, and nothing is assumed for it.
TEST(Launch, B01_MissingVariables) {
  const Variables full[] = {
      weft_run(1, 2, "127.0.0.1:1"),
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "2000"}},
      {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "999"}},
      {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}},
  };
  for (const Variables& variables : full) {
    for (const auto& [name, value] : variables) {
      if (name == "PMI_FD" || name == "SLURM_STEP_ID" || name == "SLURM_STEP_NUM_TASKS") continue;
      Variables fewer = variables;
      fewer.erase(name);
      const Stopwatch watch;
      auto launch = detect(fewer);
      ASSERT_FALSE(launch.ok()) << name;
      EXPECT_TRUE(launch.status().message().starts_with(name + " is not set")) << launch.status().message();
      EXPECT_LT(watch.elapsed(), seconds(1));
    }
  }
}

// B02: what is wrong is shown with its value and what is legal.
TEST(Launch, B02_WrongValues) {
  const Variables torch = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "2000"}};
  const std::tuple<const char*, const char*, const char*> wrong[] = {
      {"RANK", "1x", "0..1"},
      {"RANK", "-1", "0..1"},
      {"RANK", "2", "0..1"},
      {"RANK", "", "0..1"},
      {"WORLD_SIZE", "0", "1..1048576"},
      {"MASTER_PORT", "70000", "1..65535"},
      {"MASTER_PORT", "", "1..65535"},
      {"MASTER_ADDR", "", "host"},
      {"LOCAL_RANK", "x", "0..1"},
  };
  for (const auto& [name, value, legal] : wrong) {
    Variables variables = torch;
    variables[name] = value;
    auto launch = detect(variables);
    ASSERT_FALSE(launch.ok()) << name << "=" << value;
    const std::string text = launch.status().message();
    EXPECT_TRUE(contains(text, fmt::format("{}=\"{}\"", name, value)) && contains(text, legal)) << text;
  }
  for (const char* root : {"host", "host:70000", "host:", "file:", ":5", ""}) {
    auto launch = detect(weft_run(0, 2, root));
    ASSERT_FALSE(launch.ok());
    EXPECT_TRUE(contains(launch.status().message(), "WEFT_ROOT")) << launch.status().message();
    EXPECT_TRUE(contains(launch.status().message(), fmt::format("\"{}\"", root))) << launch.status().message();
    EXPECT_TRUE(contains(launch.status().message(), "file:/path")) << launch.status().message();
  }
}

TEST(Launch, WeftRunByPortTwice) {
  const std::string root = fmt::format("127.0.0.1:{}", free_port());
  for (int i = 0; i < 20; ++i) {
    on_threads(3, [&](int r) {
      const Status status = take_part(weft_run(r, 3, root));
      EXPECT_TRUE(status.ok()) << i << ": " << status.message();
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Launch, B03_TwoRankZeroes) {
  for (const std::string& root : {fmt::format("127.0.0.1:{}", free_port()), fmt::format("localhost:{}", free_port()),
                                  fmt::format("file:/tmp/weft-b03-{}", ::getpid())}) {
    on_threads(2, [&](int) {
      const Status status = take_part(weft_run(0, 2, root), seconds(5));
      EXPECT_TRUE(contains(status.message(), "two processes claim rank 0")) << root << ": " << status.message();
    });
  }
}

TEST(Launch, B05_OtherJobAtTheSamePort) {
  const std::string root = fmt::format("127.0.0.1:{}", free_port());
  on_threads(3, [&](int i) {
    if (i < 2) {
      if (i == 1) std::this_thread::sleep_for(milliseconds(500));
      const Status status = take_part(weft_run(i, 2, root));
      EXPECT_TRUE(status.ok()) << status.message();
      return;
    }
    std::this_thread::sleep_for(milliseconds(200));
    Config other = loopback_config();
    other.job_id = "other";
    auto as_root = detect(weft_run(0, 2, root), seconds(5), other);
    ASSERT_FALSE(as_root.ok());
    EXPECT_TRUE(contains(as_root.status().message(), "not ours")) << as_root.status().message();
    auto launch = detect(weft_run(1, 2, root), seconds(5), other);
    ASSERT_TRUE(launch.ok());
    const Stopwatch watch;
    auto joined = join({.id = launch->id,
                        .rank = 1,
                        .size = 2,
                        .listener = nullptr,
                        .deadline = Deadline::after(seconds(10)),
                        .config = &other});
    ASSERT_FALSE(joined.ok());
    EXPECT_LT(watch.elapsed(), seconds(3));
    EXPECT_TRUE(contains(joined.status().message(), "another job")) << joined.status().message();
  });
}

TEST(Launch, B06_PortHeldByAMuteListener) {
  auto mute = Listener::open(loopback_config());
  ASSERT_TRUE(mute.ok());
  on_threads(2, [&](int r) {
    const Stopwatch watch;
    const Status status = take_part(weft_run(r, 2, (*mute)->address()), seconds(2));
    EXPECT_TRUE(contains(status.message(), r == 0 ? "not ours" : "not the root of this job")) << status.message();
    EXPECT_LT(watch.elapsed(), seconds(5));
  });
}

class RendezvousFile : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  // 2 ranks meet by the file.
  void meet() const {
    on_threads(2, [&](int r) {
      if (r == 0) std::this_thread::sleep_for(milliseconds(200));
      const Stopwatch watch;
      const Status status = take_part(weft_run(r, 2, "file:" + path_));
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_LT(watch.elapsed(), seconds(6));
    });
    EXPECT_TRUE(std::filesystem::is_empty(directory_)) << "the file is left behind";
  }
  const std::string directory_ = fmt::format("/tmp/weft-rendezvous-{}", ::getpid());
  const std::string path_ = directory_ + "/job";
};

TEST_F(RendezvousFile, MeetsAgainAndAgain) {
  for (int i = 0; i < 10; ++i) meet();
}

TEST_F(RendezvousFile, B08_EmptyHalfWrittenAndForeign) {
  for (const char* text : {"", "weft-rend", "weft-rendezvous 0123456789abcdef 0123", "# something else\n"}) {
    write(text);
    meet();
  }
}

TEST_F(RendezvousFile, B08_KilledMidInitAndRunAgain) {
  for (int i = 0; i < 3; ++i) {
    std::vector<Child> ranks;
    for (int r = 0; r < 2; ++r) {
      ranks.emplace_back([&, r] { return take_part(weft_run(r, 3, "file:" + path_)).ok() ? 0 : 1; });
    }
    std::this_thread::sleep_for(milliseconds(300));
    for (const Child& rank : ranks) rank.kill();
    for (Child& rank : ranks) rank.wait();
    ASSERT_TRUE(std::filesystem::exists(path_));
    if (i == 2) {
      const Status stale = take_part(weft_run(1, 2, "file:" + path_), milliseconds(800));
      EXPECT_TRUE(contains(stale.message(), "stale")) << stale.message();
    }
    // Torn off anywhere, it is as good as none.
    if (i == 1) std::filesystem::resize_file(path_, 150);
    meet();
  }
}

TEST_F(RendezvousFile, OtherJobsFileIsNotTaken) {
  Config other = loopback_config();
  other.job_id = "other";
  auto foreign = detect(weft_run(0, 2, "file:" + path_), seconds(5), other);
  ASSERT_TRUE(foreign.ok()) << foreign.status().message();
  const Status status = take_part(weft_run(1, 2, "file:" + path_), milliseconds(500));
  EXPECT_TRUE(contains(status.message(), "another job's")) << status.message();
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(Launch, Torchrun) {
  const uint16_t port = free_port(17);
  const auto variables = [port](int r) {
    return Variables{{"RANK", std::to_string(r)},       {"WORLD_SIZE", "3"},
                     {"LOCAL_RANK", std::to_string(r)}, {"LOCAL_WORLD_SIZE", "3"},
                     {"MASTER_ADDR", "localhost"},      {"MASTER_PORT", std::to_string(port)},
                     {"TORCHELASTIC_RUN_ID", "job-7"}};
  };
  // The store's own port and the first of ours are taken; the second holds another job's root.
  auto store = Listener::bind(SocketAddress::any(AF_INET, port));
  auto mute = Listener::bind(SocketAddress::any(AF_INET, static_cast<uint16_t>(port + 1)));
  ASSERT_TRUE(store.ok() && mute.ok());
  JobId foreign = new_job(loopback_config());
  auto foreign_listener = Listener::bind(SocketAddress::any(AF_INET, static_cast<uint16_t>(port + 2)));
  ASSERT_TRUE(foreign_listener.ok());
  on_threads(4, [&](int r) {
    if (r == 3) {
      (void)join_as(foreign, 0, 2, seconds(2), *foreign_listener).ok();
      return;
    }
    const Status status = take_part(variables(r));
    EXPECT_TRUE(status.ok()) << status.message();
  });
  auto launch = detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "x"}});
  ASSERT_TRUE(launch.ok()) << launch.status().message();
  EXPECT_EQ(launch->launcher, "torchrun");
}

Variables slurm(int rank, int size) {
  return {{"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
          {"SLURM_LOCALID", std::to_string(rank)},
          {"SLURM_JOB_ID", std::to_string(::getpid())},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NUM_NODES", "1"},
          {"SLURM_STEP_NODELIST", "nosuchnode[1-2]"}};
}

TEST(Launch, Slurm) {
  on_threads(3, [&](int r) {
    const Status status = take_part(slurm(r, 3));
    EXPECT_TRUE(status.ok()) << status.message();
  });
  // In the batch script, outside of any step, there is no job of ours.
  auto batch = detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "7"}});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->launcher, "none");
}

TEST(Launch, SlurmNodelist) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[03-05,9],other"), "node03");
  EXPECT_EQ(first_host("node[7]"), "node7");
  EXPECT_EQ(first_host("rack[1-2]n[003,7-9]-ib,other[1-3]"), "rack1n003-ib");
  EXPECT_EQ(first_host("a-b.c,d[1-2]"), "a-b.c");
  EXPECT_EQ(first_host("node[1"), "node");
  EXPECT_EQ(first_host(""), "");
}

// ---- real launchers

std::string program() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  return (self.parent_path() / "launch-program").string();
}

struct Output {
  int status = -1;
  std::vector<std::string> lines;
};
Output run(const std::string& command) {
  Output out;
  FILE* pipe = ::popen(("timeout 40 " + command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return out;
  char line[4096];
  while (std::fgets(line, sizeof line, pipe) != nullptr) out.lines.emplace_back(line, std::strcspn(line, "\n"));
  out.status = ::pclose(pipe);
  std::sort(out.lines.begin(), out.lines.end());
  return out;
}

// Of the leaks that a sanitizer finds under it, PMIx's own are not our business.
const std::string kOpenMpi = "env LSAN_OPTIONS=detect_leaks=0 mpirun.openmpi --allow-run-as-root --oversubscribe -n 3 ";

bool installed(const char* name) { return std::system(fmt::format("command -v {} >/dev/null", name).c_str()) == 0; }

TEST(RealLauncher, OpenMpi) {
  if (!installed("mpirun.openmpi")) GTEST_SKIP() << "mpirun.openmpi is not installed";
  const Output out = run(kOpenMpi + program() + " 300");
  EXPECT_EQ(out.status, 0);
  EXPECT_EQ(out.lines, (std::vector<std::string>{"openmpi 0/3 local 0/3: 0 1 2", "openmpi 1/3 local 1/3: 0 1 2",
                                                 "openmpi 2/3 local 2/3: 0 1 2"}));
}

TEST(RealLauncher, OpenMpiWithoutPmix) {
  if (!installed("mpirun.openmpi")) GTEST_SKIP() << "mpirun.openmpi is not installed";
  // A server that is not there is what a Weft without PMIx sees.
  const Output out = run(kOpenMpi +
                         "env -u PMIX_SERVER_URI41 "
                         "-u PMIX_SERVER_URI4 -u PMIX_SERVER_URI3 -u PMIX_SERVER_URI2 -u PMIX_SERVER_URI21 " +
                         program());
  EXPECT_EQ(out.status, 0);
  ASSERT_EQ(out.lines.size(), 3u);
  EXPECT_EQ(out.lines[2], "openmpi 2/3 local 2/3: 0 1 2");
}

TEST(RealLauncher, Mpich) {
  if (!installed("mpirun.mpich")) GTEST_SKIP() << "mpirun.mpich is not installed";
  const Output out = run("mpirun.mpich -n 3 " + program() + " 300");
  EXPECT_EQ(out.status, 0);
  EXPECT_EQ(out.lines, (std::vector<std::string>{"mpich 0/3 local 0/3: 0 1 2", "mpich 1/3 local 1/3: 0 1 2",
                                                 "mpich 2/3 local 2/3: 0 1 2"}));
}

}  // namespace
}  // namespace weft
