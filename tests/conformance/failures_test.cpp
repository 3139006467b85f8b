// What every transport owes when something goes wrong: an error of the right kind at once, no hang, no stray write.
#include <csignal>
#include <deque>

#include "tests/conformance/suite.hpp"

namespace weft::testing {
namespace {

constexpr size_t kMiB = 1 << 20;
using Error = WireError::Kind;

class Failures : public Suite {
 protected:
  bool tells_both() const { return entry().name != "loop" && entry().name != "shm"; }
};
WEFT_CONFORMANCE(Failures);

// The wire forgets a test's requests when the test ends, as it must before their memory goes.
struct Forget {
  explicit Forget(Rank& rank) : rank(rank) {}
  ~Forget() { rank.wire().cancel(); }
  Rank& rank;
};

bool wait_error(Rank& rank, Wire& wire) {
  return rank.wait([&] { return wire.error().kind != Error::none; }, true);
}

struct Clash {
  const char* name;
  size_t sent, expected;
  bool foreign;  // another call's signature
  bool receive_first;
};

// B59, B60: rank 0 sends a message that is not the one that rank 1 expects under its id.
void clash(Rank& rank, const Clash& what, bool tells_both) {
  SCOPED_TRACE(what.name);
  const MessageId sent{4, 2, 1000}, expected{4, 2, what.foreign ? 2000u : 1000u};
  Outgoing out(sent, what.sent, 1);
  Incoming in(expected, what.expected);
  Incoming never({5, 0, 1}, 8);  // keeps rank 0 waiting for something
  in.memory.fill(99);
  Wire& wire = rank.wire();
  const Forget forget(rank);
  if (rank.rank() == 0) {
    if (what.receive_first) rank.barrier();
    wire.send(out.request);
    wire.recv(never.request);
    if (!what.receive_first) rank.barrier();
    if (!tells_both) return void(rank.wait([&] { return rank.board().word[0] == 1; }, true));
    ASSERT_TRUE(wait_error(rank, wire));
  } else {
    if (!what.receive_first) rank.barrier();
    wire.recv(in.request);
    if (what.receive_first) rank.barrier();
    ASSERT_TRUE(wait_error(rank, wire));
    rank.board().word[0] = 1;
    EXPECT_FALSE(in.request.done);
    EXPECT_TRUE(in.memory.holds(99)) << "written in spite of the error";
  }
  const WireError& error = wire.error();
  EXPECT_EQ(error.kind, what.foreign ? Error::mismatch : Error::length) << error.text;
  EXPECT_FALSE(error.text.empty());
  EXPECT_EQ(error.ours.key(), sent.key());
  EXPECT_EQ(error.theirs.key(), sent.key());
  if (what.foreign) {
    EXPECT_EQ(error.ours.signature, rank.rank() == 0 ? 1000u : 2000u);
    EXPECT_EQ(error.theirs.signature, rank.rank() == 0 ? 2000u : 1000u);
  }
}

TEST_P(Failures, ForeignOrWrongLength) {
  const Clash clashes[] = {
      {"small, foreign, receive first", 100, 100, true, true},
      {"small, foreign, message first", 100, 100, true, false},
      {"large, foreign, receive first", kMiB, kMiB, true, true},
      {"large, foreign, message first", kMiB, kMiB, true, false},
      {"small for large, receive first", 100, kMiB, false, true},
      {"small for large, message first", 100, kMiB, false, false},
      {"large for small, receive first", kMiB, 100, false, true},
      {"large for small, message first", kMiB, 100, false, false},
      {"large for small, foreign", kMiB, 100, true, true},
      {"two large, receive first", 2 * kMiB, kMiB, false, true},
      {"two large, message first", kMiB, 2 * kMiB, false, false},
      {"two small, receive first", 100, 60, false, true},
      {"two small, message first", 60, 100, false, false},
      {"something for nothing", 1, 0, false, true},
      {"nothing for something", 0, 1, false, false},
  };
  for (const Clash& what : clashes) {
    run(2, [&](Rank& rank) { clash(rank, what, tells_both()); });
  }
}

// B64: the peer is killed while a large message is under way.
TEST_P(Failures, PeerIsKilled) {
  if (mode() == Mode::threads) GTEST_SKIP() << "a thread cannot be killed";
  for (const bool receiving : {true, false}) {
    run_ranks(
        entry(), mode(), 2,
        [&](Rank& rank) {
          std::deque<Outgoing> out;
          std::deque<Incoming> in;
          for (uint32_t i = 0; i < 64; ++i) {
            const bool sends = (rank.rank() == 0) != receiving;
            if (sends) rank.wire().send(out.emplace_back(MessageId{1, i, 1}, 2 * kMiB, i).request);
            if (!sends) rank.wire().recv(in.emplace_back(MessageId{1, i, 1}, 2 * kMiB).request);
          }
          const auto done = [&] {
            size_t count = 0;
            for (auto& each : out) count += each.request.done;
            for (auto& each : in) count += each.request.done;
            return count;
          };
          if (rank.rank() == 1) {
            rank.wait([&] { return done() >= 3; });
            ::kill(::getpid(), SIGKILL);
          }
          Incoming never({2, 0, 1}, 8);
          const Forget forget(rank);
          rank.wire().recv(never.request);
          ASSERT_TRUE(wait_error(rank, rank.wire()));
          EXPECT_EQ(rank.wire().error().kind, Error::closed) << rank.wire().error().text;
        },
        1);
  }
}

// A peer that is killed while this rank sleeps wakes it.
TEST_P(Failures, PeerIsKilledWhileWeSleep) {
  if (mode() == Mode::threads) GTEST_SKIP() << "a thread cannot be killed";
  run_ranks(
      entry(), mode(), 2,
      [&](Rank& rank) {
        Outgoing hello({1, 0, 1}, 8, 1);
        Incoming in({1, 0, 1}, 8), never({2, 0, 1}, 8);
        rank.wire().send(hello.request);
        rank.wire().recv(in.request);
        ASSERT_TRUE(rank.wait([&] { return in.request.done && hello.request.done; }));
        if (rank.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
          ::kill(::getpid(), SIGKILL);
        }
        const Forget forget(rank);
        rank.wire().recv(never.request);
        ASSERT_TRUE(rank.wait_asleep([&] {
          rank.wire().tick();
          return rank.wire().error().kind != Error::none;
        }));
        EXPECT_EQ(rank.wire().error().kind, Error::closed);
      },
      1);
}

// What a rank sent before it left in order still arrives, and its leaving is no error until it is waited for.
TEST_P(Failures, PeerLeavesInOrder) {
  run(2, [](Rank& rank) {
    constexpr uint32_t kMany = 50;
    if (rank.rank() == 1) {
      Incoming first({1, 0, 1}, 8);
      rank.wire().recv(first.request);
      ASSERT_TRUE(rank.wait([&] { return first.request.done; }));
      std::deque<Outgoing> out;
      for (uint32_t i = 0; i < kMany; ++i) rank.wire().send(out.emplace_back(MessageId{2, i, 1}, 30, i).request);
      ASSERT_TRUE(rank.wait([&] { return out.back().request.done; }));
      rank.wire().close();
      rank.board().word[1] = 1;
      return;
    }
    Outgoing first({1, 0, 1}, 8, 1);
    rank.wire().send(first.request);
    ASSERT_TRUE(rank.wait([&] { return first.request.done && rank.board().word[1] == 1; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    rank.wire().tick();
    std::deque<Incoming> in;
    for (uint32_t i = 0; i < kMany; ++i) rank.wire().recv(in.emplace_back(MessageId{2, i, 1}, 30).request);
    ASSERT_TRUE(rank.wait([&] { return in.back().request.done; }));
    for (uint32_t i = 0; i < kMany; ++i) EXPECT_TRUE(in[i].memory.holds(i));
    rank.progress();
    EXPECT_EQ(rank.wire().error().kind, Error::none) << rank.wire().error().text;
    Incoming never({3, 0, 1}, 8);
    const Forget forget(rank);
    rank.wire().recv(never.request);
    ASSERT_TRUE(wait_error(rank, rank.wire()));
    EXPECT_EQ(rank.wire().error().kind, Error::closed) << rank.wire().error().text;
  });
}

// After cancel() nothing of the requests is touched any more.
TEST_P(Failures, CancelInTheMiddle) {
  run(2, [](Rank& rank) {
    std::deque<Outgoing> out;
    std::deque<Incoming> in;
    for (uint32_t i = 0; i < 16; ++i) {
      rank.wire().send(out.emplace_back(MessageId{1, i, 1}, 2 * kMiB, i).request);
      rank.wire().recv(in.emplace_back(MessageId{1, i, 1}, 2 * kMiB).request);
    }
    const auto some = [&] {
      size_t done = 0;
      for (auto& each : in) done += each.request.done;
      return done >= 2 || rank.wire().error().kind != Error::none;
    };
    ASSERT_TRUE(rank.wait(some, true));
    rank.wire().cancel();
    for (auto& each : in) each.memory.fill(55);
    const auto until = Clock::now() + std::chrono::milliseconds(100);
    while (Clock::now() < until) rank.progress();
    for (auto& each : in) EXPECT_TRUE(each.memory.holds(55));
  });
}

// A rank cancels; the other, with requests outstanding, learns of it.
TEST_P(Failures, PeerCancels) {
  run(2, [](Rank& rank) {
    Outgoing hello({1, 0, 1}, 8, 1);
    Incoming in({1, 0, 1}, 8), never({2, 0, 1}, kMiB);
    rank.wire().send(hello.request);
    rank.wire().recv(in.request);
    ASSERT_TRUE(rank.wait([&] { return in.request.done && hello.request.done; }));
    if (rank.rank() == 1) return rank.wire().cancel();
    const Forget forget(rank);
    rank.wire().recv(never.request);
    ASSERT_TRUE(rank.wait(
        [&] {
          rank.wire().tick();
          return rank.wire().error().kind != Error::none;
        },
        true));
    EXPECT_EQ(rank.wire().error().kind, Error::closed) << rank.wire().error().text;
  });
}

}  // namespace
}  // namespace weft::testing
