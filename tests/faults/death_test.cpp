// Ranks that die, stop, come late, are aborted, or leave early (B64, B67 to B69, B29, B95).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "tests/faults/job.hpp"

namespace weft::faults {
namespace {

constexpr size_t k64Megabytes = 16 << 20, k256Megabytes = 64 << 20;  // floats

// All-reduces until one fails; its error is kept, and how long the failing call took. Stage 1: the first is done.
void all_reduce_until_failure(Rank& rank, size_t count) {
  std::vector<float> in(count, 1), out(count);
  for (int round = 0; round < 100000; ++round) {
    rank.begin();
    if (rank.keep(weftAllReduce(in.data(), out.data(), count, weftFloat32, weftSum, rank.comm, nullptr)) !=
        weftSuccess) {
      break;
    }
    rank.stage(1);
    if (out[count - 1] != static_cast<float>(rank.size)) {
      rank.report.code = -2;
      break;
    }
  }
  rank.stage(2);
}

class Death : public ::testing::TestWithParam<const char*> {
 protected:
  JobOptions on_transport(int size) const { return {.size = size, .environment = {{"WEFT_TRANSPORT", GetParam()}}}; }
};
INSTANTIATE_TEST_SUITE_P(On, Death, ::testing::Values("shm", "tcp"), [](const auto& info) { return info.param; });

// Survivors learn at once of a closed connection; T + 2 s would be late.
TEST_P(Death, B64_SurvivorsNameTheDeadRank) {
  for (const int victim : {2, 0}) {
    SCOPED_TRACE(victim);
    // The whole size needs two gigabytes for the four ranks.
    const size_t count = test_full() ? k256Megabytes : k64Megabytes;
    Job job(on_transport(4), [count](Rank& rank) { all_reduce_until_failure(rank, count); });
    for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.reached(rank, 1));
    sleep_ms(30);
    job.signal(victim, SIGKILL);
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      if (rank == victim) continue;
      expect_error(job[rank], weftRemoteError,
                   {fmt::format("rank {}", victim), "operation ", fmt::format("allreduce of {} float", count)});
      EXPECT_EQ(job.status(rank), 0);
    }
  }
}

TEST_P(Death, B64_SmallOperations) {
  Job job(on_transport(4), [](Rank& rank) { all_reduce_until_failure(rank, 16); });
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.reached(rank, 1));
  job.signal(2, SIGKILL);
  ASSERT_TRUE(job.finish());
  for (const int rank : {0, 1, 3})
    expect_error(job[rank], weftRemoteError, {"rank 2", "operation ", "allreduce of 16"});
}

// The peer reads such messages where they lie, and a call is over when it has.
TEST_P(Death, B64_OperationsThatAreReadInPlace) {
  Job job(on_transport(4), [](Rank& rank) {
    std::vector<float> in(6007), out(4 * in.size());
    for (int round = 0; round < 1000000 && rank.report.code == weftSuccess; ++round) {
      rank.begin();
      rank.keep(weftAllGather(in.data(), out.data(), in.size(), weftFloat32, rank.comm, nullptr));
      rank.stage(1);
    }
    rank.stage(2);
  });
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.reached(rank, 1));
  sleep_ms(20);
  job.signal(2, SIGKILL);
  ASSERT_TRUE(job.finish());
  for (const int rank : {0, 1, 3})
    expect_error(job[rank], weftRemoteError, {"rank 2", "operation ", "allgather of 6007"});
}

// B79: the peer is gone before we send, SIGPIPE has its default action.
TEST_P(Death, B79_SendingToTheDeadIsAnErrorNotASignal) {
  Job job(on_transport(2), [](Rank& rank) {
    weftBarrier(rank.comm, nullptr);
    if (rank.rank == 1) ::kill(::getpid(), SIGKILL);
    sleep_ms(300);
    std::vector<float> data(1 << 20);
    rank.begin();
    for (int round = 0; round < 100; ++round) {
      if (rank.keep(weftSend(data.data(), round % 2 == 0 ? 8 : data.size(), weftFloat32, 1, rank.comm, nullptr)) !=
          weftSuccess) {
        break;
      }
    }
  });
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(job.status(0), 0);
  expect_error(job[0], weftRemoteError, {"rank 1"});
}

