// Asynchronous calls: many in flight, several streams, arguments that are overwritten, back-pressure.
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <thread>

#include "ranks.hpp"

namespace weft::testing {
namespace {

class Streams : public ::testing::TestWithParam<std::tuple<Mode, const char*>> {
 protected:
  void run(int ranks, const RankBody& body, Variables variables = {}) {
    variables.emplace_back("WEFT_TRANSPORT", std::get<1>(GetParam()));
    run_ranks(std::get<0>(GetParam()), ranks, body, variables);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, Streams,
                         ::testing::Values(std::tuple(Mode::threads, "loop"), std::tuple(Mode::threads, "tcp"),
                                           std::tuple(Mode::processes, "shm"), std::tuple(Mode::processes, "tcp")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Mode::threads ? "Threads" : "Processes") +
                                  std::get<1>(info.param);
                         });

struct StreamHandle {
  StreamHandle() { WEFT_EXPECT_OK(weftStreamCreate(&stream), nullptr); }
  ~StreamHandle() { WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr); }
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
  operator weftStream_t() const { return stream; }  // NOLINT: as the handle that it is
  weftStream_t stream = nullptr;
};

// Each call works on the result of the one before: a stream keeps its order.
TEST_P(Streams, ManyInFlightInOrder) {
  run(3, [](int rank, weftComm_t comm) {
    const StreamHandle stream;
    constexpr int kCalls = 60;
    std::vector<int64_t> data(4000, rank + 1);
    for (int i = 0; i < kCalls; ++i) {
      WEFT_EXPECT_OK(weftAllReduce(data.data(), data.data(), i % 3 == 0 ? 4000 : 2, weftInt64,
                                   i % 2 == 0 ? weftMax : weftMin, comm, stream),
                     comm);
    }
    WEFT_EXPECT_OK(weftAllReduce(data.data(), data.data(), data.size(), weftInt64, weftSum, comm, stream), comm);
    WEFT_EXPECT_OK(weftAllReduce(data.data(), data.data(), data.size(), weftInt64, weftSum, comm, stream), comm);
    WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
    EXPECT_EQ(weftStreamQuery(stream), weftSuccess);
    EXPECT_EQ(data, std::vector<int64_t>(data.size(), 27));
  });
}

// Two streams on one communicator whose calls end in another order than they were made: each rank waits for the second
// stream first, whose small calls are behind the first's large ones.
TEST_P(Streams, TwoStreamsOnOneCommunicator) {
  run(3, [](int rank, weftComm_t comm) {
    const StreamHandle large, small;
    constexpr size_t kCount = 500000;
    std::vector<float> in(kCount, static_cast<float>(rank)), out(kCount);
    std::vector<int> ins(20, rank), outs(20);
    for (size_t i = 0; i < 20; ++i) {
      if (i % 5 == 0) {
        WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), kCount, weftFloat32, weftSum, comm, large), comm);
      }
      WEFT_EXPECT_OK(weftAllReduce(&ins[i], &outs[i], 1, weftInt32, weftSum, comm, small), comm);
    }
    WEFT_EXPECT_OK(weftStreamSynchronize(small), nullptr);
    EXPECT_EQ(outs, std::vector<int>(20, 3));
    WEFT_EXPECT_OK(weftStreamSynchronize(large), nullptr);
    EXPECT_EQ(out, std::vector<float>(kCount, 3));
  });
}

// Streams and blocking calls on one communicator: some ranks wait for the stream before the blocking call, some after.
TEST_P(Streams, BlockingCallsBesideAStream) {
  run(4, [](int rank, weftComm_t comm) {
    const StreamHandle stream;
    for (int i = 0; i < 100; ++i) {
      std::vector<int> in(static_cast<size_t>(1 + i * 37), rank), out(in.size());
      int sum = 0;
      WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), in.size(), weftInt32, weftSum, comm, stream), comm);
      if ((rank + i) % 2 == 0) {
        WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
      }
      WEFT_EXPECT_OK(weftAllReduce(&i, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
      ASSERT_EQ(sum, 4 * i);
      WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
      ASSERT_EQ(out, std::vector<int>(in.size(), 6));
    }
  });
}

