// Point to point, groups, several communicators, split and shrink.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <numeric>
#include <random>
#include <thread>

#include "ranks.hpp"

namespace weft::testing {
namespace {

int value(int from, int to, size_t i) { return from * 1000003 + to * 1009 + static_cast<int>(i); }

std::vector<int> message(int from, int to, size_t count) {
  std::vector<int> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value(from, to, i);
  return values;
}

class Groups : public ::testing::TestWithParam<std::tuple<Mode, const char*>> {
 protected:
  void run(int ranks, const RankBody& body, Variables variables = {}) {
    variables.emplace_back("WEFT_TRANSPORT", std::get<1>(GetParam()));
    run_ranks(std::get<0>(GetParam()), ranks, body, variables);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, Groups,
                         ::testing::Values(std::tuple(Mode::threads, "loop"), std::tuple(Mode::threads, "tcp"),
                                           std::tuple(Mode::processes, "shm"), std::tuple(Mode::processes, "tcp")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Mode::threads ? "Threads" : "Processes") +
                                  std::get<1>(info.param);
                         });

// Everybody to everybody, oneself included, in one group; small messages and such as go in tiles.
TEST_P(Groups, AllPairs) {
  run(4,
      [](int rank, weftComm_t comm) {
        for (const size_t count : {size_t{0}, size_t{1}, size_t{300}, size_t{20000}}) {
          std::vector<std::vector<int>> in(4, std::vector<int>(count)), out;
          for (int peer = 0; peer < 4; ++peer) out.push_back(message(rank, peer, count));
          WEFT_ASSERT_OK(weftGroupStart(), nullptr);
          for (int peer = 0; peer < 4; ++peer) {
            const auto p = static_cast<size_t>(peer);
            WEFT_EXPECT_OK(weftSend(out[p].data(), count, weftInt32, peer, comm, nullptr), comm);
            WEFT_EXPECT_OK(weftRecv(in[p].data(), count, weftInt32, peer, comm, nullptr), comm);
          }
          WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
          for (int peer = 0; peer < 4; ++peer) EXPECT_EQ(in[static_cast<size_t>(peer)], message(peer, rank, count));
        }
      },
      {{"WEFT_TILE", "4096"}});
}

// Messages between one pair keep their order, in a group and outside.
TEST_P(Groups, MessagesOfAPairAreMatchedInOrder) {
  run(2, [](int rank, weftComm_t comm) {
    constexpr int kMany = 300;
    std::vector<int> in(kMany), out(kMany);
    std::iota(out.begin(), out.end(), 0);
    for (const bool grouped : {true, false}) {
      std::fill(in.begin(), in.end(), -1);
      if (grouped) {
        WEFT_ASSERT_OK(weftGroupStart(), nullptr);
      }
      for (size_t i = 0; i < kMany; ++i) {
        if (rank == 0) {
          WEFT_EXPECT_OK(weftSend(&out[i], 1, weftInt32, 1, comm, nullptr), comm);
        } else {
          WEFT_EXPECT_OK(weftRecv(&in[i], 1, weftInt32, 0, comm, nullptr), comm);
        }
      }
      if (grouped) {
        WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
      }
      if (rank == 1) {
        EXPECT_EQ(in, out);
      }
    }
  });
}

// Several collectives and messages in one group, in an order that would stand still were they run one by one.
TEST_P(Groups, CollectivesAndMessagesTogether) {
  run(3, [](int rank, weftComm_t comm) {
    constexpr size_t kCount = 5000;
    std::vector<int> in(kCount, rank + 1), sum(kCount), top(kCount), all(3 * kCount), got(kCount);
    const std::vector<int> sent = message(rank, (rank + 1) % 3, kCount);
    WEFT_ASSERT_OK(weftGroupStart(), nullptr);
    if (rank == 0) {
      WEFT_EXPECT_OK(weftRecv(got.data(), kCount, weftInt32, 2, comm, nullptr), comm);
    }
    WEFT_EXPECT_OK(weftAllReduce(in.data(), sum.data(), kCount, weftInt32, weftSum, comm, nullptr), comm);
    WEFT_ASSERT_OK(weftGroupStart(), nullptr);
    WEFT_EXPECT_OK(weftSend(sent.data(), kCount, weftInt32, (rank + 1) % 3, comm, nullptr), comm);
    WEFT_EXPECT_OK(weftAllGather(in.data(), all.data(), kCount, weftInt32, comm, nullptr), comm);
    WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
    WEFT_EXPECT_OK(weftAllReduce(in.data(), top.data(), kCount, weftInt32, weftMax, comm, nullptr), comm);
    if (rank != 0) {
      WEFT_EXPECT_OK(weftRecv(got.data(), kCount, weftInt32, rank - 1, comm, nullptr), comm);
    }
    WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
    EXPECT_EQ(sum, std::vector<int>(kCount, 6));
    EXPECT_EQ(top, std::vector<int>(kCount, 3));
    EXPECT_EQ(got, message((rank + 2) % 3, rank, kCount));
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int>(i / kCount) + 1);
  });
}

// One thread with all ranks of a job: only a group can drive them.
TEST(GroupsOfOneThread, AllRanks) {
  for (const char* transport : {"loop", "shm", "tcp"}) {
    const Environment environment(Variables{{"WEFT_TRANSPORT", transport}});
    constexpr int kRanks = 4;
    weftComm_t comms[kRanks];
    WEFT_ASSERT_OK(weftCommInitAll(comms, kRanks, nullptr), nullptr);
    for (const size_t count : {size_t{1}, size_t{100000}}) {
      std::vector<std::vector<int>> in, out(kRanks, std::vector<int>(count));
      for (int rank = 0; rank < kRanks; ++rank) in.emplace_back(count, rank + 1);
      WEFT_ASSERT_OK(weftGroupStart(), nullptr);
      for (size_t rank = 0; rank < kRanks; ++rank) {
        WEFT_EXPECT_OK(
            weftAllReduce(in[rank].data(), out[rank].data(), count, weftInt32, weftSum, comms[rank], nullptr),
            comms[rank]);
      }
      WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
      for (const auto& result : out) EXPECT_EQ(result, std::vector<int>(count, 10));
    }
    std::vector<std::thread> threads;
    for (weftComm_t comm : comms) threads.emplace_back([comm] { WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr); });
    for (std::thread& thread : threads) thread.join();
  }
}

