// Setting up, end to end: what the environment says, who takes part, ids, and again and again (B01 to B13, B19).
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/faults/job.hpp"

namespace weft::faults {
namespace {

Job::Body joins() {
  return [](Rank& rank) {
    rank.join();
    rank.report.value[0] = rank.comm != nullptr;
  };
}
JobOptions by_hand(int size = 2) { return {.size = size, .join = false}; }

// A port that was free a moment ago.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

TEST(Setup, B01_RankUnsetOnOne) {
  JobOptions options = by_hand();
  options.environment = {{"WEFT_INIT_TIMEOUT", "3"}};
  options.of_rank = {{1, {{"WEFT_RANK", ""}}}};
  Job job(options, joins());
  ASSERT_TRUE(job.finish());
  expect_error(job[1], weftInvalidUsage, {"WEFT_RANK"}, 1);
  EXPECT_FALSE(job[1].value[0]);
  expect_error(job[0], weftTimeout, {"rank 1"});
}

struct Wrong {
  Environment environment;
  std::vector<std::string> named;
};

TEST(Setup, B02_WrongValuesAreNamedWithWhatIsLegal) {
  const Wrong cases[] = {
      {{{"WEFT_RANK", "1x"}}, {"WEFT_RANK", "1x", "0"}},
      {{{"WEFT_RANK", "-1"}}, {"WEFT_RANK", "-1"}},
      {{{"WEFT_RANK", "2"}, {"WEFT_WORLD_SIZE", "2"}}, {"WEFT_RANK", "2", "1"}},
      {{{"WEFT_WORLD_SIZE", "0"}}, {"WEFT_WORLD_SIZE", "0", "1"}},
      {{{"WEFT_ROOT", "127.0.0.1:70000"}}, {"70000", "65535"}},
      {{{"WEFT_ROOT", "127.0.0.1:"}}, {"WEFT_ROOT", "127.0.0.1:"}},
      {{{"WEFT_ROOT", ""}}, {"WEFT_ROOT"}},
      {{{"WEFT_TIMEOUT", "soon"}}, {"WEFT_TIMEOUT", "soon", "0.1"}},
      {{{"WEFT_TRANSPORT", "smoke"}}, {"WEFT_TRANSPORT", "smoke", "shm", "tcp"}},
      // B10
      {{{"WEFT_ALGO", "rnig"}}, {"WEFT_ALGO", "rnig", "ring"}},
      {{{"WEFT_ALGO", "allreduce:rnig"}}, {"rnig", "ring"}},
      {{{"WEFT_TUNE_FILE", "/nonexistent/my.tune"}}, {"WEFT_TUNE_FILE", "/nonexistent/my.tune", "No such file"}},
      {{{"WEFT_ACCUM", "wid"}}, {"WEFT_ACCUM", "wid", "narrow", "wide"}},
  };
  for (const Wrong& wrong : cases) {
    JobOptions options = by_hand();
    options.environment = {{"WEFT_INIT_TIMEOUT", "3"}};
    for (const auto& [name, value] : wrong.environment) {
      SCOPED_TRACE(name + "=" + value);
      // As given, where empty means an empty value and not "unset".
      Job job(options, [&](Rank& rank) {
        for (const auto& [variable, text] : wrong.environment) ::setenv(variable.c_str(), text.c_str(), 1);
        rank.join();
      });
      ASSERT_TRUE(job.finish());
      EXPECT_TRUE(job[0].code == weftInvalidArgument || job[0].code == weftInvalidUsage) << job[0].code;
      expect_error(job[0], static_cast<weftResult_t>(job[0].code), wrong.named);
      break;
    }
  }
}

TEST(Setup, B03_TwoProcessesWithTheSameRank) {
  const std::string root = fmt::format("127.0.0.1:{}", free_port());
  for (const int twice : {0, 1}) {
    SCOPED_TRACE(twice);
    JobOptions options = by_hand(twice == 0 ? 2 : 3);
    options.environment = {{"WEFT_ROOT", root}, {"WEFT_INIT_TIMEOUT", "3"}};
    options.of_rank[options.size - 1] = {{"WEFT_RANK", std::to_string(twice)}};
    Job job(options, joins());
    ASSERT_TRUE(job.finish());
    for (int process = 0; process < options.size; ++process) {
      EXPECT_NE(job[process].code, weftSuccess);
      expect_error(job[process], static_cast<weftResult_t>(job[process].code),
                   {fmt::format("rank {}", twice), "host ", fmt::format("pid {}", job.pid(twice)),
                    fmt::format("pid {}", job.pid(options.size - 1))});
    }
  }
}

TEST(Setup, B04_DifferentSizes) {
  JobOptions options = by_hand();
  options.of_rank[1] = {{"WEFT_WORLD_SIZE", "3"}};
  Job job(options, joins());
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    expect_error(job[rank], static_cast<weftResult_t>(job[rank].code), {"says 2", "says 3"});
    EXPECT_NE(job[rank].code, weftSuccess);
  }
}

TEST(Setup, B05_AnotherJobAtTheSamePort) {
  const std::string root = fmt::format("127.0.0.1:{}", free_port());
  JobOptions options = by_hand(3);
  options.environment = {{"WEFT_ROOT", root}, {"WEFT_WORLD_SIZE", "2"}};
  options.of_rank[2] = {{"WEFT_RANK", "1"}, {"WEFT_JOB_ID", "another"}, {"WEFT_INIT_TIMEOUT", "3"}};
  Job job(options, [](Rank& rank) {
    if (rank.rank == 1) rank.wait(0);  // the stranger comes first
    rank.join();
    rank.raise(0);
    if (rank.comm != nullptr) rank.keep(weftBarrier(rank.comm, nullptr));
  });
  ASSERT_TRUE(job.finish());
  expect_success(job[0]);
  expect_success(job[1]);
  EXPECT_NE(job[2].code, weftSuccess);
  EXPECT_LT(job[2].seconds, kInTime);
}

TEST(Setup, B06_AMuteListenerHoldsThePort) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(fd, 16), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string root = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
  JobOptions options = by_hand();
  options.environment = {{"WEFT_ROOT", root}, {"WEFT_INIT_TIMEOUT", "3"}};
  Job job(options, joins());
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NE(job[rank].code, weftSuccess);
    expect_error(job[rank], static_cast<weftResult_t>(job[rank].code), {root});
  }
  ::close(fd);
}