TEST_P(Death, AStoppedRankIsNamed) {
  // Rank 0 is also the one that relays what the ranks tell each other.
  for (const auto& [victim, count] :
       {std::pair(2, k64Megabytes / 16), std::pair(1, size_t{16}), std::pair(0, size_t{16})}) {
    SCOPED_TRACE(fmt::format("rank {} stopped, {} elements", victim, count));
    Job job(on_transport(4), [count = count](Rank& rank) { all_reduce_until_failure(rank, count); });
    for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.reached(rank, 1));
    job.signal(victim, SIGSTOP);
    for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(rank == victim || job.reached(rank, 2));
    job.signal(victim, SIGCONT);
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      if (rank == victim) {
        EXPECT_NE(job[rank].code, weftSuccess);
        continue;
      }
      expect_error(job[rank], weftTimeout, {fmt::format("rank {}", victim), "operation ", "allreduce"});
    }
  }
}

TEST_P(Death, AStoppedRankThatGoesOnInTimeHarmsNothing) {
  Job job(on_transport(4), [](Rank& rank) {
    weftResult_t code = weftSuccess;
    for (int round = 0; round < 6 && rank.report.value[0] == round; ++round) {
      rank.report.value[0] += all_reduce_is_right(rank.comm, rank.rank, rank.size, k64Megabytes / 16, &code);
      rank.stage(1);
    }
    rank.keep(code);
  });
  ASSERT_TRUE(job.reached(2, 1));
  job.signal(2, SIGSTOP);
  sleep_ms(1500);
  job.signal(2, SIGCONT);
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 4; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], 6);
  }
}

// All ranks stopped for longer than T, as by a scheduler or with their machine: none has kept another waiting.
TEST_P(Death, AJobThatIsStoppedAsAWholeGoesOn) {
  for (const size_t count : {size_t{16}, k64Megabytes / 16}) {
    JobOptions options = on_transport(3);
    options.environment["WEFT_TIMEOUT"] = "2";
    Job job(options, [count](Rank& rank) {
      weftResult_t code = weftSuccess;
      rank.report.value[0] = all_reduce_is_right(rank.comm, rank.rank, rank.size, count, &code);
      rank.stage(1);
      // The others wait, less than T but for the stop.
      for (int nap = 0; rank.rank == 1 && nap < 24; ++nap) sleep_ms(50);
      rank.report.value[0] += all_reduce_is_right(rank.comm, rank.rank, rank.size, count, &code);
      rank.keep(code);
    });
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(job.reached(rank, 1));
    sleep_ms(300);
    for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGSTOP);
    sleep_ms(2500);
    for (int rank = 0; rank < 3; ++rank) job.signal(rank, SIGCONT);
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 3; ++rank) {
      expect_success(job[rank]);
      EXPECT_EQ(job[rank].value[0], 2);
    }
  }
}

// The time an operation takes is not its wait: one that moves all the time may take longer than T.
TEST_P(Death, ASlowOperationThatMovesIsNoTimeout) {
  JobOptions options = on_transport(2);
  options.environment["WEFT_TIMEOUT"] = "2";
  Job job(options, [](Rank& rank) {
    std::vector<float> data(1 << 25);
    rank.begin();
    // Rank 1 gets a few milliseconds now and then.
    rank.stage(1);
    rank.keep(weftAllReduce(data.data(), data.data(), data.size(), weftFloat32, weftSum, rank.comm, nullptr));
    rank.stage(2);
  });
  ASSERT_TRUE(job.reached(0, 1) && job.reached(1, 1));
  for (int slice = 0; slice < 6 && job[1].stage.load() < 2; ++slice) {
    job.signal(1, SIGSTOP);
    sleep_ms(500);
    job.signal(1, SIGCONT);
    sleep_ms(5);
  }
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) expect_success(job[rank]);
}