// An error inside a group is returned there and at the end; nothing of the group is issued.
TEST(GroupsOfOneThread, Errors) {
  run_threads(2,
              [](int rank, weftComm_t comm) {
                int one = 1, sum = 0;
                EXPECT_EQ(weftGroupEnd(), weftInvalidUsage);
                WEFT_ASSERT_OK(weftGroupStart(), nullptr);
                WEFT_EXPECT_OK(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
                EXPECT_EQ(weftBroadcast(&one, &one, 1, weftInt32, 2, comm, nullptr), weftInvalidArgument);
                EXPECT_EQ(weftGroupEnd(), weftInvalidArgument);
                EXPECT_EQ(sum, 0);
                WEFT_EXPECT_OK(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
                EXPECT_EQ(sum, 2);
                EXPECT_EQ(weftSend(&one, 1, weftInt32, rank, comm, nullptr), weftInvalidUsage);
                // A message to oneself that nobody takes is an error in time, not a hang.
                WEFT_ASSERT_OK(weftGroupStart(), nullptr);
                WEFT_EXPECT_OK(weftSend(&one, 1, weftInt32, rank, comm, nullptr), comm);
                EXPECT_NE(weftGroupEnd(), weftSuccess);
              },
              {{"WEFT_TIMEOUT", "1"}});
}

// Two communicators in one group, named in another order on each rank.
TEST_P(Groups, TwoCommunicatorsOfOneThread) {
  run(3, [](int rank, weftComm_t comm) {
    weftComm_t other = nullptr;
    WEFT_ASSERT_OK(weftCommSplit(comm, 0, -rank, &other, nullptr), comm);
    int other_rank = -1;
    WEFT_EXPECT_OK(weftCommUserRank(other, &other_rank), other);
    EXPECT_EQ(other_rank, 2 - rank);
    for (const size_t count : {size_t{3}, size_t{50000}}) {
      std::vector<int> in(count, rank), sum(count), from(count, rank);
      const auto first = [&] {
        WEFT_EXPECT_OK(weftAllReduce(in.data(), sum.data(), count, weftInt32, weftSum, comm, nullptr), comm);
      };
      const auto second = [&] { WEFT_EXPECT_OK(weftBcast(from.data(), count, weftInt32, 0, other, nullptr), other); };
      WEFT_ASSERT_OK(weftGroupStart(), nullptr);
      if (rank == 1) {
        second();
        first();
      } else {
        first();
        second();
      }
      WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
      EXPECT_EQ(sum, std::vector<int>(count, 3));
      EXPECT_EQ(from, std::vector<int>(count, 2));
    }
    WEFT_EXPECT_OK(weftCommDestroy(other), nullptr);
  });
}

// B87: ordered by key; a group without rank 0; the root is a rank of the group; who is in none is not held up.
TEST_P(Groups, SplitByColourAndKey) {
  run(4, [](int rank, weftComm_t comm) {
    const int colors[] = {0, 1, 0, WEFT_SPLIT_NOCOLOR}, keys[] = {9, 5, 3, 0};
    weftComm_t part = comm;
    WEFT_ASSERT_OK(weftCommSplit(comm, colors[rank], keys[rank], &part, nullptr), comm);
    if (rank == 3) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    int size = 0, number = -1;
    WEFT_EXPECT_OK(weftCommCount(part, &size), part);
    WEFT_EXPECT_OK(weftCommUserRank(part, &number), part);
    EXPECT_EQ(size, rank == 1 ? 1 : 2);
    EXPECT_EQ(number, rank == 0 ? 1 : 0);
    int from = rank;
    if (size == 2) {
      WEFT_EXPECT_OK(weftBcast(&from, 1, weftInt32, 1, part, nullptr), part);
      EXPECT_EQ(from, 0) << "rank 1 of the group is rank 0 of all";
    }
    EXPECT_EQ(weftBcast(&from, 1, weftInt32, size, part, nullptr), weftInvalidArgument);
    WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
  });
}

TEST_P(Groups, SplitOfASplit) {
  run(6, [](int rank, weftComm_t comm) {
    weftComm_t half = nullptr, pair = nullptr;
    WEFT_ASSERT_OK(weftCommSplit(comm, rank / 3, 0, &half, nullptr), comm);
    WEFT_ASSERT_OK(weftCommSplit(half, rank % 3 == 1, 0, &pair, nullptr), half);
    int sums[3] = {};
    weftComm_t all[] = {comm, half, pair};
    for (int i = 0; i < 3; ++i)
      WEFT_EXPECT_OK(weftAllReduce(&rank, &sums[i], 1, weftInt32, weftSum, all[i], nullptr), all[i]);
    EXPECT_EQ(sums[0], 15);
    EXPECT_EQ(sums[1], rank < 3 ? 3 : 12);
    const int base = rank / 3 * 3;
    EXPECT_EQ(sums[2], rank % 3 == 1 ? rank : 2 * base + 2);
    WEFT_EXPECT_OK(weftCommDestroy(half), nullptr);  // before its child
    WEFT_EXPECT_OK(weftAllReduce(&rank, &sums[2], 1, weftInt32, weftMax, pair, nullptr), pair);
    WEFT_EXPECT_OK(weftCommDestroy(pair), nullptr);
  });
}

// To oneself, too, messages are matched in the order of the calls, though a later one's streams are ready first.
TEST_P(Groups, MessagesToOneselfAreMatchedInOrder) {
  run(2, [](int rank, weftComm_t comm) {
    int late = 0;
    if (rank == 1) {
      ::usleep(100000);
      WEFT_EXPECT_OK(weftSend(&rank, 1, weftInt32, 0, comm, nullptr), comm);
      return;
    }
    weftStream_t streams[3];
    for (weftStream_t& stream : streams) WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
    const std::vector<int> first(700, 5);
    const std::vector<double> second(300, 7);
    std::vector<int> got_first(first.size());
    std::vector<double> got_second(second.size());
    WEFT_EXPECT_OK(weftRecv(&late, 1, weftInt32, 1, comm, streams[0]), comm);
    weftGroupStart();
    WEFT_EXPECT_OK(weftSend(first.data(), first.size(), weftInt32, 0, comm, streams[0]), comm);
    WEFT_EXPECT_OK(weftRecv(got_first.data(), first.size(), weftInt32, 0, comm, streams[1]), comm);
    WEFT_EXPECT_OK(weftGroupEnd(), nullptr);
    weftGroupStart();
    WEFT_EXPECT_OK(weftRecv(got_second.data(), second.size(), weftFloat64, 0, comm, streams[2]), comm);
    WEFT_EXPECT_OK(weftSend(second.data(), second.size(), weftFloat64, 0, comm, streams[2]), comm);
    WEFT_EXPECT_OK(weftGroupEnd(), nullptr);
    WEFT_EXPECT_OK(weftStreamSynchronize(streams[2]), nullptr);
    EXPECT_EQ(got_second, second);
    for (weftStream_t stream : streams) WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
    EXPECT_EQ(got_first, first);
    EXPECT_EQ(late, 1);
  });
}

// While a rank already waits in the split, what it called before still ends at the others.
TEST_P(Groups, SplitWithWorkUnderWay) {
  run(3, [](int rank, weftComm_t comm) {
    weftStream_t stream = nullptr;
    weftComm_t part = nullptr;
    WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
    constexpr size_t kCount = 200000;
    std::vector<int> in(kCount, 1), out(kCount);
    if (rank == 2) ::usleep(200000);
    WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), kCount, weftInt32, weftSum, comm, stream), comm);
    if (rank == 2) {
      WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
    }
    WEFT_EXPECT_OK(weftCommSplit(comm, 0, 0, &part, nullptr), comm);
    WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);  // first of all: it writes to `out`
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(out, std::vector<int>(kCount, 3));
    WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
    WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
  });
}

