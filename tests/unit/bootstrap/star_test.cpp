#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>

#include "bootstrap/handshake.hpp"
#include "tests/unit/bootstrap/support.hpp"

namespace weft {
namespace {

constexpr milliseconds kPatient = seconds(20);

int count_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// Both makers of bootstraps have the same semantics; what holds for one is asked of the other too.
enum class Maker { star, star_rank_2, local };
class AnyBootstrap : public ::testing::TestWithParam<Maker> {
 protected:
  // Calls body on n thread ranks.
  static void run(int n, const std::function<void(Bootstrap&)>& body) {
    std::vector<std::unique_ptr<Bootstrap>> made(static_cast<size_t>(n));
    if (GetParam() == Maker::local) {
      made = local_bootstraps(n);
    } else {
      const JobId id = new_job(loopback_config());
      auto listener = take_root_listener(id);
      const int root = GetParam() == Maker::star ? 0 : std::min(2, n - 1);
      on_threads(n, [&](int r) {
        auto joined = join_as(id, r, n, kPatient, r == root ? std::move(listener) : nullptr);
        ASSERT_TRUE(joined.ok()) << joined.status().message();
        made[size_t(r)] = std::move(*joined);
      });
    }
    on_threads(n, [&](int r) {
      ASSERT_TRUE(made[size_t(r)]);
      EXPECT_EQ(made[size_t(r)]->rank(), r);
      EXPECT_EQ(made[size_t(r)]->size(), n);
      body(*made[size_t(r)]);
    });
  }
};

TEST_P(AnyBootstrap, AllGather) {
  for (const int n : {1, 2, 3, 8}) {
    run(n, [n](Bootstrap& b) {
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{300000}}) {
        auto all = b.all_gather(std::string(bytes + size_t(b.rank()), char('a' + b.rank())), Deadline::after(kPatient));
        ASSERT_TRUE(all.ok()) << all.status().message();
        ASSERT_EQ(all->size(), size_t(n));
        for (int r = 0; r < n; ++r) EXPECT_EQ(all->at(size_t(r)), std::string(bytes + size_t(r), char('a' + r)));
      }
      b.leave();
    });
  }
}

TEST_P(AnyBootstrap, SessionIsShared) {
  std::mutex mutex;
  std::set<uint64_t> sessions;
  for (int i = 0; i < 2; ++i) {
    run(3, [&](Bootstrap& b) {
      {
        const std::lock_guard lock(mutex);
        sessions.insert(b.session());
      }
      b.all_gather("", Deadline::after(kPatient)).ok();
      b.leave();
    });
  }
  EXPECT_EQ(sessions.size(), 2u);
}

TEST_P(AnyBootstrap, AlertsReachAllOthersOnce) {
  run(4, [](Bootstrap& b) {
    b.send(fmt::format("from {}", b.rank()));
    std::set<std::string> texts;
    for (int i = 0; i < 3; ++i) {
      auto event = next_event(b);
      ASSERT_TRUE(event);
      EXPECT_EQ(int(event->kind), int(Control::Kind::alert));
      EXPECT_EQ(event->text, fmt::format("from {}", event->from));
      EXPECT_NE(event->from, b.rank());
      texts.insert(event->text);
    }
    EXPECT_EQ(texts.size(), 3u);
    EXPECT_FALSE(b.poll());
    EXPECT_TRUE(b.all_gather("", Deadline::after(kPatient)).ok());
    b.leave();
  });
}

