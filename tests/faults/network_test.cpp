// Several hosts, as network namespaces: which transports are taken, partitions, ports, forwarders (B07, B18, B19, B21,
// B23, B24, B52).
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "tests/faults/job.hpp"
#include "tests/harness/forwarder.hpp"

namespace weft::faults {
namespace {

// Two network namespaces with a cable between them; or each with a cable of its own to a third, which routes nothing.
class TwoHosts {
 public:
  enum class Between { cable, gate };
  explicit TwoHosts(Between between = Between::cable) : count_(between == Between::cable ? 2 : 3) {
    for (int side = 0; side < count_; ++side) good_ = good_ && shell("ip netns add " + name(side));
    if (between == Between::cable) {
      link(0, "weft0", "10.231.7.1", 1, "weft0", "10.231.7.2");
    } else {
      link(0, "weft0", "10.231.7.1", kGate, "to0", kGateAt[0]);
      link(1, "weft0", "10.231.8.1", kGate, "to1", kGateAt[1]);
    }
    for (int side = 0; side < count_; ++side) good_ = good_ && ip(side, "link set lo up");
  }
  ~TwoHosts() {
    for (int side = 0; side < count_; ++side) shell("ip netns del " + name(side));
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  static constexpr int kGate = 2;
  static constexpr std::array kGateAt = {"10.231.7.254", "10.231.8.254"};  // as the two hosts see it

  bool good() const { return good_; }
  // The calling thread goes there.
  void enter(int side) const {
    const int fd = ::open(("/run/netns/" + name(side)).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) ::_exit(99);
    ::close(fd);
  }
  // The calling process goes there, and has a host name of its own.
  void enter(int side, const std::string& host) const {
    enter(side);
    if (::unshare(CLONE_NEWUTS) != 0 || ::sethostname(host.c_str(), host.size()) != 0) ::_exit(99);
  }
  bool ip(int side, const std::string& arguments) const { return shell("ip -n " + name(side) + " " + arguments); }

 private:
  static bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  std::string name(int side) const { return fmt::format("{}-{}", prefix_, side); }
  void link(int a, const char* device_a, const char* address_a, int b, const char* device_b, const char* address_b) {
    good_ = good_ && shell(fmt::format("ip link add {} netns {} type veth peer name {} netns {}", device_a, name(a),
                                       device_b, name(b)));
    for (const auto& [side, device, address] : {std::tuple(a, device_a, address_a), {b, device_b, address_b}}) {
      good_ = good_ && ip(side, fmt::format("addr add {}/24 dev {}", address, device)) &&
              ip(side, fmt::format("link set {} up", device));
    }
  }
  const int count_;
  const std::string prefix_ = fmt::format("weft-faults-{}", ::getpid());  // the test's number, not that of a rank
  bool good_ = true;
};
#define TWO_HOSTS(...)        \
  const TwoHosts __VA_ARGS__; \
  if (!hosts.good()) GTEST_SKIP() << "network namespaces are not permitted here"

// B24: under some hashes these two names are one. All processes see one /dev/shm, one boot and one machine number.
TEST(Hosts, B23_B24_TcpBetweenAndSharedMemoryWithin) {
  TWO_HOSTS(hosts);
  for (const auto& names : {std::pair("node1.rackA", "node1.rackB"), std::pair("compute00000R", "compute000011"),
                            std::pair("same", "same")}) {
    Job job({.size = 4,
             .environment = {{"WEFT_ALGO", "allreduce:flat"}},
             .prepare = [&](int rank) { hosts.enter(rank / 2, rank / 2 == 0 ? names.first : names.second); }},
            exercise);
    ASSERT_TRUE(job.finish());
    expect_exercised(job, 4);
    for (int rank = 0; rank < 4; ++rank) {
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == rank) continue;
        const std::string expected = fmt::format("{}:{}", peer, peer / 2 == rank / 2 ? "shm" : "tcp");
        EXPECT_NE(std::string(job[rank].message).find(expected), std::string::npos)
            << "rank " << rank << " has " << job[rank].message;
      }
    }
  }
}

TEST(Hosts, APartitionIsATimeoutOnBothSides) {
  TWO_HOSTS(hosts);
  for (const size_t count : {size_t{16}, size_t{1 << 20}}) {
    SCOPED_TRACE(count);
    Job job({.size = 4, .prepare = [&](int rank) { hosts.enter(rank / 2, fmt::format("half{}", rank / 2)); }},
            [count](Rank& rank) {
              std::vector<float> data(count);
              for (int round = 0; round < 100000; ++round) {
                rank.begin();
                if (rank.keep(weftAllReduce(data.data(), data.data(), count, weftFloat32, weftMax, rank.comm,
                                            nullptr)) != weftSuccess) {
                  break;
                }
                rank.stage(1);
              }
            });
    for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.reached(rank, 1));
    ASSERT_TRUE(hosts.ip(1, "link set weft0 down"));
    EXPECT_TRUE(job.finish());
    for (int rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      expect_error(job[rank], weftTimeout, {"operation ", "allreduce", "rank "});
    }
    ASSERT_TRUE(hosts.ip(1, "link set weft0 up"));
  }
}