// The thread that carries the streams of all ranks sleeps while one of them is late; another rank's blocking call,
// begun just then, must not keep it from waking up.
TEST_P(Streams, BlockingCallsWhileTheStreamsRest) {
  run(4, [](int rank, weftComm_t comm) {
    const StreamHandle stream;
    for (int i = 0; i < 80; ++i) {
      int in = rank, out = 0, sum = 0;
      if (rank == i % 4) ::usleep(static_cast<useconds_t>(1000 + i * 977 % 3000));
      WEFT_EXPECT_OK(weftAllReduce(&in, &out, 1, weftInt32, weftSum, comm, stream), comm);
      if (rank % 2 == 0) {
        WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
      } else {
        ::usleep(static_cast<useconds_t>(i * 379 % 4000));
      }
      WEFT_ASSERT_OK(weftAllReduce(&in, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
      ASSERT_EQ(sum, 6);
      WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
      ASSERT_EQ(out, 6);
    }
  });
}

// A stream is made at once, however busy those of other ranks are, and whatever they wait for: here for that very rank.
TEST(StreamsOfOneRank, AreMadeWhileOthersWait) {
  for (int i = 0; i < 20; ++i) {
    run_threads(8,
                [i](int rank, weftComm_t comm) {
                  if (rank == i % 8) ::usleep(3000);
                  const StreamHandle stream;
                  int out = 0;
                  WEFT_ASSERT_OK(weftAllReduce(&rank, &out, 1, weftInt32, weftSum, comm, stream), comm);
                  WEFT_ASSERT_OK(weftStreamSynchronize(stream), nullptr);
                  ASSERT_EQ(out, 28);
                },
                {{"WEFT_TIMEOUT", "5"}, {"WEFT_TRANSPORT", i % 2 == 0 ? "loop" : "tcp"}});
  }
}

// Streams that come and go in one thread while another thread uses its own: the last one's end is the thread's, too.
TEST(StreamsOfOneRank, ComeAndGo) {
  run_threads(3, [](int rank, weftComm_t comm) {
    for (int i = 0; i < 100; ++i) {
      const StreamHandle stream;
      int out = 0;
      WEFT_ASSERT_OK(weftAllReduce(&rank, &out, 1, weftInt32, weftSum, comm, stream), comm);
      WEFT_ASSERT_OK(weftStreamSynchronize(stream), nullptr);
      ASSERT_EQ(out, 3);
    }
  });
}

// Several communicators on one stream, and a group on it.
TEST_P(Streams, SeveralCommunicatorsOnOneStream) {
  run(2, [](int rank, weftComm_t comm) {
    weftComm_t other = nullptr;
    WEFT_ASSERT_OK(weftCommSplit(comm, 0, 0, &other, nullptr), comm);
    {
      const StreamHandle stream;
      std::vector<int> a(1000, rank), b(1000, rank + 1), got(1000);
      WEFT_EXPECT_OK(weftAllReduce(a.data(), a.data(), 1000, weftInt32, weftSum, comm, stream), comm);
      WEFT_EXPECT_OK(weftAllReduce(b.data(), b.data(), 1000, weftInt32, weftSum, other, stream), other);
      WEFT_ASSERT_OK(weftGroupStart(), nullptr);
      WEFT_EXPECT_OK(weftSend(a.data(), 1000, weftInt32, 1 - rank, comm, stream), comm);
      WEFT_EXPECT_OK(weftRecv(got.data(), 1000, weftInt32, 1 - rank, comm, stream), comm);
      WEFT_EXPECT_OK(weftAllReduce(b.data(), b.data(), 1000, weftInt32, weftSum, other, stream), other);
      WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
      WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
      EXPECT_EQ(got, std::vector<int>(1000, 1));
      EXPECT_EQ(b, std::vector<int>(1000, 6));
    }
    WEFT_EXPECT_OK(weftCommDestroy(other), nullptr);
  });
}

// B85: counts and displacements are the caller's again when an asynchronous call returns.
TEST_P(Streams, ArraysAreCopied) {
  run(2, [](int rank, weftComm_t comm) {
    const StreamHandle stream;
    std::vector<int> in(3000), out(3000, -1), gathered(3000, -1);
    std::iota(in.begin(), in.end(), rank * 10000);
    size_t counts[] = {1000, 2000}, displs[] = {0, 1000}, send_counts[2], recv_counts[2], recv_displs[2];
    const size_t own = counts[rank];
    for (size_t peer = 0; peer < 2; ++peer) {
      send_counts[peer] = rank == 0 ? counts[peer] : own / 2;
      recv_counts[peer] = peer == 0 ? own : 1000;
    }
    if (rank == 0) recv_counts[1] = 1000;
    recv_displs[0] = 0;
    recv_displs[1] = recv_counts[0];
    WEFT_EXPECT_OK(weftAllGatherv(in.data(), own, gathered.data(), counts, displs, weftInt32, comm, stream), comm);
    WEFT_EXPECT_OK(
        weftAlltoAllv(in.data(), send_counts, displs, out.data(), recv_counts, recv_displs, weftInt32, comm, stream),
        comm);
    const size_t kept_counts[] = {recv_counts[0], recv_counts[1]};
    for (size_t* array : {counts, displs, send_counts, recv_counts, recv_displs}) array[0] = array[1] = SIZE_MAX / 16;
    WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
    for (size_t i = 0; i < 3000; ++i) {
      ASSERT_EQ(gathered[i], i < 1000 ? static_cast<int>(i) : static_cast<int>(10000 + i - 1000)) << i;
    }
    for (size_t i = 0; i < kept_counts[0] + kept_counts[1]; ++i) {
      const bool from_0 = i < kept_counts[0];
      const size_t at = from_0 ? i + (rank == 0 ? 0 : 1000) : i - kept_counts[0] + (rank == 0 ? 0 : 1000);
      ASSERT_EQ(out[i], static_cast<int>(at) + (from_0 ? 0 : 10000)) << i << " of rank " << rank;
    }
  });
}

long resident_kib() {
  std::ifstream statm("/proc/self/statm");
  long pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * 4;
}

// B82: a rank that is late is not flooded: what its peer queues waits with the peer, in bounded memory.
TEST_P(Streams, BackPressure) {
  if (std::get<0>(GetParam()) == Mode::threads) GTEST_SKIP() << "the memory is that of both ranks";
  const int calls = test_full() ? 10000 : 1200;  // more than a stream queues
  run(2, [calls](int rank, weftComm_t comm) {
    const StreamHandle stream;
    constexpr size_t kCount = 16384;  // 64 KiB
    std::vector<int> data(kCount);
    int one = 1, two = 0;
    WEFT_ASSERT_OK(weftAllReduce(&one, &two, 1, weftInt32, weftSum, comm, nullptr), comm);
    if (rank == 0) {
      std::iota(data.begin(), data.end(), 0);
      const long before = resident_kib();
      for (int i = 0; i < calls; ++i) {
        WEFT_ASSERT_OK(weftSend(data.data(), kCount, weftInt32, 1, comm, stream), comm);
      }
      const long grown = resident_kib() - before;
      if (!sanitized()) {
        EXPECT_LT(grown, 32 << 10) << "KiB";
      }
      WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
    } else {
      ::sleep(test_full() ? 10 : 1);
      for (int i = 0; i < calls; ++i) {
        std::fill(data.begin(), data.end(), -1);
        WEFT_ASSERT_OK(weftRecv(data.data(), kCount, weftInt32, 0, comm, nullptr), comm);
        for (size_t k = 0; k < kCount; ++k) ASSERT_EQ(data[k], static_cast<int>(k));
      }
    }
  });
}

// More small messages than a ring or the early store holds, sent before the first is received, do not keep another
// stream's collective from its end.
TEST_P(Streams, SmallMessagesAheadOfACollective) {
  run(2, [](int rank, weftComm_t comm) {
    const StreamHandle stream;
    constexpr int kMany = 3000;
    std::vector<int> values(kMany), got(kMany);
    std::iota(values.begin(), values.end(), 0);
    if (rank == 0) {
      for (int& value : values) WEFT_ASSERT_OK(weftSend(&value, 1, weftInt32, 1, comm, stream), comm);
    }
    int sum = 0, one = 1;
    WEFT_ASSERT_OK(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
    EXPECT_EQ(sum, 2);
    if (rank == 1) {
      for (int& value : got) WEFT_ASSERT_OK(weftRecv(&value, 1, weftInt32, 0, comm, nullptr), comm);
      EXPECT_EQ(got, values);
    }
    WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
  });
}

// Destroying a stream or a communicator waits for what is under way.
TEST_P(Streams, DestroyWaits) {
  run(2, [](int rank, weftComm_t comm) {
    constexpr size_t kCount = 300000;
    std::vector<int> in(kCount, 1), out(kCount);
    {
      const StreamHandle stream;
      if (rank == 1) ::usleep(50000);
      WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), kCount, weftInt32, weftSum, comm, stream), comm);
    }
    EXPECT_EQ(out, std::vector<int>(kCount, 2));
    const StreamHandle stream;
    weftComm_t part = nullptr;
    WEFT_ASSERT_OK(weftCommSplit(comm, 0, 0, &part, nullptr), comm);
    std::fill(out.begin(), out.end(), 0);
    WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), kCount, weftInt32, weftSum, part, stream), part);
    WEFT_EXPECT_OK(weftCommFinalize(part), part);
    EXPECT_EQ(out, std::vector<int>(kCount, 2));
    std::fill(out.begin(), out.end(), 0);
    WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), kCount, weftInt32, weftSum, part, stream), part);
    WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
    EXPECT_EQ(out, std::vector<int>(kCount, 2));
  });
}

