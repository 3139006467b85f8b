// Results that are written where the receiver of the next message waits for them.
#include "kernels/reduce.hpp"
#include "memory/regions.hpp"
#include "tests/conformance/suite.hpp"

namespace weft::testing {
namespace {

constexpr size_t kCount = 200001, kBytes = kCount * sizeof(int32_t);  // no multiple of any block
constexpr size_t kShift = 3;  // elements by which the results lie apart from the operands' alignment

class Offers : public Suite {
 protected:
  // Both ranks add the other's operand to their own; the sum is also the message after it. `in_place`: it goes where
  // the operand came from. `after`: what the offer says of that. Gives whether it was written there.
  void exchange(Rank& rank, uint32_t sequence, bool in_place, bool stream, uint32_t after, bool* placed) {
    auto memory = allocate_region((2 * kCount + kShift) * sizeof(int32_t));
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    auto* operand = static_cast<int32_t*>(*memory);
    int32_t* landing = in_place ? operand : operand + kCount + kShift;
    std::vector<int32_t> own(kCount), sum(kCount + kShift);
    for (size_t i = 0; i < kCount; ++i) {
      operand[i] = static_cast<int32_t>(i * 3 + sequence) * (rank.rank() + 1);
      own[i] = static_cast<int32_t>(i) - rank.rank();
    }
    const Piece from{reinterpret_cast<std::byte*>(operand), kBytes}, to{reinterpret_cast<std::byte*>(landing), kBytes};
    const Piece acc{reinterpret_cast<std::byte*>(own.data()), kBytes};
    const Piece result{reinterpret_cast<std::byte*>(sum.data() + kShift), kBytes};
    const MessageId first{sequence, 0, 9}, second{sequence, 1, 9};

    rank.wire().offer(second, to, after);
    ASSERT_TRUE(rank.barrier());
    Forward forward{.wire = &rank.wire(), .id = second};
    SendRequest give, pass_on;
    RecvRequest take, land;
    give.id = take.id = first;
    pass_on.id = land.id = second;
    give.source = {&from, 1, kBytes};
    pass_on.source = {&result, 1, kBytes};
    take.sink = {.dst = &result,
                 .count = 1,
                 .bytes = kBytes,
                 .acc = &acc,
                 .reduce = reduce_function(weftInt32, weftSum),
                 .element = sizeof(int32_t),
                 .forward = &forward,
                 .streaming = stream ? reduce_function(weftInt32, weftSum, true) : nullptr};
    land.sink = {.dst = &to, .count = 1, .bytes = kBytes};
    rank.wire().recv(take);
    rank.wire().send(give);
    ASSERT_TRUE(rank.wait([&] { return take.done; }));
    *placed = forward.done;
    pass_on.placed = forward.done;
    rank.wire().send(pass_on);
    if (in_place) {
      ASSERT_TRUE(rank.wait([&] { return give.done; }));
    }
    rank.wire().recv(land);
    ASSERT_TRUE(rank.wait([&] { return give.done && pass_on.done && land.done; }));
    for (size_t i = 0; i < kCount; ++i) {
      const auto theirs = static_cast<int32_t>(i) - rank.other();
      ASSERT_EQ(landing[i], theirs + static_cast<int32_t>(i * 3 + sequence) * (rank.rank() + 1)) << i;
      ASSERT_EQ(sum[i + kShift], own[i] + static_cast<int32_t>(i * 3 + sequence) * (rank.other() + 1)) << i;
    }
    ASSERT_TRUE(rank.barrier());
    ASSERT_TRUE(free_region(*memory).ok());
  }
  static bool maps(Rank& rank) {
    const Capability can = rank.transport().capability();
    return can.maps_memory || can.same_process_only;
  }
};
WEFT_CONFORMANCE(Offers);

TEST_P(Offers, AreTaken) {
  run(2, [this](Rank& rank) {
    ASSERT_TRUE(rank.wait([&] { return rank.wire().connected(); }));
    bool placed = false;
    for (uint32_t i = 0; i < 6; ++i) {
      ASSERT_NO_FATAL_FAILURE(exchange(rank, i, false, i % 2 == 1, Wire::kAnyTime, &placed));
      EXPECT_EQ(placed, maps(rank));
    }
  });
}

// Where the operand still lies it may be written by its reader, and by nobody else.
TEST_P(Offers, InTheOperandsPlace) {
  run(2, [this](Rank& rank) {
    ASSERT_TRUE(rank.wait([&] { return rank.wire().connected(); }));
    bool placed = false;
    for (uint32_t i = 0; i < 4; ++i) {
      ASSERT_NO_FATAL_FAILURE(exchange(rank, i, true, i % 2 == 1, 0, &placed));
      EXPECT_EQ(placed, maps(rank));
      ASSERT_NO_FATAL_FAILURE(exchange(rank, 100 + i, true, i % 2 == 1, 5, &placed));
      EXPECT_FALSE(placed);
    }
  });
}

TEST_P(Offers, AreWithdrawn) {
  run(2, [](Rank& rank) {
    auto memory = allocate_region(kBytes);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    ASSERT_TRUE(rank.wait([&] { return rank.wire().connected(); }));
    const Piece all{static_cast<std::byte*>(*memory), kBytes};
    const MessageId id{1, 0, 9}, other_call{1, 0, 8};
    rank.wire().offer(id, all);
    ASSERT_TRUE(rank.barrier());
    EXPECT_EQ(rank.wire().open_target(other_call, kBytes, Wire::kAnyTime), nullptr);
    EXPECT_EQ(rank.wire().open_target(id, kBytes - 4, Wire::kAnyTime), nullptr);
    std::byte* target = rank.wire().open_target(id, kBytes, Wire::kAnyTime);
    EXPECT_EQ(target != nullptr, maps(rank));
    if (target != nullptr) rank.wire().close_target();
    ASSERT_TRUE(rank.barrier());
    if (rank.rank() == 0) rank.wire().cancel();
    rank.board().word[rank.rank()].store(1);
    while (rank.board().word[rank.other()].load() == 0) std::this_thread::yield();
    EXPECT_EQ(rank.wire().open_target(id, kBytes, Wire::kAnyTime), nullptr);
  });
}

// Memory that was offered is left alone once cancel() is over; but for one who is stopped in the midst of writing
// nobody waits for long.
TEST_P(Offers, CancelWaitsForAWriter) {
  for (const bool stopped : {false, true}) {
    if (stopped && one_process_only(entry().name)) continue;  // a thread is not stopped alone
    run(2, [stopped](Rank& rank) {
      auto memory = allocate_region(kBytes);
      ASSERT_TRUE(memory.ok()) << memory.status().message();
      ASSERT_TRUE(rank.wait([&] { return rank.wire().connected(); }));
      const MessageId id{1, 0, 9};
      rank.wire().offer(id, {static_cast<std::byte*>(*memory), kBytes});
      ASSERT_TRUE(rank.barrier());
      std::atomic<uint64_t>&opened = rank.board().word[0], &written = rank.board().word[1],
      &cancelled = rank.board().word[2];
      const auto until = [](const std::atomic<uint64_t>& word) {
        while (word.load() == 0) std::this_thread::yield();
      };
      if (rank.rank() == 1) {
        std::byte* target = rank.wire().open_target(id, kBytes, Wire::kAnyTime);
        opened.store(1);
        if (stopped) {
          until(cancelled);
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        written.store(1);
        if (target != nullptr) rank.wire().close_target();
        until(cancelled);
      } else {
        until(opened);
        const auto begin = Clock::now();
        rank.wire().cancel();
        const bool waited = written.load() == 1;
        cancelled.store(1);
        EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
        if (maps(rank)) {
          EXPECT_EQ(waited, !stopped);
        }
      }
    });
  }
}

}  // namespace
}  // namespace weft::testing