TEST_P(Death, B67_OperationTimeoutIsItsOwnAndCanBeChanged) {
  JobOptions options = on_transport(2);
  options.environment["WEFT_TIMEOUT"] = "60";
  Job job(options, [](Rank& rank) {
    weftBarrier(rank.comm, nullptr);
    if (rank.rank == 1) return rank.wait(0);
    std::thread shorten([&] {
      sleep_ms(500);
      weftCommSetTimeout(rank.comm, 1500);
    });
    rank.begin();
    rank.keep(weftBarrier(rank.comm, nullptr));  // 60 s when it begins
    shorten.join();
    rank.raise(0);
  });
  ASSERT_TRUE(job.finish());
  expect_error(job[0], weftTimeout, {"rank 1", "operation 1", "barrier"}, 3.5);
  EXPECT_GE(job[0].seconds, 1.4);
}
TEST_P(Death, B67_AShortTimeoutOfALongJob) {
  JobOptions options = on_transport(2);
  options.environment["WEFT_TIMEOUT"] = "60";
  Job job(options, [](Rank& rank) {
    weftBarrier(rank.comm, nullptr);
    if (rank.rank == 1) return rank.wait(0);
    weftCommSetTimeout(rank.comm, 1000);
    rank.begin();
    rank.keep(weftBarrier(rank.comm, nullptr));
    rank.raise(0);
  });
  ASSERT_TRUE(job.finish());
  expect_error(job[0], weftTimeout, {"rank 1", "operation 1", "barrier"}, 2.0);
  EXPECT_GE(job[0].seconds, 0.99);
}

enum class Blocked { small, read_in_place, large, stream, receive };

class Abort : public ::testing::TestWithParam<std::tuple<const char*, Blocked>> {};
INSTANTIATE_TEST_SUITE_P(On, Abort,
                         ::testing::Combine(::testing::Values("shm", "tcp"),
                                            ::testing::Values(Blocked::small, Blocked::read_in_place, Blocked::large,
                                                              Blocked::stream, Blocked::receive)));

// One rank aborts from a second thread while it waits for the other. It returns within a second, and so does destroy;
// a second communicator goes on.
TEST_P(Abort, B68_ReturnsWithinASecond) {
  const auto [transport, how] = GetParam();
  JobOptions options{.environment = {{"WEFT_TRANSPORT", transport}, {"WEFT_TIMEOUT", "60"}}};
  Job job(options, [how](Rank& rank) {
    weftComm_t other = nullptr;
    weftCommSplit(rank.comm, 0, rank.rank, &other, nullptr);
    weftBarrier(rank.comm, nullptr);
    weftBarrier(other, nullptr);
    if (rank.rank == 1) {
      rank.wait(0);
      rank.begin();
      rank.keep(weftBarrier(rank.comm, nullptr));  // is told
    } else {
      double aborted_at = 0;
      std::thread second([&] {
        sleep_ms(400);
        rank.begin();
        weftCommAbort(rank.comm);
        aborted_at = rank.elapsed();
      });
      std::vector<float> data(how == Blocked::small ? 8 : 1 << 20);
      weftStream_t stream = nullptr;
      weftResult_t code = weftSuccess;
      if (how == Blocked::stream) {
        weftStreamCreate(&stream);
        weftAllReduce(data.data(), data.data(), data.size(), weftFloat32, weftSum, rank.comm, stream);
        code = weftStreamSynchronize(stream);
      } else if (how == Blocked::read_in_place) {
        code = weftAllGather(data.data(), data.data() + 6007, 6007, weftFloat32, rank.comm, nullptr);
        std::fill(data.begin(), data.end(), -1.0f);  // it is ours again
      } else if (how == Blocked::receive) {
        code = weftRecv(data.data(), data.size(), weftFloat32, 1, rank.comm, nullptr);
      } else {
        code = weftAllReduce(data.data(), data.data(), data.size(), weftFloat32, weftSum, rank.comm, nullptr);
      }
      rank.keep(code);
      second.join();
      rank.report.value[1] = static_cast<int64_t>(1000 * aborted_at);
      if (stream != nullptr) weftStreamDestroy(stream);
      rank.raise(0);
    }
    rank.report.value[0] = weftBarrier(other, nullptr);
    weftCommDestroy(other);
    rank.begin();
    rank.leave();
    rank.report.value[2] = static_cast<int64_t>(1000 * rank.elapsed());
  });
  ASSERT_TRUE(job.finish());
  expect_error(job[0], weftAborted, {"weftCommAbort", "rank 0"}, 1.0);
  expect_error(job[1], weftAborted, {"weftCommAbort", "rank 0"}, 1.0);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(job[rank].value[0], weftSuccess) << "the other communicator";
    EXPECT_LT(job[rank].value[1], 1000) << "milliseconds in weftCommAbort";
    EXPECT_LT(job[rank].value[2], 2000) << "milliseconds in weftCommDestroy";
  }
}