TEST(Hosts, APartitionThatHealsInTimeHarmsNothing) {
  TWO_HOSTS(hosts);
  Job job({.size = 4,
           .environment = {{"WEFT_TIMEOUT", "10"}},
           .prepare = [&](int rank) { hosts.enter(rank / 2, fmt::format("half{}", rank / 2)); }},
          [](Rank& rank) {
            for (int round = 0; round < 40 && rank.report.value[0] == round; ++round) {
              rank.report.value[0] += sum_is_right(rank.comm, rank.rank, rank.size, 1 << 14);
              rank.stage(1);
              sleep_ms(10);
            }
            rank.keep(weftBarrier(rank.comm, nullptr));
          });
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(job.reached(rank, 1));
  ASSERT_TRUE(hosts.ip(1, "link set weft0 down"));
  sleep_ms(1500);
  ASSERT_TRUE(hosts.ip(1, "link set weft0 up"));
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 4; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], 40);
  }
}

// B52: what only matters at the root is NULL elsewhere. The root is not the first rank of its host.
TEST(Hosts, B52_ArgumentsThatOnlyMatterAtTheRoot) {
  TWO_HOSTS(hosts);
  for (const int root : {1, 3}) {
    Job job({.size = 4, .prepare = [&](int rank) { hosts.enter(rank / 2, fmt::format("half{}", rank / 2)); }},
            [root](Rank& rank) {
              const auto me = static_cast<size_t>(rank.rank);
              const bool is_root = rank.rank == root;
              constexpr size_t kEach = 3000;
              std::vector<int> all(4 * kEach), mine(kEach, -1);
              for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
              const auto is_mine = [&] {
                return mine[0] == all[me * kEach] && mine[kEach - 1] == all[me * kEach + kEach - 1];
              };
              const size_t counts[] = {kEach, kEach, kEach, kEach}, displs[] = {0, kEach, 2 * kEach, 3 * kEach};
              const int* from = is_root ? all.data() : nullptr;
              rank.keep(weftScatter(from, mine.data(), kEach, weftInt32, root, rank.comm, nullptr));
              rank.report.value[0] += is_mine();
              std::fill(mine.begin(), mine.end(), -1);
              rank.keep(weftScatterv(from, is_root ? counts : nullptr, is_root ? displs : nullptr, mine.data(), kEach,
                                     weftInt32, root, rank.comm, nullptr));
              rank.report.value[0] += is_mine();
              for (const bool uneven : {false, true}) {
                std::vector<int> got(is_root ? all.size() : 0);
                int* to = is_root ? got.data() : nullptr;
                rank.keep(uneven ? weftGatherv(mine.data(), kEach, to, is_root ? counts : nullptr,
                                               is_root ? displs : nullptr, weftInt32, root, rank.comm, nullptr)
                                 : weftGather(mine.data(), to, kEach, weftInt32, root, rank.comm, nullptr));
                rank.report.value[0] += !is_root || got == all;
              }
              std::vector<int> sum(is_root ? kEach : 0);
              rank.keep(weftReduce(all.data(), is_root ? sum.data() : nullptr, kEach, weftInt32, weftSum, root,
                                   rank.comm, nullptr));
              rank.report.value[0] += !is_root || sum[kEach - 1] == 4 * all[kEach - 1];
              rank.keep(weftBroadcast(from, mine.data(), kEach, weftInt32, root, rank.comm, nullptr));
              rank.report.value[0] += mine[kEach - 1] == all[kEach - 1];
            });
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 4; ++rank) {
      expect_success(job[rank]);
      EXPECT_EQ(job[rank].value[0], 6) << "rank " << rank << ", root " << root;
    }
  }
}

