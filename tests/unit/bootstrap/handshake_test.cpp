#include "bootstrap/handshake.hpp"

#include <gtest/gtest.h>

#include <random>

namespace weft {
namespace {

std::span<const uint8_t> span_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Feeds as many of the bytes as are wanted, message by message; what is left stays in `bytes`.
Status feed_all(Handshake& to, std::string& bytes) {
  while (to.wants() > 0 && bytes.size() >= to.wants()) {
    const std::string part = bytes.substr(0, to.wants());
    bytes.erase(0, part.size());
    WEFT_RETURN_IF_ERROR(to.feed(span_of(part)));
  }
  return {};
}

const Secret kSecret{1, 2, 3};
const Hello kHello{.purpose = 't', .group = 77, .from = 3, .to = 5, .channel = 9};

struct Outcome {
  Status connector, acceptor;
  bool both_done = false;
};

// Runs both sides; `tamper` may change what travels (direction 0: to the acceptor).
template <typename Tamper>
Outcome run(Handshake& connector, Handshake& acceptor, Tamper tamper) {
  Outcome out;
  for (int round = 0; round < 3; ++round) {
    std::string to_acceptor = connector.take_output();
    tamper(0, to_acceptor);
    if (out.acceptor.ok()) out.acceptor = feed_all(acceptor, to_acceptor);
    std::string to_connector = acceptor.take_output();
    tamper(1, to_connector);
    if (out.connector.ok()) out.connector = feed_all(connector, to_connector);
  }
  out.both_done = connector.done() && acceptor.done();
  return out;
}

const auto kHonest = [](int, std::string&) {};

TEST(Handshake, Succeeds) {
  auto connector = Handshake::connect(kSecret, kHello);
  auto acceptor = Handshake::accept(kSecret, 77, 5);
  const Outcome out = run(connector, acceptor, kHonest);
  EXPECT_TRUE(out.both_done) << out.connector.message() << out.acceptor.message();
  EXPECT_EQ(acceptor.hello().from, 3);
  EXPECT_EQ(acceptor.hello().channel, 9u);
  EXPECT_EQ(acceptor.hello().purpose, 't');
  EXPECT_EQ(connector.wants(), 0u);
}

TEST(Handshake, LeavesWhatFollows) {
  auto connector = Handshake::connect(kSecret, kHello);
  auto acceptor = Handshake::accept(kSecret, 77, 5);
  std::string stream = connector.take_output();
  ASSERT_TRUE(feed_all(acceptor, stream).ok());
  std::string reply = acceptor.take_output() + "more";
  ASSERT_TRUE(feed_all(connector, reply).ok());
  EXPECT_EQ(reply, "more");
  stream = connector.take_output() + "data";
  ASSERT_TRUE(feed_all(acceptor, stream).ok());
  EXPECT_TRUE(acceptor.done());
  EXPECT_EQ(stream, "data");
}

TEST(Handshake, WrongSecret) {
  auto connector = Handshake::connect(kSecret, kHello);
  auto acceptor = Handshake::accept(Secret{9}, 77, 5);
  const Outcome out = run(connector, acceptor, kHonest);
  EXPECT_NE(out.connector.message().find("secret"), std::string::npos) << out.connector.message();
  EXPECT_FALSE(connector.done() || acceptor.done());
}

TEST(Handshake, AcceptorDoesNotTrustAnUnprovenPeer) {
  auto connector = Handshake::connect(kSecret, kHello);
  auto acceptor = Handshake::accept(kSecret, 77, 5);
  std::string hello = connector.take_output();
  ASSERT_TRUE(feed_all(acceptor, hello).ok());
  std::string forged(acceptor.wants(), 'x');
  const Status status = feed_all(acceptor, forged);
  EXPECT_NE(status.message().find("secret"), std::string::npos);
  EXPECT_FALSE(acceptor.done());
}

TEST(Handshake, WrongGroupIsToldToBoth) {
  auto connector = Handshake::connect(kSecret, kHello);
  auto acceptor = Handshake::accept(kSecret, 78, 5);
  const Outcome out = run(connector, acceptor, kHonest);
  for (const auto& status : {out.connector, out.acceptor}) {
    EXPECT_NE(status.message().find("another job or communicator"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("000000000000004d"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("000000000000004e"), std::string::npos) << status.message();
  }
}

TEST(Handshake, WrongRankIsToldToBoth) {
  auto connector = Handshake::connect(kSecret, kHello);
  auto acceptor = Handshake::accept(kSecret, 77, 6);
  const Outcome out = run(connector, acceptor, kHonest);
  EXPECT_EQ(out.connector.message(), "the peer is rank 6, not rank 5");
  EXPECT_EQ(out.acceptor.message(), "the peer wants rank 5, this is rank 6");
}

// B73: the version stands at bytes 8 and 9 of hello and reply.
TEST(Handshake, OtherVersionIsToldToBoth) {
  auto connector = Handshake::connect(kSecret, kHello);
  auto acceptor = Handshake::accept(kSecret, 77, 5);
  const Outcome out = run(connector, acceptor, [](int direction, std::string& bytes) {
    if (direction == 0 && bytes.size() > 8) bytes[8] = Handshake::kVersion + 1;
  });
  EXPECT_NE(out.acceptor.message().find("version 2, this process version 1"), std::string::npos);
  EXPECT_FALSE(out.both_done);

  auto newer = Handshake::connect(kSecret, kHello);
  auto older = Handshake::accept(kSecret, 77, 5);
  const Outcome seen = run(newer, older, [](int direction, std::string& bytes) {
    if (bytes.size() > 8) bytes[8] = direction == 0 ? Handshake::kVersion + 1 : Handshake::kVersion + 2;
  });
  EXPECT_NE(seen.connector.message().find("version 3, this process version 1"), std::string::npos)
      << seen.connector.message();
}

TEST(Handshake, OtherProtocolsAreNotPeers) {
  for (const std::string greeting :
       {"SSH-2.0-OpenSSH_9.2p1", "HTTP/1.1 400 Bad Request", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x01"}) {
    std::string bytes = greeting + std::string(64, '\0');
    auto connector = Handshake::connect(kSecret, kHello);
    EXPECT_NE(feed_all(connector, bytes).message().find("not a Weft peer"), std::string::npos);
    bytes = greeting + std::string(64, '\0');
    auto acceptor = Handshake::accept(kSecret, 77, 5);
    EXPECT_NE(feed_all(acceptor, bytes).message().find("not a Weft peer"), std::string::npos);
    EXPECT_TRUE(acceptor.take_output().empty());
  }
}

TEST(Handshake, ReflectionIsRefused) {
  auto connector = Handshake::connect(kSecret, kHello);
  std::string own = connector.take_output() + std::string(64, 'x');
  EXPECT_FALSE(feed_all(connector, own).ok());
}

TEST(Handshake, NotAskedFor) {
  auto acceptor = Handshake::accept(kSecret, 77, 5);
  EXPECT_FALSE(acceptor.feed(span_of("abc")).ok());
  EXPECT_EQ(acceptor.wants(), 0u);
  EXPECT_FALSE(acceptor.done());
}

// Any change of any byte, in either direction, leaves at least the side that reads it unconvinced.
TEST(Handshake, MutationsAreNeverAccepted) {
  std::mt19937 random(20240501);
  for (int i = 0; i < 20000; ++i) {
    auto connector = Handshake::connect(kSecret, kHello);
    auto acceptor = Handshake::accept(kSecret, 77, 5);
    const size_t target = random() % (49 + 60 + 32);
    const int kind = static_cast<int>(random() % 3);
    size_t seen = 0;
    bool changed = false;
    run(connector, acceptor, [&](int, std::string& bytes) {
      if (!changed && !bytes.empty() && target >= seen && target < seen + bytes.size()) {
        const size_t at = target - seen;
        if (kind == 0) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        if (kind == 1) bytes.resize(at);
        if (kind == 2) bytes[at] = static_cast<char>(bytes[at] + 1 + static_cast<int>(random() % 255));
        changed = true;
      }
      seen += bytes.size();
    });
    ASSERT_TRUE(changed);
    // The connector may rightly be done when only its proof was spoilt on the way; the acceptor never is.
    ASSERT_FALSE(acceptor.done()) << "mutation " << i << " of byte " << target;
    if (target < 49 + 60) {
      ASSERT_FALSE(connector.done()) << "mutation " << i << " of byte " << target;
    }
  }
}

TEST(Handshake, GarbageNeverCrashes) {
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    auto connector = Handshake::connect(kSecret, kHello);
    auto acceptor = Handshake::accept(kSecret, 77, 5);
    Handshake& victim = i % 2 == 0 ? connector : acceptor;
    std::string bytes = i % 4 < 2 ? connector.take_output().substr(0, random() % 50) : std::string();
    while (bytes.size() < 300) bytes.push_back(static_cast<char>(random()));
    (void)feed_all(victim, bytes).ok();
    ASSERT_FALSE(victim.done());
  }
}

}  // namespace
}  // namespace weft
