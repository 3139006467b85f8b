// Ends, wanted and unwanted, of what is in the midst of something; and beginnings that are cut short.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "full.hpp"
#include "ranks.hpp"

namespace weft::testing {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

bool says(weftComm_t comm, const char* word) {
  return std::string(weftGetLastError(comm)).find(word) != std::string::npos;
}

weftResult_t state_of(weftComm_t comm) {
  weftResult_t state = weftInProgress;
  while (weftCommGetAsyncError(comm, &state) == weftSuccess && state == weftInProgress) ::usleep(500);
  return state;
}

class Endings : public ::testing::TestWithParam<std::tuple<Mode, const char*>> {
 protected:
  void run(int ranks, const RankBody& body, Variables variables = {}) {
    variables.emplace_back("WEFT_TRANSPORT", std::get<1>(GetParam()));
    run_ranks(std::get<0>(GetParam()), ranks, body, variables);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, Endings,
                         ::testing::Values(std::tuple(Mode::threads, "loop"), std::tuple(Mode::threads, "tcp"),
                                           std::tuple(Mode::processes, "shm"), std::tuple(Mode::processes, "tcp")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Mode::threads ? "Threads" : "Processes") +
                                  std::get<1>(info.param);
                         });

// A rank makes fewer calls than the others and leaves: they learn that soon, and whom they miss, whatever the call is.
TEST_P(Endings, OneWhoLeavesEarlyIsMissed) {
  run(3, [](int rank, weftComm_t comm) {
    std::vector<int> in(60000, 1), out(in.size());
    const std::vector<std::function<weftResult_t(weftComm_t)>> calls = {
        [](weftComm_t part) { return weftBarrier(part, nullptr); },
        [&](weftComm_t part) { return weftAllReduce(in.data(), out.data(), 1, weftInt32, weftSum, part, nullptr); },
        [&](weftComm_t part) { return weftAllReduce(in.data(), out.data(), 8000, weftInt32, weftSum, part, nullptr); },
        [&](weftComm_t part) { return weftAllReduce(in.data(), out.data(), 60000, weftInt32, weftSum, part, nullptr); },
        [&](weftComm_t part) { return weftBcast(out.data(), 5, weftInt32, 1, part, nullptr); },
        [&](weftComm_t part) { return weftAllGather(in.data(), out.data(), 9, weftInt32, part, nullptr); },
        [&](weftComm_t part) { return weftAlltoAll(in.data(), out.data(), 9, weftInt32, part, nullptr); },
        [&](weftComm_t part) { return weftRecv(out.data(), 9, weftInt32, 1, part, nullptr); },
    };
    for (const auto& call : calls) {
      const auto number = &call - calls.data();
      for (const bool met : {false, true}) {
        if (!test_full() && number % 4 != (met ? 1 : 0)) continue;  // each takes a second
        weftComm_t part = nullptr;
        WEFT_ASSERT_OK(weftCommSplit(comm, 0, rank, &part, nullptr), comm);
        if (met) {
          WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), 10, weftInt32, weftSum, part, nullptr), part);
        }
        if (rank != 1) {
          SCOPED_TRACE(::testing::Message() << "call " << number << (met ? ", met before" : ""));
          const auto begin = Clock::now();
          EXPECT_EQ(call(part), weftRemoteError) << weftGetLastError(part);
          EXPECT_TRUE(says(part, "rank 1")) << weftGetLastError(part);
          EXPECT_LT(seconds_since(begin), 8);
        }
        WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
        WEFT_ASSERT_OK(weftBarrier(comm, nullptr), comm);
      }
    }
  });
}