// A message goes on while both its ranks split the communicator: where one waits for it, and where the split waits.
TEST_P(Groups, SplitWhileAnotherThreadTalks) {
  run(2, [](int rank, weftComm_t comm) {
    constexpr size_t kCount = 200000;
    std::vector<int> data(kCount, rank);
    std::thread other([&] {
      if (rank == 0) {
        WEFT_EXPECT_OK(weftRecv(data.data(), kCount, weftInt32, 1, comm, nullptr), comm);
      } else {
        ::usleep(100000);
        WEFT_EXPECT_OK(weftSend(data.data(), kCount, weftInt32, 0, comm, nullptr), comm);
      }
    });
    if (rank == 0) ::usleep(50000);
    weftComm_t part = nullptr;
    WEFT_EXPECT_OK(weftCommSplit(comm, 0, 0, &part, nullptr), comm);
    other.join();
    EXPECT_EQ(data, std::vector<int>(kCount, 1));
    WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
  });
}

// Barriers, messages and splits at once. On rank 0 each has a thread of its own; on the others a message follows a
// barrier, so that what waits for it must not keep the barrier from its end.
TEST_P(Groups, BarriersMessagesAndSplitsAtOnce) {
  const int calls = test_full() ? 3000 : sanitized() ? 60 : 150;
  run(4, [calls](int rank, weftComm_t comm) {
    const auto messages = [&](int i) {
      std::vector<int> data(i % 2 == 0 ? 1 : 20000, rank + i);
      for (int from = 1; from < 4; ++from) {
        if (rank == from) {
          WEFT_ASSERT_OK(weftSend(data.data(), data.size(), weftInt32, 0, comm, nullptr), comm);
        } else if (rank == 0) {
          WEFT_ASSERT_OK(weftRecv(data.data(), data.size(), weftInt32, from, comm, nullptr), comm);
          ASSERT_EQ(data.back(), from + i);
        }
      }
    };
    std::thread barriers([&] {
      for (int i = 0; i < calls; ++i) {
        if (i % 4 == rank) ::usleep(static_cast<useconds_t>(i % 7 * 100));
        WEFT_ASSERT_OK(weftBarrier(comm, nullptr), comm);
        if (rank != 0) messages(i);
      }
    });
    std::thread receiver([&] {
      for (int i = 0; rank == 0 && i < calls; ++i) messages(i);
    });
    for (int i = 0; i < calls / 5; ++i) {
      weftComm_t part = nullptr;
      WEFT_ASSERT_OK(weftCommSplit(comm, rank == i % 3, 0, &part, nullptr), comm);
      WEFT_ASSERT_OK(weftCommDestroy(part), nullptr);
    }
    barriers.join();
    receiver.join();
  });
}