TEST(Setup, B08_KilledMidInitAndRunAgain) {
  const std::string file = fmt::format("{}weft-b08-{}", ::testing::TempDir(), ::getpid());
  JobOptions options = by_hand();
  options.environment = {{"WEFT_ROOT", "file:" + file}, {"WEFT_JOB_ID", "b08"}, {"WEFT_SECRET", "b08"}};
  for (int round = 0; round < 5; ++round) {
    Job job(options, [](Rank& rank) {
      rank.stage(1);
      rank.join();
    });
    for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(job.reached(rank, 1));
    sleep_ms(round);
    for (int rank = 0; rank < 2; ++rank) job.signal(rank, SIGKILL);
    ASSERT_TRUE(job.finish());
  }
  // With what the last round left, with none of it, and with a part.
  for (const char* left : {"as it is", "", "weft-rend"}) {
    if (std::string(left) != "as it is") std::ofstream(file) << left;
    Job job(options, joins());
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 2; ++rank) {
      expect_success(job[rank]);
      EXPECT_LT(job[rank].seconds, 2);
    }
  }
  ::unlink(file.c_str());
}

TEST(Setup, B09_ALateRank) {
  for (const bool in_time : {true, false}) {
    JobOptions options = by_hand(3);
    // The case's own numbers, or a quarter of the time.
    const int late_ms = test_full() ? 8000 : 2500;
    const double timeout = test_full() ? 3 : 2;
    options.environment = {{"WEFT_INIT_TIMEOUT", in_time ? "20" : fmt::format("{}", timeout)}};
    Job job(options, [in_time, late_ms](Rank& rank) {
      if (rank.rank == 1) {
        if (!in_time) return rank.wait(0, 2);
        sleep_ms(late_ms);
      }
      rank.join();
      rank.raise(0);
    });
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 3; ++rank) {
      if (in_time) expect_success(job[rank]);
      if (in_time || rank == 1) continue;
      expect_error(job[rank], weftTimeout, {"rank 1"}, timeout + 1);
      EXPECT_GE(job[rank].seconds, timeout - 0.1);
    }
  }
}

TEST(Setup, B10_AMistypedVariableIsOneWarning) {
  const std::string log = fmt::format("{}weft-b10-{}", ::testing::TempDir(), ::getpid());
  JobOptions options = by_hand();
  options.environment = {{"WEFT_TIMEOT", "3"}, {"WEFT_DEBUG", "warn"}, {"WEFT_DEBUG_FILE", log}};
  {
    Job job(options, joins());
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 2; ++rank) expect_success(job[rank]);
  }
  const std::string text = slurp(log);
  size_t lines = 0;
  for (size_t at = text.find("WEFT_TIMEOT"); at != std::string::npos; at = text.find("WEFT_TIMEOT", at + 1)) ++lines;
  EXPECT_EQ(lines, 2u) << "one for each process:\n" << text;
  EXPECT_NE(text.find("WEFT_TIMEOUT"), std::string::npos) << text;
  ::unlink(log.c_str());
}

