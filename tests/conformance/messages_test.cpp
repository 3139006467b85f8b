// What every transport owes: all messages arrive whole, where they belong, in any order of requests.
#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include "memory/regions.hpp"
#include "tests/conformance/suite.hpp"

namespace weft::testing {
namespace {

constexpr size_t kMiB = 1 << 20;

class Messages : public Suite {};
WEFT_CONFORMANCE(Messages);

std::vector<size_t> sizes(Rank& rank) {
  const size_t eager = std::max<size_t>(rank.transport().capability().eager_bytes, 64);
  return {0, 1, 7, 8, 40, 41, 4096, eager - 1, eager, eager + 1, kMiB, 5 * kMiB + 3};
}

uint64_t seed_of(int from, int to, uint32_t sequence, uint32_t index) {
  return static_cast<uint64_t>(from) * 7 + static_cast<uint64_t>(to) * 3 + uint64_t{sequence} * 5 +
         uint64_t{index} * 11 + 1;
}

template <typename Requests>
bool all_done(const Requests& requests) {
  return std::all_of(requests.begin(), requests.end(), [](const auto& each) { return each.request.done; });
}

// Every rank sends every size to every other, all at once; receives are posted before or after the messages can come.
void everything_to_everyone(Rank& rank, bool receives_first, uint64_t cuts) {
  std::deque<Outgoing> out;
  std::deque<Incoming> in;
  const std::vector<size_t> lengths = sizes(rank);
  for (int peer = 0; peer < rank.size(); ++peer) {
    if (peer == rank.rank()) continue;
    for (uint32_t i = 0; i < lengths.size(); ++i) {
      const MessageId id{1, i, 77};
      const uint64_t salt = cuts == 0 ? 0 : cuts + i;
      out.emplace_back(id, lengths[i], seed_of(rank.rank(), peer, 1, i), salt);
      in.emplace_back(id, lengths[i], salt == 0 ? 0 : salt + 100);
    }
  }
  const auto post = [&](auto& messages, auto each) {
    size_t at = 0;
    for (int peer = 0; peer < rank.size(); ++peer) {
      if (peer == rank.rank()) continue;
      for (size_t i = 0; i < lengths.size(); ++i) each(rank.wire(peer), messages[at++].request);
    }
  };
  const auto send = [&] { post(out, [](Wire& wire, SendRequest& request) { wire.send(request); }); };
  const auto receive = [&] { post(in, [](Wire& wire, RecvRequest& request) { wire.recv(request); }); };
  if (receives_first) {
    receive();
    ASSERT_TRUE(rank.barrier());
    send();
  } else {
    send();
    ASSERT_TRUE(rank.barrier());
    receive();
  }
  ASSERT_TRUE(rank.wait([&] { return all_done(out) && all_done(in); }));
  size_t at = 0, bytes = std::accumulate(lengths.begin(), lengths.end(), size_t{0});
  for (int peer = 0; peer < rank.size(); ++peer) {
    if (peer == rank.rank()) continue;
    for (uint32_t i = 0; i < lengths.size(); ++i, ++at) {
      EXPECT_TRUE(in[at].memory.holds(seed_of(peer, rank.rank(), 1, i))) << lengths[i] << " bytes from rank " << peer;
      EXPECT_TRUE(out[at].memory.holds(seed_of(rank.rank(), peer, 1, i)));
    }
    const WireStats& stats = rank.wire(peer).stats();
    EXPECT_EQ(stats.messages_sent, lengths.size());
    EXPECT_EQ(stats.messages_received, lengths.size());
    EXPECT_EQ(stats.bytes_sent, bytes);
    EXPECT_EQ(stats.bytes_received, bytes);
  }
}

TEST_P(Messages, ReceivesPostedFirst) {
  run(2, [](Rank& rank) { everything_to_everyone(rank, true, 0); });
}
TEST_P(Messages, MessagesComeFirst) {
  run(2, [](Rank& rank) { everything_to_everyone(rank, false, 0); });
}
TEST_P(Messages, PiecesCutDifferentlyAtBothEnds) {
  for (const uint64_t cuts : {1, 1000, 2000}) {
    run(2, [&](Rank& rank) { everything_to_everyone(rank, cuts != 1000, cuts); });
  }
}
TEST_P(Messages, FourRanks) {
  run(4, [](Rank& rank) { everything_to_everyone(rank, rank.rank() % 2 == 0, 5); });
}

void sum_floats(void* dst, const void* a, const void* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float x, y;
    std::memcpy(&x, static_cast<const char*>(a) + 4 * i, 4);
    std::memcpy(&y, static_cast<const char*>(b) + 4 * i, 4);
    x += y;
    std::memcpy(static_cast<char*>(dst) + 4 * i, &x, 4);
  }
}

float value(int rank, uint32_t index, size_t i) {
  return static_cast<float>((i * 3 + index + 17 * static_cast<size_t>(rank)) % 4096);
}

void put_values(std::byte* to, size_t count, int rank, uint32_t index) {
  for (size_t i = 0; i < count; ++i) {
    const float x = value(rank, index, i);
    std::memcpy(to + 4 * i, &x, 4);
  }
}

// dst = acc + what comes in, with acc apart from dst and the same, in pieces that differ from the sender's.
TEST_P(Messages, Reduce) {
  run(2, [](Rank& rank) {
    const std::vector<size_t> counts = {1, 2, 10, 1024, 8191, 8192, 8193, 70001, kMiB / 4 + 1};
    std::deque<Outgoing> out;
    std::deque<Incoming> in;
    std::deque<Guarded> accumulators;
    std::deque<std::vector<Piece>> pieces;
    for (uint32_t i = 0; i < 2 * counts.size(); ++i) {
      const size_t count = counts[i / 2];
      const bool apart = i % 2 == 0;
      const MessageId id{3, i, 9};
      Outgoing& sent = out.emplace_back(id, 4 * count, 0);
      put_values(sent.memory.data(), count, rank.rank(), i);
      sent.pieces = cut(sent.memory.data(), 4 * count, i % 5, 4);  // what is combined comes in whole elements
      sent.request.source.pieces = sent.pieces.data();
      sent.request.source.count = static_cast<uint32_t>(sent.pieces.size());
      Incoming& message = in.emplace_back(id, 4 * count);
      message.pieces = cut(message.memory.data(), 4 * count, i % 7, 4);
      message.request.sink.dst = message.pieces.data();
      message.request.sink.count = static_cast<uint32_t>(message.pieces.size());
      Guarded& accumulator = accumulators.emplace_back(4 * count, i % 3);
      std::byte* acc = apart ? accumulator.data() : message.memory.data();
      put_values(acc, count, rank.rank(), i);
      pieces.push_back(cut(acc, 4 * count, i % 7, 4));
      message.request.sink.acc = pieces.back().data();
      message.request.sink.reduce = sum_floats;
      message.request.sink.element = 4;
    }
    if (rank.rank() == 0) {
      for (auto& each : out) rank.wire().send(each.request);
      ASSERT_TRUE(rank.barrier());
      for (auto& each : in) rank.wire().recv(each.request);
    } else {
      for (auto& each : in) rank.wire().recv(each.request);
      ASSERT_TRUE(rank.barrier());
      for (auto& each : out) rank.wire().send(each.request);
    }
    ASSERT_TRUE(rank.wait([&] { return all_done(out) && all_done(in); }));
    for (uint32_t i = 0; i < in.size(); ++i) {
      EXPECT_TRUE(in[i].memory.guards_whole());
      for (size_t k = 0; k < counts[i / 2]; ++k) {
        float got;
        std::memcpy(&got, in[i].memory.data() + 4 * k, 4);
        ASSERT_EQ(got, value(0, i, k) + value(1, i, k)) << "message " << i << ", element " << k;
      }
    }
  });
}

// Eight operations, each in its own order of indices, interleaved differently at sender and receiver.
void interleave(Rank& rank, std::vector<uint32_t> sequences, uint32_t per_operation, size_t most) {
  std::deque<Outgoing> out;
  std::deque<Incoming> in;
  std::mt19937 lengths(5);
  for (const uint32_t sequence : sequences) {
    for (uint32_t i = 0; i < per_operation; ++i) {
      const size_t bytes = i % 16 == 3 ? lengths() % most : lengths() % 600;
      out.emplace_back(MessageId{sequence, i, sequence ^ 0x55}, bytes, seed_of(rank.rank(), rank.other(), sequence, i));
      in.emplace_back(MessageId{sequence, i, sequence ^ 0x55}, bytes);
    }
  }
  // Takes the next message of an operation chosen at random; `receive` and `send` run in different orders.
  const auto order = [&](uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<uint32_t> next(sequences.size(), 0);
    std::vector<size_t> result;
    while (result.size() < out.size()) {
      const size_t operation = random() % sequences.size();
      if (next[operation] < per_operation) result.push_back(operation * per_operation + next[operation]++);
    }
    return result;
  };
  const auto sends = order(static_cast<uint32_t>(rank.rank()) + 1),
             receives = order(static_cast<uint32_t>(rank.rank()) + 50);
  for (size_t i = 0; i < sends.size(); ++i) {
    rank.wire().send(out[sends[i]].request);
    rank.wire().recv(in[receives[i]].request);
    if (i % 10 == 0) rank.progress();
  }
  ASSERT_TRUE(rank.wait([&] { return all_done(out) && all_done(in); }));
  for (auto& each : in) {
    const MessageId& id = each.request.id;
    EXPECT_TRUE(each.memory.holds(seed_of(rank.other(), rank.rank(), id.sequence, id.index)));
  }
}

TEST_P(Messages, OperationsInterleave) {
  run(2, [](Rank& rank) { interleave(rank, {10, 11, 12, 13, 14, 15, 16, 17}, 150, 100000); });
}

// Sequence numbers of both kinds at the places where they wrap around.
TEST_P(Messages, SequencesWrapAndKindsStayApart) {
  const uint32_t other = MessageId::kPointToPoint;
  run(2, [&](Rank& rank) { interleave(rank, {other - 1, 0, 1, other | 0, other | 1, ~0u, other - 2}, 40, 70000); });
}

// A receive whose message is far behind others that nobody has posted receives for.
TEST_P(Messages, LaterOperationOvertakes) {
  run(2, [](Rank& rank) {
    constexpr uint32_t kAhead = 200;
    std::deque<Outgoing> out;
    std::deque<Incoming> in;
    for (uint32_t i = 0; i < kAhead; ++i) {
      out.emplace_back(MessageId{1, i, 1}, 100, i);
      in.emplace_back(MessageId{1, i, 1}, 100);
    }
    Outgoing last(MessageId{2, 0, 1}, 50, 9);
    Incoming first(MessageId{2, 0, 1}, 50);
    if (rank.rank() == 0) {
      for (auto& each : out) rank.wire().send(each.request);
      rank.wire().send(last.request);
      ASSERT_TRUE(rank.wait([&] { return all_done(out) && last.request.done; }));
    } else {
      rank.wire().recv(first.request);
      ASSERT_TRUE(rank.wait([&] { return first.request.done; }));
      for (auto& each : in) rank.wire().recv(each.request);
      ASSERT_TRUE(rank.wait([&] { return all_done(in); }));
      for (uint32_t i = 0; i < kAhead; ++i) EXPECT_TRUE(in[i].memory.holds(i));
      EXPECT_TRUE(first.memory.holds(9));
    }
  });
}

// B82: a sender runs ahead of a receiver that is elsewhere.
TEST_P(Messages, SenderRunsAhead) {
  run(2, [](Rank& rank) {
    constexpr uint32_t kMany = 10000;
    if (rank.rank() == 0) {
      std::deque<Outgoing> out;
      for (uint32_t i = 0; i < kMany; ++i) {
        rank.wire().send(out.emplace_back(MessageId{i, 0, 1}, 500, i).request);
        if (i % 100 == 0) rank.progress();
      }
      ASSERT_TRUE(rank.wait([&] { return all_done(out); }));
    } else {
      ASSERT_TRUE(rank.wire().peer() == 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      for (uint32_t i = 0; i < kMany; ++i) {
        Incoming in(MessageId{i, 0, 1}, 500);
        rank.wire().recv(in.request);
        ASSERT_TRUE(rank.wait([&] { return in.request.done; }));
        ASSERT_TRUE(in.memory.holds(i)) << "message " << i;
      }
    }
  });
}

// Memory that was shown before messages come from it; it is shown once, however often one asks.
TEST_P(Messages, FromMemoryThatWasShown) {
  run(2, [](Rank& rank) {
    constexpr size_t kBytes = 3 * kMiB;
    for (uint32_t round = 0; round < 3; ++round) {
      auto memory = allocate_region(kBytes);
      ASSERT_TRUE(memory.ok()) << memory.status().message();
      const auto region = find_region(*memory, kBytes);
      ASSERT_NE(region, nullptr);
      rank.board().word[rank.rank()].store(region->id);
      ASSERT_TRUE(rank.wait([&] { return rank.wire().show(region); }));
      EXPECT_TRUE(rank.wire().show(region));
      ASSERT_TRUE(rank.barrier());
      const auto theirs = static_cast<uint32_t>(rank.board().word[rank.other()].load());
      ASSERT_TRUE(rank.wait([&] { return rank.wire().has_come(theirs); }));
      Incoming in(MessageId{round, 0, 1}, kBytes);
      rank.wire().recv(in.request);
      for (size_t i = 0; i < kBytes; ++i) region->base[i] = pattern(round + 10 * rank.rank(), i);
      const Piece piece{region->base, kBytes};
      SendRequest out;
      out.id = MessageId{round, 0, 1};
      out.source = {&piece, 1, kBytes};
      rank.wire().send(out);
      ASSERT_TRUE(rank.wait([&] { return in.request.done && out.done; }));
      EXPECT_TRUE(in.memory.holds(round + 10 * rank.other()));
      ASSERT_TRUE(rank.barrier());
      ASSERT_TRUE(free_region(*memory).ok());
    }
  });
}

// A sleeping receiver is woken by a message, and one that waits for a long time does not wake over and over.
TEST_P(Messages, SleepsAndWakes) {
  run(2, [](Rank& rank) {
    for (uint32_t i = 0; i < 5; ++i) {
      const size_t bytes = i % 2 == 0 ? 8 : 3 * kMiB;
      Outgoing out(MessageId{i, 0, 1}, bytes, i);
      Incoming in(MessageId{i, 0, 1}, bytes);
      int wakeups = 0;
      const auto begin = Clock::now();
      if (rank.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        rank.wire().send(out.request);
        ASSERT_TRUE(rank.wait_asleep([&] { return out.request.done; }));
        rank.wire().recv(in.request);
        ASSERT_TRUE(rank.wait_asleep([&] { return in.request.done; }));
      } else {
        rank.wire().recv(in.request);
        ASSERT_TRUE(rank.wait_asleep([&] { return in.request.done; }, &wakeups));
        if (bytes == 8) {
          EXPECT_LT(wakeups, 40);
        }
        rank.wire().send(out.request);
        ASSERT_TRUE(rank.wait_asleep([&] { return out.request.done; }));
      }
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
      EXPECT_TRUE(in.memory.holds(i));
    }
  });
}

// Both ranks asleep most of the time, small and large messages both ways: no wake-up is missed.
TEST_P(Messages, PingPongAsleep) {
  run(2, [](Rank& rank) {
    for (uint32_t i = 0; i < 300; ++i) {
      const size_t bytes = i % 10 == 9 ? 200000 : 8;
      Outgoing out(MessageId{i, 0, 1}, bytes, i);
      Incoming in(MessageId{i, 0, 1}, bytes);
      rank.wire().recv(in.request);
      if (rank.rank() == 1) {
        ASSERT_TRUE(rank.wait_asleep([&] { return in.request.done; }));
      }
      rank.wire().send(out.request);
      ASSERT_TRUE(rank.wait_asleep([&] { return in.request.done && out.request.done; }));
      ASSERT_TRUE(in.memory.holds(i));
    }
  });
}

}  // namespace
}  // namespace weft::testing