// Two streams and a group are full of calls that wait for a rank which never makes them.
TEST_P(Endings, AbortWithMuchInFlight) {
  run(2, [](int rank, weftComm_t comm) {
    int token = 0;
    weftComm_t other = nullptr;
    WEFT_ASSERT_OK(weftCommSplit(comm, 0, 0, &other, nullptr), comm);
    if (rank == 0) {
      weftStream_t streams[2] = {};
      for (weftStream_t& stream : streams) WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
      std::vector<float> in(50000, 1), out(in.size());
      for (size_t i = 0; i < 200; ++i) {
        const size_t count = i % 3 == 0 ? in.size() : 5;
        WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), count, weftFloat32, weftSum, comm, streams[i % 2]), comm);
      }
      WEFT_ASSERT_OK(weftGroupStart(), nullptr);
      WEFT_EXPECT_OK(weftRecv(out.data(), 7, weftFloat32, 1, comm, streams[0]), comm);
      WEFT_EXPECT_OK(weftBcast(out.data(), 7, weftFloat32, 1, comm, streams[1]), comm);
      WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
      ::usleep(100000);
      const auto begin = Clock::now();
      WEFT_EXPECT_OK(weftCommAbort(comm), comm);
      for (weftStream_t stream : streams) {
        EXPECT_EQ(weftStreamSynchronize(stream), weftAborted);
        EXPECT_EQ(weftAllReduce(in.data(), out.data(), 5, weftFloat32, weftSum, comm, stream), weftSuccess);
        EXPECT_EQ(weftStreamDestroy(stream), weftAborted);
      }
      EXPECT_EQ(weftBarrier(comm, nullptr), weftAborted);
      weftComm_t none = nullptr;
      EXPECT_EQ(weftCommSplit(comm, 0, 0, &none, nullptr), weftAborted);
      EXPECT_LT(seconds_since(begin), 2);
      WEFT_EXPECT_OK(weftSend(&token, 1, weftInt32, 1, other, nullptr), other);
    } else {
      WEFT_EXPECT_OK(weftRecv(&token, 1, weftInt32, 0, other, nullptr), other);
      EXPECT_EQ(weftBarrier(comm, nullptr), weftAborted);
    }
    WEFT_EXPECT_OK(weftCommDestroy(other), nullptr);
  });
}

// What was enqueued is done when finalize returns, and when a stream's or the communicator's end does.
TEST_P(Endings, WorkInFlightIsDone) {
  run(3, [](int rank, weftComm_t comm) {
    for (int way = 0; way < 3; ++way) {
      weftComm_t part = nullptr;
      weftStream_t stream = nullptr;
      WEFT_ASSERT_OK(weftCommSplit(comm, 0, 0, &part, nullptr), comm);
      WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
      std::vector<int> data(30000, rank + 1);
      if (rank == way) ::usleep(30000);
      for (int i = 0; i < 40; ++i) {
        const size_t count = i % 2 == 0 ? data.size() : 3;
        WEFT_EXPECT_OK(
            weftAllReduce(data.data(), data.data(), count, weftInt32, i % 4 < 2 ? weftMax : weftMin, part, stream),
            part);
      }
      WEFT_EXPECT_OK(weftAllReduce(data.data(), data.data(), data.size(), weftInt32, weftSum, part, stream), part);
      if (way == 0) {
        WEFT_EXPECT_OK(weftCommFinalize(part), part);
      } else if (way == 1) {
        WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
        part = nullptr;
      } else {
        WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
        stream = nullptr;
      }
      EXPECT_EQ(data, std::vector<int>(data.size(), 9));
      WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
      WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
    }
  });
}