// What was enqueued before a split may need a call that a peer makes after it.
TEST_P(Groups, SplitBeforeTheOtherSideOfAMessage) {
  run(2, [](int rank, weftComm_t comm) {
    weftStream_t stream = nullptr;
    weftComm_t part = nullptr;
    int value = rank;
    WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
    if (rank == 0) {
      WEFT_EXPECT_OK(weftRecv(&value, 1, weftInt32, 1, comm, stream), comm);
    }
    WEFT_EXPECT_OK(weftCommSplit(comm, 0, 0, &part, nullptr), comm);
    if (rank == 1) {
      WEFT_EXPECT_OK(weftSend(&value, 1, weftInt32, 0, comm, nullptr), comm);
    }
    WEFT_EXPECT_OK(weftStreamSynchronize(stream), nullptr);
    EXPECT_EQ(value, 1);
    WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
    WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
  });
}

// Shrink while all are well: the ranks that stay are numbered anew; the old communicator still works.
TEST_P(Groups, ShrinkWithoutALoss) {
  run(4, [](int rank, weftComm_t comm) {
    int excluded[] = {1};
    weftComm_t rest = nullptr;
    int one = 1, sum = 0;
    if (rank != 1) {
      WEFT_ASSERT_OK(weftCommShrink(comm, excluded, 1, &rest, nullptr, WEFT_SHRINK_DEFAULT), comm);
      int number = -1;
      WEFT_EXPECT_OK(weftCommUserRank(rest, &number), rest);
      EXPECT_EQ(number, rank == 0 ? 0 : rank - 1);
      WEFT_EXPECT_OK(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, rest, nullptr), rest);
      EXPECT_EQ(sum, 3);
    }
    WEFT_EXPECT_OK(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
    EXPECT_EQ(sum, 4);
    if (rest != nullptr) {
      WEFT_EXPECT_OK(weftCommDestroy(rest), nullptr);
    }
  });
}

