// What ranks tell each other: notes of the control connection, frames, and which frames have come.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "transports/note_stream.hpp"
#include "transports/verbs/frame.hpp"
#include "transports/verbs/notes.hpp"

namespace weft::verbs {
namespace {

std::string_view body(const std::string& note) { return std::string_view(note).substr(1); }

RailAddress some_rail() {
  RailAddress rail{.name = "mlx5_3:1", .lid = 7, .mtu = 5, .ethernet = false, .cm_port = 4791};
  for (size_t i = 0; i < rail.gid.size(); ++i) rail.gid[i] = static_cast<uint8_t>(200 + i);
  return rail;
}

TEST(Notes, ComeBackAsTheyWent) {
  HelloNote hello{.queue_pairs = 3, .cm = true, .rails = {some_rail(), some_rail()}}, hello_back;
  ASSERT_TRUE(unpack(body(pack(hello)), &hello_back));
  EXPECT_EQ(hello_back.queue_pairs, 3u);
  EXPECT_TRUE(hello_back.cm);
  ASSERT_EQ(hello_back.rails.size(), 2u);
  EXPECT_EQ(hello_back.rails[1].name, "mlx5_3:1");
  EXPECT_EQ(hello_back.rails[1].gid, some_rail().gid);
  EXPECT_EQ(hello_back.rails[1].cm_port, 4791);
  EXPECT_FALSE(hello_back.rails[1].ethernet);

  UpNote up{.pair = 2, .epoch = 9, .token = 1ull << 60, .rail = some_rail(), .numbers = {17, 18}, .packets = {5, 6}};
  UpNote up_back;
  ASSERT_TRUE(unpack(body(pack(up)), &up_back));
  EXPECT_EQ(up_back.token, 1ull << 60);
  EXPECT_EQ(up_back.numbers, up.numbers);
  EXPECT_EQ(up_back.packets, up.packets);

  DownNote down{.pair = 1, .epoch = 4, .reason = "port down", .taken = {100, 5}, .partial = {{3, 8, "\x81"}}},
      down_back;
  ASSERT_TRUE(unpack(body(pack(down)), &down_back));
  EXPECT_EQ(down_back.reason, "port down");
  EXPECT_EQ(down_back.taken.beyond, 5u);
  ASSERT_EQ(down_back.partial.size(), 1u);
  EXPECT_EQ(down_back.partial[0].bits, "\x81");

  RefuseNote refuse{.ours = {3, 4, 5}, .theirs = {3, 4, 6}, .bytes = 1ull << 40}, refuse_back;
  ASSERT_TRUE(unpack(body(pack(refuse)), &refuse_back));
  EXPECT_EQ(refuse_back.ours.key(), refuse.ours.key());
  EXPECT_EQ(refuse_back.theirs.signature, 6u);
  EXPECT_EQ(refuse_back.bytes, 1ull << 40);
}

// Whatever comes, nothing is read beyond its end, and cut notes are none.
TEST(Notes, GarbageIsRefused) {
  std::mt19937 random(12);
  const std::string notes[] = {pack(HelloNote{.rails = {some_rail()}}),
                               pack(UpNote{.pair = 0, .epoch = 1, .rail = some_rail(), .numbers = {1}, .packets = {2}}),
                               pack(DownNote{.epoch = 1, .reason = "x", .partial = {{1, 1, "abc"}}})};
  const auto try_all = [](std::string_view bytes) {
    HelloNote hello;
    UpNote up;
    ReadyNote ready;
    DownNote down;
    RefuseNote refuse;
    ByeNote bye;
    return int{unpack(bytes, &hello)} + unpack(bytes, &up) + unpack(bytes, &ready) + unpack(bytes, &down) +
           unpack(bytes, &refuse) + unpack(bytes, &bye);
  };
  for (const std::string& note : notes) {
    HelloNote hello;
    UpNote up;
    DownNote down;
    const std::string_view cut = body(note).substr(0, body(note).size() - 1);
    EXPECT_FALSE(unpack(cut, &hello) && unpack(cut, &up) && unpack(cut, &down));
    for (int i = 0; i < 2000; ++i) {
      std::string bytes(body(note));
      for (int flips = 0; flips < 4; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
      bytes.resize(random() % (bytes.size() + 1));
      try_all(bytes);
    }
  }
}

TEST(NoteStreams, NotesArriveWhole) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  NoteStream a, b;
  a.send("before it is connected");
  ASSERT_TRUE(a.open(Fd(fds[0]), nullptr).ok());
  ASSERT_TRUE(b.open(Fd(fds[1]), nullptr).ok());
  const std::string large(300000, 'x');
  a.send(large);
  EXPECT_EQ(b.next(), "before it is connected");
  std::optional<std::string> got;
  for (int i = 0; i < 1000 && !got; ++i) {
    a.flush();
    got = b.next();
  }
  EXPECT_EQ(got, large);
  EXPECT_FALSE(b.ended());
  a.send("last");
  a.close();
  EXPECT_EQ(b.next(), "last");
  EXPECT_EQ(b.next(), std::nullopt);
  EXPECT_TRUE(b.ended());
}

TEST(NoteStreams, ANoteTooLongEndsIt) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  NoteStream a;
  ASSERT_TRUE(a.open(Fd(fds[0]), nullptr).ok());
  const Fd other(fds[1]);
  ASSERT_EQ(::send(other.get(), "\xff\xff\xff\xff garbage", 12, 0), 12);
  EXPECT_EQ(a.next(), std::nullopt);
  EXPECT_TRUE(a.ended());
}

// Each frame counts once, in whatever order they come, also where the numbers wrap.
TEST(Frames, AreTakenOnce) {
  std::mt19937 random(3);
  for (const uint32_t start : {0u, UINT32_MAX - 100}) {
    Taken taken{.upto = start};
    std::vector<uint32_t> ahead;
    uint32_t next = start + 1;
    std::vector<uint32_t> came;
    for (int i = 0; i < 400; ++i) {
      while (next - taken.upto <= kCredits && ahead.size() < 8) ahead.push_back(next++);
      const size_t at = random() % ahead.size();
      const uint32_t number = ahead[at];
      ASSERT_FALSE(taken.has(number));
      taken.add(number);
      ASSERT_TRUE(taken.has(number));
      came.push_back(number);
      ahead.erase(ahead.begin() + static_cast<std::ptrdiff_t>(at));
      ASSERT_TRUE(taken.has(came[random() % came.size()]));
    }
    EXPECT_TRUE(taken.has(start));
  }
}

TEST(Frames, FaultsAreSeen) {
  Frame frame{.number = 1, .kind = Kind::eager, .length = 8, .total = 8};
  EXPECT_EQ(fault(frame, sizeof frame + 8), nullptr);
  EXPECT_NE(fault(frame, sizeof frame + 7), nullptr);
  EXPECT_NE(fault(frame, 3), nullptr);
  frame.total = 9;
  EXPECT_NE(fault(frame, sizeof frame + 8), nullptr);
  frame = {.number = 1, .kind = Kind::clear, .length = sizeof(Clear), .total = kEagerBytes + 1};
  EXPECT_EQ(fault(frame, sizeof frame + sizeof(Clear)), nullptr);
  frame.total = kEagerBytes;
  EXPECT_NE(fault(frame, sizeof frame + sizeof(Clear)), nullptr);
  frame = {};
  frame.kind = static_cast<Kind>(77);
  EXPECT_NE(fault(frame, sizeof frame), nullptr);
  frame = {};
  frame.magic = 1;
  EXPECT_NE(fault(frame, sizeof frame), nullptr);
}

}  // namespace
}  // namespace weft::verbs