// A call in a group that waits for no stream is not held up by one beside it that a full stream holds up.
TEST(FullStream, HoldsUpNothingElseOfAGroup) {
  run_threads(2, [](int rank, weftComm_t comm) {
    constexpr int kMessages = 1100;  // more than a stream queues
    constexpr size_t kCount = 12000;
    std::vector<int> data(kCount);
    int one = 1, sum = 0;
    weftStream_t stream = nullptr;
    WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
    std::atomic<int> sent{0};
    const auto both = [&] {
      WEFT_ASSERT_OK(weftGroupStart(), nullptr);
      if (rank == 0) {
        WEFT_EXPECT_OK(weftSend(data.data(), kCount, weftInt32, 1, comm, stream), comm);
      }
      WEFT_EXPECT_OK(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
      WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
    };
    if (rank == 0) {
      std::thread sender([&] {
        for (; sent < kMessages; ++sent) {
          WEFT_EXPECT_OK(weftSend(data.data(), kCount, weftInt32, 1, comm, stream), comm);
        }
      });
      ::usleep(300000);  // it is full by now
      both();
      sender.join();
    } else {
      both();
      for (int i = 0; i <= kMessages; ++i) {
        WEFT_ASSERT_OK(weftRecv(data.data(), kCount, weftInt32, 0, comm, nullptr), comm);
      }
    }
    EXPECT_EQ(sum, 2);
    WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
  });
}

// The last error is the last: one that ended the communicator since an earlier wrong call.
TEST(LastError, FollowsTheState) {
  run_threads(2, [](int rank, weftComm_t comm) {
    int x = 0;
    EXPECT_EQ(weftBcast(&x, 1, weftInt32, 5, comm, nullptr), weftInvalidArgument);
    if (rank == 0) {
      WEFT_EXPECT_OK(weftCommAbort(comm), comm);
      return;
    }
    EXPECT_TRUE(says(comm, "root=5"));
    weftStream_t stream = nullptr;
    WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
    WEFT_EXPECT_OK(weftBcast(&x, 1, weftInt32, 0, comm, stream), comm);
    EXPECT_EQ(weftStreamDestroy(stream), weftAborted);
    weftResult_t state = weftSuccess;
    WEFT_EXPECT_OK(weftCommGetAsyncError(comm, &state), comm);
    EXPECT_EQ(state, weftAborted);
    EXPECT_TRUE(says(comm, "weftCommAbort was called on rank 0")) << weftGetLastError(comm);
  });
}

// An aborted communicator that does not block goes only when its calls on other streams have been counted as ended,
// though they stand behind calls of others.
TEST(NonBlocking, DestroyAfterAnAbortWaitsForStreams) {
  run_threads(2, [](int rank, weftComm_t comm) {
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    config.blocking = 0;
    weftComm_t part = nullptr;
    weftStream_t stream = nullptr;
    int token = rank, out = 0;
    EXPECT_EQ(weftCommSplit(comm, 0, 0, &part, &config), weftInProgress);
    ASSERT_EQ(state_of(part), weftSuccess);
    WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
    if (rank == 0) {
      WEFT_EXPECT_OK(weftRecv(&token, 1, weftInt32, 1, comm, stream), comm);
      WEFT_EXPECT_OK(weftBcast(&out, 1, weftInt32, 1, part, stream), part);
      EXPECT_EQ(weftBcast(&out, 1, weftInt32, 1, part, nullptr), weftInProgress);
      WEFT_EXPECT_OK(weftCommAbort(part), part);
    } else {
      ::usleep(200000);
      WEFT_EXPECT_OK(weftSend(&token, 1, weftInt32, 0, comm, stream), comm);
    }
    WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
    EXPECT_EQ(weftStreamSynchronize(stream), rank == 0 ? weftAborted : weftSuccess);
    EXPECT_EQ(token, 1);
    WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
  });
}

// ---- Beginnings

// An initialisation that waits for ranks that never come is ended by an abort, on the rank that all meet at and on
// another, and never holds up who called it.
TEST(NonBlocking, AbortOfAnInitialisation) {
  for (const int who : {0, 1}) {
    run_launched(2, [who](int rank) {
      if (rank != who) return;
      const auto begin = Clock::now();
      weftConfig_t config = WEFT_CONFIG_INITIALIZER;
      config.blocking = 0;
      weftComm_t comm = nullptr;
      int number = -1;
      EXPECT_EQ(weftCommInitEnv(&comm, &config), weftInProgress);
      EXPECT_EQ(weftBarrier(comm, nullptr), weftInvalidUsage);
      EXPECT_TRUE(says(comm, "still being initialised")) << weftGetLastError(comm);
      EXPECT_EQ(weftCommUserRank(comm, &number), weftInvalidUsage);
      ::usleep(200000);
      WEFT_EXPECT_OK(weftCommAbort(comm), comm);
      EXPECT_EQ(state_of(comm), weftAborted);
      EXPECT_TRUE(says(comm, "weftCommAbort")) << weftGetLastError(comm);
      EXPECT_EQ(weftBarrier(comm, nullptr), weftAborted);
      WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr);
      EXPECT_LT(seconds_since(begin), 3);
    });
  }
}