// A split that waits for a rank that never comes.
TEST(AbortOf, B68_ASplitThatWaits) {
  Job job({.environment = {{"WEFT_INIT_TIMEOUT", "20"}}}, [](Rank& rank) {
    if (rank.rank == 1) return rank.wait(0);
    std::thread second([&] {
      sleep_ms(300);
      rank.begin();
      weftCommAbort(rank.comm);
      rank.report.value[0] = static_cast<int64_t>(1000 * rank.elapsed());
    });
    weftComm_t child = nullptr;
    rank.keep(weftCommSplit(rank.comm, 0, 0, &child, nullptr));
    second.join();
    rank.raise(0);
  });
  ASSERT_TRUE(job.finish());
  expect_error(job[0], weftAborted, {"weftCommAbort"}, 1.0);
  EXPECT_LT(job[0].value[0], 1000) << "milliseconds in weftCommAbort";
}

// Barrier, then everybody leaves, rank 0 first or last.
TEST_P(Death, B69_LeavingInAnyOrderIsQuiet) {
  JobOptions options = on_transport(4);
  constexpr int kRounds = 500;
  options.environment["WEFT_DEBUG"] = "warn";
  options.environment["WEFT_DEBUG_FILE"] = ::testing::TempDir() + "weft-b69-" + std::to_string(::getpid());
  options.join = false;
  options.seconds = 100;
  Job job(options, [](Rank& rank) {
    for (int round = 0; round < kRounds; ++round) {
      if (rank.join() != weftSuccess || rank.keep(weftBarrier(rank.comm, nullptr)) != weftSuccess) return;
      if ((round + rank.rank) % 3 == 0) sleep_ms(round % 20 == 0 ? 10 : 1);
      rank.report.value[0] += weftCommDestroy(rank.comm) == weftSuccess;
      rank.comm = nullptr;
    }
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 4; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], kRounds);
  }
  EXPECT_EQ(slurp(options.environment["WEFT_DEBUG_FILE"]), "");
  ::unlink(options.environment["WEFT_DEBUG_FILE"].c_str());
}

// What is there now and was not before goes away. (Other jobs of this machine come and go; what was leaked stays.)
bool go(const std::function<std::set<std::string>()>& look, const std::set<std::string>& before) {
  std::set<std::string> added = look();
  for (const std::string& name : before) added.erase(name);
  for (int tries = 0; tries < 300 && !added.empty(); ++tries) {
    sleep_ms(100);
    const std::set<std::string> now = look();
    std::erase_if(added, [&](const std::string& name) { return !now.contains(name); });
  }
  for (const std::string& name : added) ADD_FAILURE() << name << " is left";
  return added.empty();
}

// Killed in the middle of operations, again and again: nothing is left.
TEST(Leftovers, B29_KilledRanksLeaveNothing) {
  const auto shm = entries("/dev/shm"), sockets = abstract_sockets();
  const std::string status = ::testing::TempDir() + "weft-b29-" + std::to_string(::getpid());
  for (int round = 0; round < 50; ++round) {
    Job job({.size = 4, .environment = {{"WEFT_STATUS_DIR", status}}}, [](Rank& rank) {
      void* memory = nullptr;
      weftMemAlloc(&memory, 1 << 20);
      for (;;) {
        rank.stage(1);
        weftAllReduce(memory, memory, 1 << 18, weftFloat32, weftSum, rank.comm, nullptr);
      }
    });
    for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.reached(rank, 1));
    for (int rank = 0; rank < 4; ++rank) job.signal(rank, SIGKILL);
    ASSERT_TRUE(job.finish());
  }
  EXPECT_TRUE(go([] { return entries("/dev/shm"); }, shm));
  EXPECT_TRUE(go(abstract_sockets, sockets));
  // Status files of the dead go with the next job.
  Job next({.environment = {{"WEFT_STATUS_DIR", status}}},
           [](Rank& rank) { rank.keep(weftBarrier(rank.comm, nullptr)); });
  ASSERT_TRUE(next.finish());
  expect_success(next[0]);
  EXPECT_EQ(count_entries(status), 0u);
  ::rmdir(status.c_str());
}

}  // namespace
}  // namespace weft::faults