TEST(Setup, B11_OneRank) {
  Job job({.size = 1, .environment = {{"WEFT_ROOT", ""}, {"WEFT_RANK", ""}, {"WEFT_WORLD_SIZE", ""}}}, [](Rank& rank) {
    double in[3] = {1, 2, 3}, out[3] = {};
    long before = 0;
    for (int round = 0; round < 100000; ++round) {
      if (round == 1000) before = resident_kb(::getpid());
      if (rank.keep(weftAllReduce(in, out, 3, weftFloat64, weftSum, rank.comm, nullptr)) != weftSuccess) return;
    }
    rank.report.value[0] = resident_kb(::getpid()) - before;
    rank.report.value[1] = out[2] == 3;
    weftComm_t child = nullptr;
    rank.keep(weftCommSplit(rank.comm, 7, 0, &child, nullptr));
    rank.report.value[2] = weftAllReduce(in, in, 3, weftFloat64, weftAvg, child, nullptr) == weftSuccess && in[2] == 3;
    weftCommDestroy(child);
  });
  ASSERT_TRUE(job.finish());
  expect_success(job[0]);
  EXPECT_LT(job[0].value[0], 1024) << "kilobytes that 100k operations added";
  EXPECT_TRUE(job[0].value[1] && job[0].value[2]);
}

// Two ranks that get their ids from a pipe, so that they can use one twice.
TEST(Setup, B12_AUniqueIdIsGoodForOneCommunicator) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  JobOptions options = by_hand();
  options.environment = {{"WEFT_INIT_TIMEOUT", "4"}};
  Job job(options, [&](Rank& rank) {
    weftUniqueId id{};
    if (rank.rank == 0) {
      weftGetUniqueId(&id);
      if (::write(ends[1], &id, sizeof id) != sizeof id) return;
    } else if (::read(ends[0], &id, sizeof id) != sizeof id) {
      return;
    }
    weftComm_t again = nullptr;
    rank.report.value[0] = weftCommInitRank(&rank.comm, 2, id, rank.rank);
    rank.meet(0);
    rank.report.value[1] = weftBarrier(rank.comm, nullptr);
    rank.begin();
    rank.keep(weftCommInitRank(&again, 2, id, rank.rank));  // while the first lives
    rank.report.value[2] = weftBarrier(rank.comm, nullptr);
    rank.meet(1);
    rank.leave();
    rank.report.value[3] = weftCommInitRank(&again, 2, id, rank.rank);  // and after its end
    rank.report.value[4] = again == nullptr;
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(job[rank].value[0], weftSuccess);
    EXPECT_EQ(job[rank].value[1], weftSuccess);
    EXPECT_NE(job[rank].code, weftSuccess);
    EXPECT_NE(job[rank].message[0], 0);
    EXPECT_LT(job[rank].seconds, 6);
    EXPECT_EQ(job[rank].value[2], weftSuccess);
    EXPECT_NE(job[rank].value[3], weftSuccess);
    EXPECT_TRUE(job[rank].value[4]);
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

// The same port for a second communicator while the first lives, and again after both: each is a meeting of its own.
TEST(Setup, B12_OnePortForSeveralCommunicators) {
  JobOptions options = by_hand(3);
  options.environment = {{"WEFT_ROOT", fmt::format("127.0.0.1:{}", free_port())}, {"WEFT_INIT_TIMEOUT", "5"}};
  Job job(options, [](Rank& rank) {
    for (int round = 0; round < 5; ++round) {
      weftComm_t second = nullptr;
      if (rank.join() != weftSuccess || rank.keep(weftCommInitEnv(&second, nullptr)) != weftSuccess) return;
      rank.report.value[0] += sum_is_right(second, rank.rank, rank.size, 1000);
      rank.report.value[0] += sum_is_right(rank.comm, rank.rank, rank.size, 1000);
      rank.leave();
      weftCommDestroy(second);
    }
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 3; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], 10);
  }
}

TEST(Setup, B13_InitBarrierDestroyWithoutPause) {
  constexpr int kRounds = 200;
  JobOptions options = by_hand(4);
  options.environment = {{"WEFT_ROOT", fmt::format("127.0.0.1:{}", free_port())}};
  options.seconds = 120;
  Job job(options, [](Rank& rank) {
    for (int round = 0; round < kRounds; ++round) {
      if (rank.join() != weftSuccess || rank.keep(weftBarrier(rank.comm, nullptr)) != weftSuccess) return;
      if (rank.keep(weftCommDestroy(rank.comm)) != weftSuccess) return;
      rank.comm = nullptr;
      ++rank.report.value[0];
    }
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 4; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], kRounds);
  }
}

// A rank that dies while the others set up is an error at once, not at the end of the set-up's time.
TEST(Setup, DeathWhileOthersWait) {
  JobOptions options = by_hand(3);
  options.environment = {{"WEFT_INIT_TIMEOUT", "20"}};
  Job job(options, [](Rank& rank) {
    if (rank.rank == 2) return rank.wait(0);  // never joins
    rank.stage(1);
    rank.join();
    rank.raise(0);
  });
  for (const int rank : {0, 1}) ASSERT_TRUE(job.reached(rank, 1));
  sleep_ms(500);
  job.signal(1, SIGKILL);
  ASSERT_TRUE(job.finish());
  expect_error(job[0], weftRemoteError, {"rank 1"}, 4);
}

}  // namespace
}  // namespace weft::faults