TEST_P(AnyBootstrap, DescriptorTellsOfEvents) {
  run(3, [](Bootstrap& b) {
    // Alerts that come in during a round still ring afterwards.
    b.send("x");
    ASSERT_TRUE(b.all_gather("", Deadline::after(kPatient)).ok());
    ASSERT_TRUE(b.all_gather("", Deadline::after(kPatient)).ok());
    for (int i = 0; i < 2; ++i) {
      pollfd entry{.fd = b.fd(), .events = POLLIN, .revents = 0};
      if (b.fd() >= 0) {
        EXPECT_EQ(::poll(&entry, 1, 5000), 1);
      }
      EXPECT_TRUE(next_event(b));
    }
    // The root may hear from a rank that has begun the next round.
    pollfd entry{.fd = b.fd(), .events = POLLIN, .revents = 0};
    if (b.fd() >= 0 && b.rank() != b.root()) {
      EXPECT_EQ(::poll(&entry, 1, 0), 0);
    }
    ASSERT_TRUE(b.all_gather("", Deadline::after(kPatient)).ok());
    b.leave();
  });
}

TEST_P(AnyBootstrap, LossAndLeavingAreTold) {
  std::atomic<int> ready{0};
  run(5, [&](Bootstrap& b) {
    const auto first = b.all_gather("", Deadline::after(kPatient));
    ASSERT_TRUE(first.ok()) << b.rank() << ": " << first.status().message();
    if (b.rank() == 3) return b.leave();
    if (b.rank() == 4) return;  // its destructor comes after the others are done, see below
    auto event = next_event(b);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->from, 3);
    EXPECT_EQ(int(event->kind), int(Control::Kind::left));
    auto all = b.all_gather("", Deadline::after(seconds(2)));
    EXPECT_TRUE(contains(all.status().message(), "rank 3")) << all.status().message();
    ++ready;
    while (ready < 3) std::this_thread::sleep_for(milliseconds(1));
    b.leave();
  });
}

TEST_P(AnyBootstrap, TimeoutNamesTheAbsentAndTheNextRoundWorks) {
  std::atomic<int> failed{0};
  run(4, [&](Bootstrap& b) {
    if (b.rank() != 1) {
      const Stopwatch watch;
      auto all = b.all_gather("stale", Deadline::after(milliseconds(300)));
      EXPECT_LT(watch.elapsed(), seconds(5));
      ASSERT_FALSE(all.ok());
      EXPECT_EQ(all.status().code(), weftTimeout);
      EXPECT_TRUE(contains(all.status().message(), "rank 1")) << all.status().message();
      ++failed;
    }
    while (failed < 3) std::this_thread::sleep_for(milliseconds(1));
    b.leave();
  });
}

INSTANTIATE_TEST_SUITE_P(Makers, AnyBootstrap, ::testing::Values(Maker::star, Maker::star_rank_2, Maker::local));