// Listens at one address of a host, on a port that stays free on all others of its addresses.
class Holder {
 public:
  Holder(const TwoHosts& hosts, int side, const char* address, int port) {
    std::thread([&] {
      hosts.enter(side);
      const sockaddr_in at = testing::forwarded_address(address, port);
      fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      good_ = ::bind(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 && ::listen(fd_, 16) == 0;
    }).join();
  }
  ~Holder() { ::close(fd_); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  bool good() const { return good_; }

 private:
  int fd_ = -1;
  bool good_ = false;
};

// Another port of the range is taken, whether Weft listens at the address itself or at all of the host's.
TEST(Ports, B07_FreeOnLoopbackButBoundWhereWeAdvertise) {
  TWO_HOSTS(hosts);
  const Holder holder(hosts, 0, "10.231.7.1", 23000);
  ASSERT_TRUE(holder.good());
  for (const char* advertise : {"", "10.231.7.1", "10.231.7.1:23000"}) {
    SCOPED_TRACE(advertise);
    Job job({.environment = {{"WEFT_TRANSPORT", "tcp"}, {"WEFT_PORT_RANGE", "23000-23007"}},
             .of_rank = {{0, {{"WEFT_ADVERTISE", advertise}}}},
             .prepare = [&](int rank) { hosts.enter(rank, fmt::format("host{}", rank)); }},
            exercise);
    ASSERT_TRUE(job.finish());
    expect_exercised(job, 2);
  }
}

TEST(Ports, B07_NoOtherPortIsAnError) {
  TWO_HOSTS(hosts);
  const Holder holder(hosts, 0, "10.231.7.1", 23000);
  ASSERT_TRUE(holder.good());
  const Environment cases[] = {{{"WEFT_PORT_RANGE", "23000-23000"}},
                               {{"WEFT_PORT_RANGE", "23000-23000"}, {"WEFT_ADVERTISE", "10.231.7.1"}},
                               {{"WEFT_ROOT", "10.231.7.1:23000"}}};
  for (const Environment& environment : cases) {
    SCOPED_TRACE(environment.rbegin()->first);
    JobOptions options{.environment = {{"WEFT_INIT_TIMEOUT", "2"}},
                       .of_rank = {{0, environment}},
                       .prepare = [&](int rank) { hosts.enter(rank, fmt::format("host{}", rank)); },
                       .join = false};
    if (environment.contains("WEFT_ROOT")) options.of_rank[1] = environment;
    Job job(options, [](Rank& rank) { rank.join(); });
    ASSERT_TRUE(job.finish());
    expect_error(job[0], weftSystemError, {"cannot listen at", "23000"});
    EXPECT_NE(job[1].code, weftSuccess);
    EXPECT_LT(job[1].seconds, kInTime);
  }
}

// With an address of its own, and with nothing but the one that every interface gives itself.
TEST(Ports, B18_Ipv6Only) {
  TWO_HOSTS(hosts);
  for (const bool own : {true, false}) {
    SCOPED_TRACE(own ? "fd00:7::" : "fe80::");
    for (const int side : {0, 1}) {
      ASSERT_TRUE(hosts.ip(side, "addr flush dev weft0"));
      const char* prefix = own ? "fd00:7" : "fe80";
      if (!hosts.ip(side, fmt::format("addr add {}::{}/64 dev weft0 nodad", prefix, side + 1))) {
        GTEST_SKIP() << "no IPv6 here";
      }
    }
    // A link-local address is taken where it is asked for.
    Job job({.environment = {{"WEFT_SOCKET_IFNAME", own ? "" : "=weft0"}},
             .prepare = [&](int rank) { hosts.enter(rank, fmt::format("host{}", rank)); }},
            exercise);
    ASSERT_TRUE(job.finish());
    expect_exercised(job, 2);
    EXPECT_STREQ(job[0].message, "1:tcp");
  }
}

// A kernel without IPv6.
void forget_ipv6() {
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{6, const_cast<sock_filter*>(filter)};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 ||
      ::socket(AF_INET6, SOCK_STREAM, 0) >= 0) {
    ::_exit(99);
  }
}

TEST(Ports, B19_NoIpv6InTheKernel) {
  TWO_HOSTS(hosts);
  // Where Weft would listen at all addresses, it asks for IPv6 first: behind NAT, and at a root that is not ours by
  // name.
  const Environment cases[] = {{}, {{"WEFT_ADVERTISE", "10.231.7.1"}}, {{"WEFT_ROOT", "10.231.7.1:23100"}}};
  for (const Environment& environment : cases) {
    Job job({.environment = {{"WEFT_TRANSPORT", "tcp"}},
             .of_rank = {{0, environment}, {1, environment.contains("WEFT_ROOT") ? environment : Environment{}}},
             .prepare =
                 [&](int rank) {
                   hosts.enter(rank, fmt::format("host{}", rank));
                   forget_ipv6();
                 }},
            exercise);
    ASSERT_TRUE(job.finish());
    expect_exercised(job, 2);
  }
}

// B21: nothing leads from one host to the other but the ports that are forwarded.
TEST(Ports, B21_ThroughAForwarder) {
  TWO_HOSTS(hosts(TwoHosts::Between::gate));
  const pid_t forwarder = ::fork();
  if (forwarder == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    hosts.enter(TwoHosts::kGate);
    testing::forward_ports({TwoHosts::kGateAt[1], 7000, "10.231.7.1", 23000, 4});
  }
  const auto enter = [&](int rank) { hosts.enter(rank, fmt::format("host{}", rank)); };
  {
    Job job({.of_rank = {{0, {{"WEFT_ADVERTISE", "10.231.8.254:7000"}, {"WEFT_PORT_RANGE", "23000-23003"}}}},
             .prepare = enter},
            exercise);
    EXPECT_TRUE(job.finish());
    expect_exercised(job, 2);
    EXPECT_STREQ(job[0].message, "1:tcp");
  }
  Job job({.environment = {{"WEFT_INIT_TIMEOUT", "2"}}, .prepare = enter, .join = false},
          [](Rank& rank) { rank.join(); });
  EXPECT_TRUE(job.finish());
  expect_error(job[1], weftTimeout, {"10.231.7.1:", "not to be reached"});
  expect_error(job[0], weftTimeout, {"rank 1"});
  ::kill(forwarder, SIGKILL);
  ::waitpid(forwarder, nullptr, 0);
}

}  // namespace
}  // namespace weft::faults