// Shrink after a death, twice: from a communicator of five, then from what was made of it.
TEST(Shrink, AfterTwoDeaths) {
  for (const char* transport : {"shm", "tcp"}) {
    run_processes(
        5,
        [](int rank, weftComm_t comm) {
          const auto die_or_fail = [](weftComm_t on, bool die) {
            int one = 1, sum = 0;
            WEFT_ASSERT_OK(weftAllReduce(&one, &sum, 1, weftInt32, weftSum, on, nullptr), on);
            if (die) {
              ::usleep(300000);  // the others are through with that call, too
              ::raise(SIGKILL);
            }
            std::vector<int> in(300000), out(in.size());
            EXPECT_NE(weftAllReduce(in.data(), out.data(), in.size(), weftInt32, weftSum, on, nullptr), weftSuccess);
          };
          die_or_fail(comm, rank == 0);
          int first[] = {0};
          weftComm_t four = nullptr, three = nullptr;
          WEFT_ASSERT_OK(weftCommShrink(comm, first, 1, &four, nullptr, WEFT_SHRINK_ABORT), comm);
          int number = -1, size = 0;
          WEFT_EXPECT_OK(weftCommUserRank(four, &number), four);
          EXPECT_EQ(number, rank - 1);
          die_or_fail(four, rank == 3);
          int second[] = {2};
          WEFT_ASSERT_OK(weftCommShrink(four, second, 1, &three, nullptr, WEFT_SHRINK_ABORT), four);
          WEFT_EXPECT_OK(weftCommCount(three, &size), three);
          EXPECT_EQ(size, 3);
          std::vector<int> in(100000, rank), out(in.size());
          WEFT_EXPECT_OK(weftAllReduce(in.data(), out.data(), in.size(), weftInt32, weftSum, three, nullptr), three);
          EXPECT_EQ(out, std::vector<int>(in.size(), 1 + 2 + 4));
          WEFT_EXPECT_OK(weftCommDestroy(three), nullptr);
          WEFT_EXPECT_OK(weftCommDestroy(four), nullptr);
        },
        {{"WEFT_TRANSPORT", transport}, {"WEFT_TIMEOUT", "15"}}, {0, 3});
  }
}

