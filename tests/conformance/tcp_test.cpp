// What is particular to tcp: streams, back-pressure, and connections that strangers try to make.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>

#include "bootstrap/address.hpp"
#include "tests/conformance/suite.hpp"
#include "transports/connector.hpp"
#include "transports/tcp/tcp.hpp"
#include "transports/tcp/wire.hpp"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using tcp::TcpWire;

constexpr size_t kMiB = 1 << 20;
constexpr TransportEntry kTcp{"tcp", create_tcp};

std::pair<Fd, Fd> socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) ADD_FAILURE();
  return {Fd(fds[0]), Fd(fds[1])};
}

// Two wires in one thread, over socket pairs.
struct Pair {
  explicit Pair(uint32_t streams, Poller* poller = nullptr) : a(1, poller, nullptr), b(0, poller, nullptr) {
    for (uint32_t i = 0; i < streams; ++i) {
      auto [left, right] = socket_pair();
      a.adopt(i, std::move(left));
      b.adopt(i, std::move(right));
    }
  }
  bool run(const std::function<bool()>& done) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(kPatience));
    while (!done() && !deadline.passed()) {
      a.progress();
      b.progress();
    }
    return done();
  }
  TcpWire a, b;
};

TEST(Tcp, AllStreamsAreUsed) {
  for (const int streams : {1, 2, 5}) {
    run_ranks(
        kTcp, Mode::threads, 2,
        [&](Rank& rank) {
          std::deque<Outgoing> out;
          std::deque<Incoming> in;
          for (uint32_t i = 0; i < 8; ++i) {
            rank.wire().send(out.emplace_back(MessageId{1, i, 1}, 3 * kMiB + 5, i).request);
            rank.wire().recv(in.emplace_back(MessageId{1, i, 1}, 3 * kMiB + 5).request);
          }
          auto& wire = dynamic_cast<TcpWire&>(rank.wire());
          ASSERT_TRUE(rank.wait([&] {
            return wire.streams() == static_cast<size_t>(streams) &&
                   std::all_of(in.begin(), in.end(), [](auto& each) { return each.request.done; }) &&
                   std::all_of(out.begin(), out.end(), [](auto& each) { return each.request.done; });
          }));
          for (uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(in[i].memory.holds(i));
        },
        -1, [&](Config& config) { config.tcp_streams = streams; });
  }
}

TEST(Tcp, SmallBuffersWork) {
  run_ranks(
      kTcp, Mode::threads, 2,
      [&](Rank& rank) {
        Outgoing out({1, 0, 1}, 2 * kMiB, 3);
        Incoming in({1, 0, 1}, 2 * kMiB);
        rank.wire().send(out.request);
        rank.wire().recv(in.request);
        ASSERT_TRUE(rank.wait([&] { return in.request.done && out.request.done; }));
        EXPECT_TRUE(in.memory.holds(3));
      },
      -1, [&](Config& config) { config.tcp_buffer_bytes = 4096; });
}

// B96: one stream does not move at all for a while. It holds up what it was given, a fragment and what its socket
// holds, and nothing else.
TEST(Tcp, SlowStreamPacesNobody) {
  Pair pair(2);
  auto [near, relay_in] = socket_pair();
  auto [relay_out, far] = socket_pair();
  pair.a.adopt(2, std::move(near));
  pair.b.adopt(2, std::move(far));
  std::deque<Outgoing> out;
  std::deque<Incoming> in;
  constexpr uint32_t kMany = 24;
  for (uint32_t i = 0; i < kMany; ++i) {
    pair.b.recv(in.emplace_back(MessageId{1, i, 1}, kMiB).request);
    pair.a.send(out.emplace_back(MessageId{1, i, 1}, kMiB, i).request);
  }
  const auto done = [&] { return std::count_if(in.begin(), in.end(), [](auto& each) { return each.request.done; }); };
  EXPECT_TRUE(pair.run([&] { return done() >= kMany - 4; })) << done();
  const auto relay = [&] {
    std::vector<char> bytes(4096);
    const ssize_t got = ::recv(relay_in.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    for (ssize_t at = 0; at < got;) {
      const ssize_t put = ::send(relay_out.get(), bytes.data() + at, static_cast<size_t>(got - at), MSG_NOSIGNAL);
      if (put > 0) at += put;
      pair.b.progress();
    }
  };
  EXPECT_TRUE(pair.run([&] {
    relay();
    return done() == kMany;
  }));
  for (uint32_t i = 0; i < kMany; ++i) EXPECT_TRUE(in[i].memory.holds(i));
}

// Small messages do not wait behind large ones, and a small operation's large message overtakes a larger one's.
TEST(Tcp, SmallOvertakesLarge) {
  for (const uint32_t streams : {1u, 3u}) {
    Pair pair(streams);
    Outgoing bulk({1, 0, 1}, 64 * kMiB, 1), small({2, 0, 1}, 100, 2), medium({3, 0, 1}, kMiB, 3);
    Incoming bulk_in({1, 0, 1}, 64 * kMiB), small_in({2, 0, 1}, 100), medium_in({3, 0, 1}, kMiB);
    pair.b.recv(bulk_in.request);
    pair.a.send(bulk.request);
    pair.b.progress();
    pair.a.progress();
    pair.a.progress();
    pair.b.recv(small_in.request);
    pair.b.recv(medium_in.request);
    pair.a.send(small.request);
    pair.a.send(medium.request);
    EXPECT_TRUE(pair.run([&] { return small_in.request.done && medium_in.request.done; }));
    EXPECT_FALSE(bulk.request.done);
    EXPECT_TRUE(pair.run([&] { return bulk_in.request.done; }));
    EXPECT_TRUE(bulk_in.memory.holds(1));
    EXPECT_TRUE(small_in.memory.holds(2));
    EXPECT_TRUE(medium_in.memory.holds(3));
  }
}

// B82: a receiver that has nothing to receive reads nothing; what it keeps while it takes one message after the other
// stays small.
TEST(Tcp, MemoryIsBounded) {
  Pair pair(2);
  constexpr uint32_t kMany = 10000;
  std::deque<Outgoing> out;
  for (uint32_t i = 0; i < kMany; ++i) pair.a.send(out.emplace_back(MessageId{i, 0, 1}, 1000, i).request);
  for (int i = 0; i < 1000; ++i) {
    pair.a.progress();
    pair.b.progress();
  }
  EXPECT_FALSE(out.back().request.done) << "no back-pressure";
  EXPECT_EQ(pair.b.early_bytes(), 0u);
  size_t most = 0;
  for (uint32_t i = 0; i < kMany; ++i) {
    Incoming in(MessageId{i, 0, 1}, 1000);
    pair.b.recv(in.request);
    ASSERT_TRUE(pair.run([&] { return in.request.done; }));
    ASSERT_TRUE(in.memory.holds(i));
    most = std::max(most, pair.b.early_bytes());
  }
  EXPECT_LT(most, kMiB);
  EXPECT_EQ(pair.b.early_bytes(), 0u);
}

// A wire without requests sees at its ticks what its peer began and whether it lives, and keeps no more than a little.
TEST(Tcp, IdleWireLooksAtItsTicks) {
  auto [near, far] = socket_pair();
  auto peer = std::make_unique<TcpWire>(1, nullptr, nullptr);
  TcpWire wire(0, nullptr, nullptr);
  peer->adopt(0, std::move(near));
  wire.adopt(0, std::move(far));
  std::deque<Outgoing> out;
  for (uint32_t i = 0; i < 1000; ++i) peer->send(out.emplace_back(MessageId{i, 0, 1}, 1000, i).request);
  wire.progress();
  EXPECT_EQ(wire.early_bytes(), 0u);
  wire.tick();
  EXPECT_GT(wire.early_bytes(), 0u);
  for (int i = 0; i < 100; ++i) {
    peer->progress();
    wire.tick();
  }
  EXPECT_LT(wire.early_bytes(), 200u << 10);
  for (uint32_t i = 0; i < 1000; ++i) {
    Incoming in(MessageId{i, 0, 1}, 1000);
    wire.recv(in.request);
    for (int tries = 0; tries < 1000 && !in.request.done; ++tries) {
      peer->progress();
      wire.progress();
    }
    ASSERT_TRUE(in.memory.holds(i));
  }
  wire.tick();
  EXPECT_EQ(wire.error().kind, WireError::Kind::none);
  peer.reset();  // without a goodbye
  wire.tick();
  EXPECT_EQ(wire.error().kind, WireError::Kind::closed);
}

// Bytes that nobody wants yet wake a waiter once, not over and over.
TEST(Tcp, UnreadBytesDoNotSpin) {
  Result<Poller> poller = Poller::create();
  ASSERT_TRUE(poller.ok());
  Pair busy(1, &*poller), quiet(1, &*poller);
  Outgoing out({1, 0, 1}, 100, 1);
  Incoming never({1, 0, 1}, 100);
  busy.b.recv(never.request);
  quiet.a.send(out.request);
  int wakeups = 0;
  const auto until = Clock::now() + milliseconds(300);
  while (Clock::now() < until) {
    busy.b.progress();
    quiet.b.progress();
    if (busy.b.arm()) poller->wait(50);
    ++wakeups;
  }
  EXPECT_LT(wakeups, 20);
}

// ---

Secret secret_of(uint8_t byte) {
  Secret secret{};
  secret.fill(byte);
  return secret;
}

std::pair<sockaddr_storage, uint32_t> abstract_address(const std::string& name) {
  sockaddr_storage storage{};
  auto& address = reinterpret_cast<sockaddr_un&>(storage);
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {storage, static_cast<uint32_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

Fd listen_at(const sockaddr_storage& address, uint32_t bytes) {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
  EXPECT_EQ(::listen(fd.get(), 500), 0);
  return fd;
}

struct End {
  End(int rank, Fd listener, uint8_t secret = 7, uint64_t group = 1)
      : connector(
            context(rank, secret, group), 's', std::move(listener),
            [this](const Hello& hello, bool accepted, Fd fd) {
              last = hello;
              was_accepted = accepted;
              fds.push_back(std::move(fd));
            },
            [this](const Hello& hello, const Status& status) {
              last = hello;
              why = status.message();
            }) {}
  static TransportContext context(int rank, uint8_t secret, uint64_t group) {
    TransportContext context;
    context.rank = rank;
    context.size = 2;
    context.group = group;
    context.secret = secret_of(secret);
    return context;
  }
  std::vector<Fd> fds;
  Hello last;
  bool was_accepted = false;
  std::string why;
  Connector connector;
};

bool run_ends(std::initializer_list<End*> ends, const std::function<bool()>& done) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(kPatience));
  while (!done() && !deadline.passed()) {
    for (End* end : ends) end->connector.progress();
  }
  return done();
}

std::string unique_name() {
  static int count = 0;
  return fmt::format("weft-connector-test-{}-{}", ::getpid(), ++count);
}

TEST(ConnectorTest, ConnectsAndBytesFollow) {
  const auto [address, bytes] = abstract_address(unique_name());
  End acceptor(0, listen_at(address, bytes)), dialler(1, Fd());
  dialler.connector.dial(0, 3, address, bytes, Deadline::after(milliseconds(5000)));
  ASSERT_TRUE(run_ends({&acceptor, &dialler}, [&] { return !acceptor.fds.empty() && !dialler.fds.empty(); }));
  EXPECT_TRUE(acceptor.was_accepted);
  EXPECT_FALSE(dialler.was_accepted);
  EXPECT_EQ(acceptor.last.from, 1);
  EXPECT_EQ(acceptor.last.channel, 3u);
  EXPECT_EQ(dialler.last.to, 0);
  for (const auto& [from, to] : {std::pair(&acceptor, &dialler), std::pair(&dialler, &acceptor)}) {
    char text[6] = {};
    ASSERT_EQ(::send(from->fds[0].get(), "hello", 5, 0), 5);
    ASSERT_EQ(::recv(to->fds[0].get(), text, sizeof text, 0), 5);
    EXPECT_STREQ(text, "hello");
  }
}

TEST(ConnectorTest, WaitsForAListenerThatComesLater) {
  const auto [address, bytes] = abstract_address(unique_name());
  End dialler(1, Fd());
  dialler.connector.dial(0, 0, address, bytes, Deadline::after(milliseconds(20000)));
  const auto until = Clock::now() + milliseconds(150);
  run_ends({&dialler}, [&] { return Clock::now() > until; });
  EXPECT_EQ(dialler.why, "");
  End acceptor(0, listen_at(address, bytes));
  EXPECT_TRUE(run_ends({&acceptor, &dialler}, [&] { return !acceptor.fds.empty() && !dialler.fds.empty(); }));
}

// An acceptor that gave up on us, because we were busy elsewhere, is dialled again.
TEST(ConnectorTest, TriesAgainWhenDroppedDuringTheHandshake) {
  const auto [address, bytes] = abstract_address(unique_name());
  Fd listener = listen_at(address, bytes);
  End dialler(1, Fd());
  dialler.connector.dial(0, 0, address, bytes, Deadline::after(milliseconds(20000)));
  for (int dropped = 0; dropped < 3;) {
    dialler.connector.progress();
    if (Fd fd(::accept(listener.get(), nullptr, nullptr)); fd) ++dropped;
  }
  End acceptor(0, std::move(listener));
  EXPECT_TRUE(run_ends({&acceptor, &dialler}, [&] { return !acceptor.fds.empty() && !dialler.fds.empty(); }));
}

TEST(ConnectorTest, DeadlinePasses) {
  const auto [address, bytes] = abstract_address(unique_name());
  End dialler(1, Fd());
  dialler.connector.dial(0, 0, address, bytes, Deadline::after(milliseconds(200)));
  EXPECT_TRUE(run_ends({&dialler}, [&] { return !dialler.why.empty(); }));
  EXPECT_NE(dialler.why.find("rank 0"), std::string::npos) << dialler.why;
  EXPECT_NE(dialler.why.find("@weft-connector-test"), std::string::npos) << dialler.why;
  // B06: somebody listens, and is mute.
  Fd mute = listen_at(address, bytes);
  End other(1, Fd());
  other.connector.dial(0, 0, address, bytes, Deadline::after(milliseconds(200)));
  EXPECT_TRUE(run_ends({&other}, [&] { return !other.why.empty(); }));
}

// B05: another job's secret or group gets nowhere.
TEST(ConnectorTest, RefusesOthers) {
  for (const bool foreign_secret : {true, false}) {
    const auto [address, bytes] = abstract_address(unique_name());
    End acceptor(0, listen_at(address, bytes));
    End dialler(1, Fd(), foreign_secret ? 8 : 7, foreign_secret ? 1 : 2);
    dialler.connector.dial(0, 0, address, bytes, Deadline::after(milliseconds(500)));
    EXPECT_TRUE(run_ends({&acceptor, &dialler}, [&] { return !dialler.why.empty(); }));
    EXPECT_TRUE(acceptor.fds.empty());
    EXPECT_TRUE(dialler.fds.empty());
  }
}

// Hundreds of strangers, mute or babbling, keep nobody out.
TEST(ConnectorTest, StrangersDisturbNobody) {
  const auto [address, bytes] = abstract_address(unique_name());
  End acceptor(0, listen_at(address, bytes)), dialler(1, Fd());
  std::vector<Fd> strangers;
  for (int i = 0; i < 300; ++i) {
    Fd& fd = strangers.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    if (i % 3 == 0)
      ::send(fd.get(), "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything there is\r\n\r\n", 63, MSG_NOSIGNAL);
    acceptor.connector.progress();
  }
  const auto begin = Clock::now();
  dialler.connector.dial(0, 0, address, bytes, Deadline::after(milliseconds(20000)));
  EXPECT_TRUE(run_ends({&acceptor, &dialler}, [&] { return !acceptor.fds.empty() && !dialler.fds.empty(); }));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  // And each of them is dropped after a while.
  EXPECT_TRUE(run_ends({&acceptor}, [&] {
    char byte;
    return std::all_of(strangers.begin(), strangers.end(), [&](Fd& fd) {
      const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      return got >= 0 || errno != EAGAIN;
    });
  }));
}

}  // namespace
}  // namespace weft::testing