// B69, B13: nobody waits for anybody at the end, and no one sees a loss.
TEST(Star, B13_B69_JoinGatherLeaveWithoutPause) {
  const int before = count_descriptors();
  for (int i = 0; i < 200; ++i) {
    const JobId id = new_job(loopback_config());
    on_threads(4, [&](int r) {
      auto joined = join_as(id, r, 4, kPatient, take_root_listener(id));
      ASSERT_TRUE(joined.ok()) << i << ": " << joined.status().message();
      auto all = (*joined)->all_gather(std::to_string(r), Deadline::after(kPatient));
      ASSERT_TRUE(all.ok()) << i << ": " << all.status().message();
      ASSERT_EQ(all->at(3), "3");
      while (auto event = (*joined)->poll()) EXPECT_EQ(int(event->kind), int(Control::Kind::left));
      (*joined)->leave();
    });
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(count_descriptors(), before);
}

// B69: the root is gone at once, the others come later to their goodbyes.
TEST(Star, B69_RootLeavesFirst) {
  for (int i = 0; i < 100; ++i) {
    const JobId id = new_job(loopback_config());
    on_threads(3, [&](int r) {
      auto joined = join_as(id, r, 3, kPatient, r == 0 ? take_root_listener(id) : nullptr);
      ASSERT_TRUE(joined.ok());
      ASSERT_TRUE((*joined)->all_gather("", Deadline::after(kPatient)).ok());
      if (r != 0) {
        auto event = next_event(**joined);
        ASSERT_TRUE(event);
        EXPECT_EQ(int(event->kind), int(Control::Kind::left));
      }
      (*joined)->leave();
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Star, FixedPortIsReusedAtOnce) {
  JobId id = JobId::random().value();
  auto first = Listener::bind(SocketAddress::parse("127.0.0.1:1").value(), {20000, 60000});
  ASSERT_TRUE(first.ok());
  id.address = (*first)->address();
  const auto at = (*first)->local();
  (*first)->close();
  for (int i = 0; i < 30; ++i) {
    on_threads(3, [&](int r) {
      std::shared_ptr<Listener> listener;
      if (r == 0) {
        auto bound = Listener::bind(at);
        ASSERT_TRUE(bound.ok()) << i << ": " << bound.status().message();
        listener = *bound;
      }
      auto joined = join_as(id, r, 3, kPatient, listener);
      ASSERT_TRUE(joined.ok()) << i << ": " << joined.status().message();
      ASSERT_TRUE((*joined)->all_gather("", Deadline::after(kPatient)).ok());
      (*joined)->leave();
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Star, B03_DuplicateRank) {
  const JobId id = new_job(loopback_config());
  std::atomic<int> errors{0};
  on_threads(2, [&](int r) {
    auto joined = join_as(id, 0, 2, seconds(4), r == 0 ? take_root_listener(id) : nullptr);
    ASSERT_FALSE(joined.ok());
    const std::string text = joined.status().message();
    EXPECT_TRUE(contains(text, "two processes claim rank 0")) << text;
    const std::string pid = fmt::format("pid {}", ::getpid());
    EXPECT_NE(text.find(pid), text.rfind(pid)) << text;
    ++errors;
  });
  EXPECT_EQ(errors, 2);
}

TEST(Star, B03_DuplicateOfAMemberFailsAll) {
  const JobId id = new_job(loopback_config());
  const int ranks[] = {0, 1, 1};
  on_threads(3, [&](int i) {
    auto joined = join_as(id, ranks[i], 4, seconds(4), i == 0 ? take_root_listener(id) : nullptr);
    ASSERT_FALSE(joined.ok());
    EXPECT_TRUE(contains(joined.status().message(), "two processes claim rank 1")) << joined.status().message();
  });
}

TEST(Star, B04_DifferentSizes) {
  const JobId id = new_job(loopback_config());
  on_threads(2, [&](int r) {
    auto joined = join_as(id, r, 2 + r, seconds(4), r == 0 ? take_root_listener(id) : nullptr);
    ASSERT_FALSE(joined.ok());
    const std::string text = joined.status().message();
    EXPECT_TRUE(contains(text, "says 3") && contains(text, "says 2")) << text;
  });
}

TEST(Star, B05_ForeignJobIsRefusedFastAndHarmsNobody) {
  const JobId a = new_job(loopback_config());
  JobId other_group = JobId::random().value(), other_secret = a;
  other_group.address = a.address;
  other_secret.secret[0] ^= 1;
  on_threads(4, [&](int i) {
    if (i < 2) {
      if (i == 1) std::this_thread::sleep_for(milliseconds(400));
      auto joined = join_as(a, i, 2, kPatient, i == 0 ? take_root_listener(a) : nullptr);
      ASSERT_TRUE(joined.ok()) << joined.status().message();
      EXPECT_TRUE((*joined)->all_gather("", Deadline::after(kPatient)).ok());
      return (*joined)->leave();
    }
    const Stopwatch watch;
    auto joined = join_as(i == 2 ? other_group : other_secret, 1, 2, kPatient);
    ASSERT_FALSE(joined.ok());
    EXPECT_LT(watch.elapsed(), seconds(5));
    EXPECT_TRUE(contains(joined.status().message(), "another job")) << joined.status().message();
  });
}

TEST(Star, B06_MuteListener) {
  auto mute = Listener::bind(SocketAddress::parse("127.0.0.1:1").value(), {20000, 60000});
  ASSERT_TRUE(mute.ok());
  JobId id = JobId::random().value();
  id.address = (*mute)->address();
  const Stopwatch watch;
  auto joined = join_as(id, 1, 2, seconds(1));
  ASSERT_FALSE(joined.ok());
  EXPECT_LT(watch.elapsed(), seconds(3));
  EXPECT_TRUE(contains(joined.status().message(), "is not the root of this job")) << joined.status().message();
}

TEST(Star, B09_LateRank) {
  const JobId id = new_job(loopback_config());
  on_threads(2, [&](int r) {
    if (r == 1) std::this_thread::sleep_for(seconds(1));
    auto joined = join_as(id, r, 2, seconds(10), r == 0 ? take_root_listener(id) : nullptr);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    (*joined)->leave();
  });
}

TEST(Star, B09_AbsentRanksAreNamedEverywhere) {
  const JobId id = new_job(loopback_config());
  on_threads(2, [&](int i) {
    const Stopwatch watch;
    auto joined = join_as(id, i == 0 ? 0 : 2, 5, seconds(1), i == 0 ? take_root_listener(id) : nullptr);
    ASSERT_FALSE(joined.ok());
    EXPECT_GE(watch.elapsed(), milliseconds(900));
    EXPECT_LT(watch.elapsed(), seconds(3));
    EXPECT_EQ(joined.status().code(), weftTimeout);
    EXPECT_TRUE(contains(joined.status().message(), "ranks 1, 3, 4 of 5 never joined")) << joined.status().message();
  });
}

TEST(Star, B12_AnIdIsGoodOnce) {
  const JobId id = new_job(loopback_config());
  const auto second_use = [&](const char* when) {
    const Stopwatch watch;
    auto again = join_as(id, 1, 2, kPatient, take_root_listener(id));
    ASSERT_FALSE(again.ok());
    EXPECT_LT(watch.elapsed(), seconds(5)) << when;
    EXPECT_TRUE(contains(again.status().message(), "used already")) << again.status().message();
  };
  on_threads(2, [&](int r) {
    auto joined = join_as(id, r, 2, kPatient, take_root_listener(id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    if (r == 1) second_use("while the first lives");
    EXPECT_TRUE((*joined)->all_gather("", Deadline::after(kPatient)).ok());
    (*joined)->leave();
  });
  second_use("after the first has ended");
}

TEST(Star, NobodyOwnsTheListener) {
  const JobId id = new_job(loopback_config());
  auto kept = take_root_listener(id);
  auto joined = join_as(id, 0, 2, milliseconds(700));
  ASSERT_FALSE(joined.ok());
  EXPECT_TRUE(contains(joined.status().message(), "is no rank of the job")) << joined.status().message();
}

int connect_raw(const JobId& id, const std::string& bytes) {
  const auto address = SocketAddress::parse(id.address).value();
  const int fd = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(fd, address.data(), address.bytes()), 0);
  EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t(bytes.size()));
  return fd;
}

TEST(Star, StrangersDisturbNobody) {
  const JobId id = new_job(loopback_config());
  std::vector<int> strangers;
  for (int i = 0; i < 300; ++i) {
    std::string bytes(size_t(i % 3 == 0 ? 0 : i * 7), char(i));
    if (i % 5 == 0) bytes = Handshake::connect({}, {.purpose = 'b', .group = id.group, .to = -1}).take_output();
    strangers.push_back(connect_raw(id, bytes));
  }
  on_threads(4, [&](int r) {
    auto joined = join_as(id, r, 4, kPatient, r == 0 ? take_root_listener(id) : nullptr);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    EXPECT_TRUE((*joined)->all_gather("", Deadline::after(kPatient)).ok());
    (*joined)->leave();
  });
  for (const int fd : strangers) ::close(fd);
}

TEST(Star, B73_OtherVersionIsNamedByBoth) {
  const JobId id = new_job(loopback_config());
  on_threads(2, [&](int i) {
    if (i == 0) {
      auto joined = join_as(id, 0, 2, seconds(1), take_root_listener(id));
      ASSERT_FALSE(joined.ok());
      EXPECT_TRUE(contains(joined.status().message(), "protocol version 2, this process version 1"))
          << joined.status().message();
      return;
    }
    std::string hello = Handshake::connect(id.secret, {.purpose = 'b', .group = id.group, .to = -1}).take_output();
    hello[8] = Handshake::kVersion + 1;
    const int fd = connect_raw(id, hello);
    uint8_t reply[12];
    ASSERT_EQ(::recv(fd, reply, sizeof reply, MSG_WAITALL), 12);
    EXPECT_EQ(reply[8], Handshake::kVersion);
    ::close(fd);
  });
}

// ---- death: ranks are processes

TEST(StarDeath, SeveralLossesAreTold) {
  const JobId id = new_job(loopback_config());
  std::vector<Child> children;
  for (int r = 1; r < 5; ++r) {
    children.emplace_back([&id, r] {
      auto joined = join_as(id, r, 5, kPatient);
      if (!joined.ok() || !(*joined)->all_gather("", Deadline::after(kPatient)).ok()) return 1;
      if (r >= 3) ::pause();
      std::set<int> lost;
      for (int i = 0; i < 2; ++i) {
        auto event = next_event(**joined);
        if (!event || event->kind != Control::Kind::lost) return 2;
        lost.insert(event->from);
      }
      if (lost != std::set<int>{3, 4}) return 3;
      auto all = (*joined)->all_gather("", Deadline::after(kPatient));
      if (all.ok() || !contains(all.status().message(), "rank 3") || !contains(all.status().message(), "rank 4"))
        return 4;
      (*joined)->leave();
      return 0;
    });
  }
  auto joined = join_as(id, 0, 5, kPatient, take_root_listener(id));
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  ASSERT_TRUE((*joined)->all_gather("", Deadline::after(kPatient)).ok());
  children[2].kill();
  children[3].kill();
  std::set<int> lost;
  for (int i = 0; i < 2; ++i) {
    auto event = next_event(**joined);
    ASSERT_TRUE(event);
    EXPECT_EQ(int(event->kind), int(Control::Kind::lost));
    lost.insert(event->from);
  }
  EXPECT_EQ(lost, (std::set<int>{3, 4}));
  auto all = (*joined)->all_gather("", Deadline::after(kPatient));
  ASSERT_FALSE(all.ok());
  EXPECT_TRUE(contains(all.status().message(), "rank 3 (host ")) << all.status().message();
  EXPECT_EQ(children[0].wait(), 0);
  EXPECT_EQ(children[1].wait(), 0);
}

// B95, B79: the root is killed while members send, with SIGPIPE at its default.
TEST(StarDeath, B95_RootIsLost) {
  const JobId id = new_job(loopback_config());
  std::vector<Child> children;
  for (int r = 0; r < 3; ++r) {
    children.emplace_back([&id, r] {
      ::signal(SIGPIPE, SIG_DFL);
      auto joined = join_as(id, r, 3, kPatient, r == 0 ? take_root_listener(id) : nullptr);
      if (!joined.ok() || !(*joined)->all_gather("", Deadline::after(kPatient)).ok()) return 1;
      if (r == 0) ::raise(SIGKILL);
      for (int i = 0; i < 2000; ++i) (*joined)->send(std::string(1000, 'x'));
      while (true) {
        auto event = next_event(**joined);
        if (!event) return 2;
        if (event->kind == Control::Kind::lost && event->from == 0) break;
      }
      (*joined)->send("nobody hears this");
      if ((*joined)->poll()) return 3;
      const auto all = (*joined)->all_gather("", Deadline::after(kPatient));
      if (all.ok() || !contains(all.status().message(), "rank 0")) return 4;
      (*joined)->leave();
      return 0;
    });
  }
  EXPECT_EQ(children[1].wait(), 0);
  EXPECT_EQ(children[2].wait(), 0);
}

TEST(StarDeath, AMemberThatDiesDuringJoinFailsItAtOnce) {
  const JobId id = new_job(loopback_config());
  Child dying([&id] {
    std::thread([&id] { (void)join_as(id, 1, 3, kPatient).ok(); }).detach();
    std::this_thread::sleep_for(milliseconds(500));
    ::raise(SIGKILL);
    return 0;
  });
  const Stopwatch watch;
  auto joined = join_as(id, 0, 3, kPatient, take_root_listener(id));
  ASSERT_FALSE(joined.ok());
  EXPECT_LT(watch.elapsed(), seconds(8));
  EXPECT_TRUE(contains(joined.status().message(), fmt::format("pid {}", dying.pid()))) << joined.status().message();
}

// B77: a child forked off a rank neither says goodbye for it nor takes its place.
TEST(StarDeath, AForkedChildSaysNothing) {
  const JobId id = new_job(loopback_config());
  on_threads(2, [&](int r) {
    auto joined = join_as(id, r, 2, kPatient, r == 0 ? take_root_listener(id) : nullptr);
    ASSERT_TRUE(joined.ok());
    ASSERT_TRUE((*joined)->all_gather("", Deadline::after(kPatient)).ok());
    if (r == 1) {
      Child child([&joined] {
        const bool refused = !(*joined)->all_gather("", Deadline::after(seconds(1))).ok();
        (*joined)->leave();
        joined->reset();
        return refused ? 0 : 1;
      });
      EXPECT_EQ(child.wait(), 0);
    }
    ASSERT_TRUE((*joined)->all_gather("", Deadline::after(kPatient)).ok());
    EXPECT_FALSE((*joined)->poll());
    ASSERT_TRUE((*joined)->all_gather("", Deadline::after(kPatient)).ok());
    (*joined)->leave();
  });
}

// The parent makes the id and is no rank; the ranks are forked off it. The first that asks becomes the root.
TEST(StarDeath, ForkedRanksInheritTheListener) {
  const JobId id = new_job(loopback_config());
  std::vector<Child> children;
  for (int r = 0; r < 4; ++r) {
    children.emplace_back([&id, r] {
      auto joined = join_as(id, r, 4, kPatient, take_root_listener(id));
      if (!joined.ok()) return 1;
      const bool good = (*joined)->all_gather("", Deadline::after(kPatient)).ok();
      (*joined)->leave();
      // Used up, although the parent still has the socket.
      return good && !join_as(id, r, 4, kPatient).ok() ? 0 : 2;
    });
  }
  for (auto& child : children) EXPECT_EQ(child.wait(), 0);
}

TEST(StarDeath, NothingIsInheritedAcrossExec) {
  const JobId id = new_job(loopback_config());
  on_threads(2, [&](int r) {
    auto joined = join_as(id, r, 2, kPatient, r == 0 ? take_root_listener(id) : nullptr);
    ASSERT_TRUE(joined.ok());
    (*joined)->all_gather("", Deadline::after(kPatient)).ok();
    if (r == 0) {
      EXPECT_EQ(std::system("ls -l /proc/self/fd | grep -q -e socket: -e eventpoll -e eventfd && exit 1 || exit 0"), 0);
    }
    (*joined)->all_gather("", Deadline::after(kPatient)).ok();
    (*joined)->leave();
  });
}

TEST(JobIdTest, PackAndUnpack) {
  JobId id = JobId::random().value();
  id.address = "[fd00::1]:4567";
  id.listening = true;
  const JobId back = JobId::unpack(id.pack()).value();
  EXPECT_EQ(back.address, id.address);
  EXPECT_EQ(back.group, id.group);
  EXPECT_EQ(back.secret, id.secret);
  EXPECT_TRUE(back.listening);
  weftUniqueId junk{};
  EXPECT_TRUE(contains(JobId::unpack(junk).status().message(), "was not made by weftGetUniqueId"));
}

}  // namespace
}  // namespace weft
