// Bytes that are no frames, or frames that are wrong, over a connection that has been accepted.
#include <sys/socket.h>

#include <cstring>
#include <deque>
#include <random>

#include "tests/conformance/ranks.hpp"
#include "transports/tcp/wire.hpp"

namespace weft::testing {
namespace {

using tcp::Frame;
using tcp::Kind;
using tcp::TcpWire;

constexpr size_t kLarge = 100000;

// A wire under attack: small and large messages being sent and received, and the attacker's ends of its two streams.
struct Target {
  explicit Target(uint32_t rounds_ahead = 0) : wire(1, nullptr, nullptr) {
    for (uint32_t channel = 0; channel < 2; ++channel) {
      int fds[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) ADD_FAILURE();
      wire.adopt(channel, Fd(fds[0]));
      attacker[channel] = Fd(fds[1]);
    }
    for (uint32_t i = 0; i < 4; ++i) {
      const size_t bytes = i % 2 == 0 ? 64 : kLarge;
      wire.recv(in.emplace_back(MessageId{1, i, 1}, bytes, i).request);
      wire.send(out.emplace_back(MessageId{1, i + 2, 1}, bytes, i, i).request);
    }
    for (uint32_t i = 0; i < rounds_ahead; ++i) wire.progress();
  }
  void feed(int channel, const void* bytes, size_t size) {
    const char* at = static_cast<const char*>(bytes);
    for (int tries = 0; size > 0 && tries < 100; ++tries) {
      const ssize_t put = ::send(attacker[channel].get(), at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (put > 0) at += put, size -= static_cast<size_t>(put);
      wire.progress();
      char sink[65536];
      for (Fd& fd : attacker) {
        while (::recv(fd.get(), sink, sizeof sink, MSG_DONTWAIT) > 0) continue;
      }
    }
  }
  void feed(int channel, const Frame& frame) { feed(channel, &frame, sizeof frame); }
  void expect_sound() {
    for (auto& each : in) EXPECT_TRUE(each.memory.guards_whole());
    for (auto& each : out) EXPECT_TRUE(each.memory.guards_whole());
  }
  std::deque<Incoming> in;
  std::deque<Outgoing> out;
  TcpWire wire;
  Fd attacker[2];
};

Frame frame_of(Kind kind, uint32_t index, uint32_t length, uint64_t offset, uint64_t total) {
  Frame frame;
  frame.kind = kind;
  frame.sequence = 1;
  frame.index = index;
  frame.signature = 1;
  frame.length = length;
  frame.offset = offset;
  frame.total = total;
  return frame;
}

TEST(TcpFuzz, HeadersAreChecked) {
  EXPECT_EQ(tcp::fault(frame_of(Kind::eager, 0, 64, 0, 64)), nullptr);
  EXPECT_EQ(tcp::fault(frame_of(Kind::data, 0, 64, kLarge - 64, kLarge)), nullptr);
  EXPECT_EQ(tcp::fault(frame_of(Kind::clear, 0, 0, 64, kLarge)), nullptr);
  EXPECT_EQ(tcp::fault(frame_of(Kind::bye, 0, 0, 0, 0)), nullptr);
  Frame wrong = frame_of(Kind::bye, 0, 0, 0, 0);
  wrong.magic ^= 0x01000000;
  EXPECT_NE(tcp::fault(wrong), nullptr);
  wrong = frame_of(static_cast<Kind>(0), 0, 0, 0, 0);
  EXPECT_NE(tcp::fault(wrong), nullptr);
  wrong = frame_of(static_cast<Kind>(200), 0, 0, 0, 0);
  EXPECT_NE(tcp::fault(wrong), nullptr);
  EXPECT_NE(tcp::fault(frame_of(Kind::eager, 0, tcp::kEagerBytes + 1, 0, tcp::kEagerBytes + 1)), nullptr);
  EXPECT_NE(tcp::fault(frame_of(Kind::eager, 0, 63, 0, 64)), nullptr);
  EXPECT_NE(tcp::fault(frame_of(Kind::eager, 0, 64, 1, 64)), nullptr);
  EXPECT_NE(tcp::fault(frame_of(Kind::data, 0, 65, kLarge - 64, kLarge)), nullptr);
  EXPECT_NE(tcp::fault(frame_of(Kind::data, 0, 65, ~uint64_t{0} - 3, kLarge)), nullptr);
  EXPECT_NE(tcp::fault(frame_of(Kind::data, 0, 0, 0, kLarge)), nullptr);
  EXPECT_NE(tcp::fault(frame_of(Kind::clear, 0, 1, 64, kLarge)), nullptr);
  EXPECT_NE(tcp::fault(frame_of(Kind::clear, 0, 0, 0, kLarge)), nullptr);
  EXPECT_NE(tcp::fault(frame_of(Kind::refuse, 0, 5, 0, 0)), nullptr);
}

TEST(TcpFuzz, SaneFramesThatDoNotFit) {
  struct Attack {
    const char* name;
    int channel;
    Frame frame;
    int times;
    WireError::Kind expected;
  };
  const Attack attacks[] = {
      {"a fragment of nothing", 1, frame_of(Kind::data, 77, 64, 0, kLarge), 1, WireError::Kind::broken},
      {"a fragment of a small message", 1, frame_of(Kind::data, 0, 64, 0, kLarge), 1, WireError::Kind::length},
      {"a fragment of another length", 1, frame_of(Kind::data, 1, 64, 0, 2 * kLarge), 1, WireError::Kind::length},
      {"more fragments than fit", 1, frame_of(Kind::data, 1, kLarge / 2, 64, kLarge), 3, WireError::Kind::broken},
      {"a small message for a large one", 0, frame_of(Kind::eager, 1, 64, 0, 64), 1, WireError::Kind::length},
      {"a small message twice", 0, frame_of(Kind::eager, 50, 64, 0, 64), 2, WireError::Kind::broken},
      {"a clear of another length", 0, frame_of(Kind::clear, 3, 0, 64, kLarge + 1), 1, WireError::Kind::length},
  };
  for (const Attack& attack : attacks) {
    SCOPED_TRACE(attack.name);
    Target target;
    for (int i = 0; i < attack.times; ++i) {
      target.feed(attack.channel, attack.frame);
      const std::vector<char> payload(attack.frame.length, 'x');
      target.feed(attack.channel, payload.data(), payload.size());
    }
    EXPECT_EQ(target.wire.error().kind, attack.expected) << target.wire.error().text;
    target.expect_sound();
  }
}

// The end of a stream in the middle of a header or a payload is a death.
TEST(TcpFuzz, EndsInTheMiddle) {
  for (const size_t bytes : {size_t{1}, size_t{39}, size_t{40}, size_t{70}}) {
    Target target;
    std::vector<char> message(sizeof(Frame) + 64, 'x');
    const Frame frame = frame_of(Kind::eager, 0, 64, 0, 64);
    std::memcpy(message.data(), &frame, sizeof frame);
    target.feed(0, message.data(), bytes);
    target.attacker[0].reset();
    for (int i = 0; i < 10; ++i) target.wire.progress();
    EXPECT_EQ(target.wire.error().kind, WireError::Kind::closed) << target.wire.error().text;
    EXPECT_FALSE(target.in[0].request.done);
  }
}

// Random frames, mostly sane ones with a field changed, in random cuts, and plain noise.
TEST(TcpFuzz, RandomFrames) {
  for (uint32_t seed = 1; seed <= 1000; ++seed) {
    std::mt19937 random(seed);
    Target target(seed % 2);
    for (int i = 0; i < 12 && target.wire.error().kind == WireError::Kind::none; ++i) {
      const uint32_t index = random() % 7;
      const auto kind = static_cast<Kind>(1 + random() % 6);
      const bool large = index % 2 == 1;
      const uint64_t total = large ? kLarge : 64;
      Frame frame = frame_of(kind, index, 0, 0, total);
      if (kind == Kind::eager) frame.length = 64, frame.total = 64;
      if (kind == Kind::data) frame.offset = random() % total, frame.length = 1 + random() % 4096;
      if (kind == Kind::clear) frame.offset = 64;
      if (random() % 4 == 0) {
        auto* bytes = reinterpret_cast<unsigned char*>(&frame);
        bytes[random() % sizeof frame] = static_cast<unsigned char>(random());
      }
      std::vector<unsigned char> message(sizeof frame + std::min<uint32_t>(frame.length, 1 << 16));
      for (auto& byte : message) byte = static_cast<unsigned char>(random());
      if (random() % 50 != 0) std::memcpy(message.data(), &frame, sizeof frame);
      const size_t cut = random() % message.size();
      const int channel = kind == Kind::data && random() % 4 != 0 ? 1 : 0;
      target.feed(channel, message.data(), cut);
      target.feed(channel, message.data() + cut, message.size() - cut);
    }
    target.expect_sound();
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::testing