// A communicator that never blocks: weftInProgress, then weftSuccess from weftCommGetAsyncError.
void wait_until_done(weftComm_t comm) {
  for (weftResult_t state = weftInProgress; state == weftInProgress;) {
    ASSERT_EQ(weftCommGetAsyncError(comm, &state), weftSuccess);
    if (state != weftInProgress) {
      ASSERT_EQ(state, weftSuccess) << weftGetLastError(comm);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

TEST(NonBlocking, InitialisationAndCalls) {
  run_launched(3, [](int rank) {
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    config.blocking = 0;
    weftComm_t comm = nullptr;
    if (rank == 2) ::usleep(300000);
    EXPECT_EQ(weftCommInitEnv(&comm, &config), weftInProgress);
    int one = 1, sum = 0;
    if (rank == 0) {
      EXPECT_EQ(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, comm, nullptr), weftInvalidUsage) << "not ready yet";
    }
    wait_until_done(comm);
    EXPECT_EQ(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, comm, nullptr), weftInProgress);
    wait_until_done(comm);
    EXPECT_EQ(sum, 3);
    WEFT_ASSERT_OK(weftGroupStart(), nullptr);
    EXPECT_EQ(weftAllReduce(&one, &sum, 1, weftInt32, weftMax, comm, nullptr), weftSuccess);
    EXPECT_EQ(weftGroupEnd(), weftInProgress);
    wait_until_done(comm);
    EXPECT_EQ(sum, 1);
    WEFT_EXPECT_OK(weftCommFinalize(comm), comm);
    WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr);
  });
}

}  // namespace
}  // namespace weft::testing