TEST(NonBlocking, AbortOfAnInitialisationByAnId) {
  const Environment environment(Variables{});
  weftUniqueId id;
  WEFT_ASSERT_OK(weftGetUniqueId(&id), nullptr);
  weftConfig_t config = WEFT_CONFIG_INITIALIZER;
  config.blocking = 0;
  weftComm_t comms[2] = {};
  const auto begin = Clock::now();
  for (int rank = 0; rank < 2; ++rank) {  // of three
    ASSERT_EQ(weftCommInitRankConfig(&comms[rank], 3, id, rank, &config), weftInProgress);
    int number = -1;
    WEFT_EXPECT_OK(weftCommUserRank(comms[rank], &number), comms[rank]);
    EXPECT_EQ(number, rank);
  }
  ::usleep(200000);
  WEFT_EXPECT_OK(weftCommAbort(comms[1]), comms[1]);
  EXPECT_EQ(state_of(comms[1]), weftAborted);
  EXPECT_EQ(state_of(comms[0]), weftRemoteError) << "a rank that has come is gone";
  for (weftComm_t comm : comms) WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr);
  EXPECT_LT(seconds_since(begin), 5);
}

// A child takes after its parent, unless it is told otherwise.
TEST(NonBlocking, ChildrenInheritIt) {
  run_threads(3, [](int rank, weftComm_t comm) {
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    config.blocking = 0;
    weftComm_t part = nullptr, child = nullptr, rest = nullptr, blocking = nullptr;
    EXPECT_EQ(weftCommSplit(comm, 0, 0, &part, &config), weftInProgress);
    ASSERT_EQ(state_of(part), weftSuccess);
    EXPECT_EQ(weftCommSplit(part, 0, 0, &child, nullptr), weftInProgress);
    ASSERT_EQ(state_of(child), weftSuccess);
    config.blocking = 1;
    WEFT_EXPECT_OK(weftCommSplit(part, 0, 0, &blocking, &config), part);
    if (rank != 2) {
      int gone[] = {2};
      EXPECT_EQ(weftCommShrink(part, gone, 1, &rest, nullptr, WEFT_SHRINK_DEFAULT), weftInProgress);
      ASSERT_EQ(state_of(rest), weftSuccess);
    }
    for (weftComm_t each : {rest, blocking, child, part}) WEFT_EXPECT_OK(weftCommDestroy(each), nullptr);
  });
}

// ---- Shrink

void expect_sum(weftComm_t comm, int expected) {
  int one = 1, sum = 0;
  WEFT_EXPECT_OK(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
  EXPECT_EQ(sum, expected);
}

// Several times from one communicator, with the same ranks and with others.
TEST_P(Endings, ShrinkAgain) {
  run(4, [](int rank, weftComm_t comm) {
    int lists[][2] = {{3, 0}, {3, 0}, {3, 2}};
    for (int i = 0; i < 3; ++i) {
      const int count = i == 2 ? 2 : 1;
      if (rank >= 4 - count) continue;
      weftComm_t rest = nullptr;
      WEFT_ASSERT_OK(weftCommShrink(comm, lists[i], count, &rest, nullptr, WEFT_SHRINK_DEFAULT), comm);
      expect_sum(rest, 4 - count);
      WEFT_EXPECT_OK(weftCommDestroy(rest), nullptr);
    }
    expect_sum(comm, 4);
  });
}

// A first try that fails, since one more rank is gone than was known, does not spoil the second.
TEST_P(Endings, ShrinkThatFailsAtFirst) {
  run(4, [](int rank, weftComm_t comm) {
    if (rank >= 2) return expect_sum(comm, 4);
    int known[] = {3}, all[] = {3, 2};
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    config.initTimeoutMs = 1000;
    weftComm_t rest = nullptr;
    EXPECT_EQ(weftCommShrink(comm, known, 1, &rest, &config, WEFT_SHRINK_DEFAULT), weftTimeout);
    EXPECT_EQ(rest, nullptr);
    WEFT_ASSERT_OK(weftCommShrink(comm, all, 2, &rest, nullptr, WEFT_SHRINK_DEFAULT), comm);
    expect_sum(rest, 2);
    WEFT_EXPECT_OK(weftCommDestroy(rest), nullptr);
    expect_sum(comm, 4);
  });
}

// None left out: a fresh start for all, also where there are two.
TEST_P(Endings, ShrinkByNobody) {
  run(2, [](int, weftComm_t comm) {
    weftComm_t fresh = nullptr;
    WEFT_ASSERT_OK(weftCommShrink(comm, nullptr, 0, &fresh, nullptr, WEFT_SHRINK_ABORT), comm);
    expect_sum(fresh, 2);
    EXPECT_EQ(weftBarrier(comm, nullptr), weftAborted);
    WEFT_EXPECT_OK(weftCommDestroy(fresh), nullptr);
  });
}

}  // namespace
}  // namespace weft::testing