// B74: two communicators, two threads, started in opposite order on the two ranks.
TEST_P(Groups, TwoCommunicatorsOfTwoThreads) {
  const int calls = sanitized() || !test_full() ? 200 : 10000;
  run(2, [calls](int rank, weftComm_t comm) {
    weftComm_t second = nullptr;
    WEFT_ASSERT_OK(weftCommSplit(comm, 0, 0, &second, nullptr), comm);
    std::atomic<int> turn{0};
    const auto work = [&](weftComm_t on, int number) {
      while (turn.load() < number) std::this_thread::yield();
      turn.fetch_add(1);
      for (int i = 0; i < calls; ++i) {
        const size_t count = i % 50 == 7 ? 2 << 20 : 256;  // 8 MiB and 1 KiB
        std::vector<int> in(count, i + rank), out(count);
        WEFT_ASSERT_OK(weftAllReduce(in.data(), out.data(), count, weftInt32, weftSum, on, nullptr), on);
        ASSERT_EQ(out.back(), 2 * i + 1);
      }
    };
    std::thread a(work, comm, rank == 0 ? 0 : 1), b(work, second, rank == 0 ? 1 : 0);
    a.join();
    b.join();
    WEFT_EXPECT_OK(weftCommDestroy(second), nullptr);
  });
}

// B75: one communicator from two threads. Their calls are serialised; as both make the same ones, any order is right.
TEST_P(Groups, OneCommunicatorOfTwoThreads) {
  run(3, [](int rank, weftComm_t comm) {
    const auto work = [&] {
      for (int i = 0; i < 200; ++i) {
        int out = 0;
        WEFT_ASSERT_OK(weftAllReduce(&rank, &out, 1, weftInt32, weftSum, comm, nullptr), comm);
        ASSERT_EQ(out, 3);
      }
    };
    std::thread a(work), b(work);
    a.join();
    b.join();
    // Two threads that talk with different peers.
    const auto ping = [&](int peer) {
      for (int i = 0; i < 100; ++i) {
        int got = -1;
        WEFT_ASSERT_OK(weftGroupStart(), nullptr);
        WEFT_EXPECT_OK(weftSend(&i, 1, weftInt32, peer, comm, nullptr), comm);
        WEFT_EXPECT_OK(weftRecv(&got, 1, weftInt32, peer, comm, nullptr), comm);
        WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
        ASSERT_EQ(got, i);
      }
    };
    std::thread c(ping, (rank + 1) % 3), d(ping, (rank + 2) % 3);
    c.join();
    d.join();
  });
}

}  // namespace
}  // namespace weft::testing
