// Interface choice and reachability in network namespaces of our own, where they are permitted.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "bootstrap/interfaces.hpp"
#include "bootstrap/join.hpp"
#include "bootstrap/launch.hpp"
#include "tests/harness/forwarder.hpp"
#include "tests/unit/bootstrap/support.hpp"

namespace weft {
namespace {

bool shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

class Namespace {
 public:
  explicit Namespace(const std::string& name) : name_(fmt::format("weft-{}-{}", ::getpid(), name)) {
    good_ = shell("ip netns add " + name_) && ip("link set lo up");
  }
  Namespace(Namespace&&) = delete;
  ~Namespace() { shell("ip netns del " + name_); }
  bool good() const { return good_; }
  const std::string& name() const { return name_; }
  bool ip(const std::string& arguments) const { return shell("ip -n " + name_ + " " + arguments); }
  // An interface with a carrier and an address; its peer has neither name nor use.
  void interface(const std::string& name, const std::string& address) const {
    EXPECT_TRUE(ip(fmt::format("link add {0} type veth peer name p-{0}", name)));
    EXPECT_TRUE(ip(fmt::format("link set p-{} up", name)));
    up(name, address);
  }
  void up(const std::string& name, const std::string& address) const {
    EXPECT_TRUE(ip(fmt::format("link set {} up", name)));
    if (address.empty()) return;
    EXPECT_TRUE(ip(fmt::format("addr add {} dev {} nodad", address, name)) ||
                ip(fmt::format("addr add {} dev {}", address, name)));
  }
  void enter() const {
    const Fd fd(::open(("/run/netns/" + name_).c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd || ::setns(fd.get(), CLONE_NEWNET) != 0) ::_exit(99);
  }

 private:
  std::string name_;
  bool good_ = false;
};

#define NAMESPACE(variable, name) \
  const Namespace variable(name); \
  if (!variable.good()) GTEST_SKIP() << "network namespaces are not permitted here"

// Runs body in a forked process inside of the namespace; what it returns comes back through a pipe.
class Inside {
 public:
  Inside(const Namespace& where, const std::function<std::string()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    read_ = Fd(ends[0]);
    child_.emplace([&] {
      where.enter();
      const std::string text = body();
      return ::write(ends[1], text.data(), text.size()) >= 0 ? 0 : 1;
    });
    ::close(ends[1]);
  }
  std::string text() {
    std::string out;
    char bytes[4096];
    for (ssize_t got; (got = ::read(read_.get(), bytes, sizeof bytes)) > 0;) out.append(bytes, size_t(got));
    return out;
  }

 private:
  Fd read_;
  std::optional<Child> child_;
};

std::string choice_in(const Namespace& where, const std::string& selection = "", const std::string& family = "any") {
  return Inside(where,
                [&] {
                  Config config;
                  config.socket_ifname = selection;
                  config.socket_family = family;
                  auto choice = choose_interface(config);
                  if (!choice.ok()) return choice.status().message();
                  auto listener = Listener::open(config);
                  const std::string address = listener.ok() ? (*listener)->address() : listener.status().message();
                  return fmt::format("{} {} | {}", choice->name, address.substr(0, address.rfind(':')), choice->reason);
                })
      .text();
}

// "" or the error of rank r of 2 that meet by a file.
std::string take_part(const std::string& root, int rank, const Config& config, milliseconds timeout) {
  const Getter get = [&](const std::string& name) -> std::optional<std::string> {
    if (name == "WEFT_RANK") return std::to_string(rank);
    if (name == "WEFT_WORLD_SIZE") return "2";
    if (name == "WEFT_ROOT") return root;
    return std::nullopt;
  };
  auto launch = detect_launch(config, get, Deadline::after(timeout));
  if (!launch.ok()) return launch.status().message();
  auto joined = join({.id = launch->id,
                      .rank = rank,
                      .size = 2,
                      .listener = launch->listener,
                      .deadline = Deadline::after(timeout),
                      .config = &config});
  if (!joined.ok()) return joined.status().message();
  auto all = (*joined)->all_gather("", Deadline::after(timeout));
  (*joined)->leave();
  return all.ok() ? "joined at " + launch->id.address : all.status().message();
}

std::string file_root() {
  static int count = 0;
  return fmt::format("file:/tmp/weft-netns-{}-{}", ::getpid(), count++);
}

void expect_two_ranks_work(const Namespace& where, const std::string& expected, const Config& config = {}) {
  const std::string root = file_root();
  const auto rank = [&](int r) { return Inside(where, [&, r] { return take_part(root, r, config, seconds(10)); }); };
  const Stopwatch watch;
  Inside zero = rank(0), one = rank(1);
  EXPECT_TRUE(zero.text().starts_with("joined at " + expected)) << zero.text();
  EXPECT_TRUE(one.text().starts_with("joined at " + expected));
  EXPECT_LT(watch.elapsed(), seconds(8));
}

TEST(Netns, B14_DockerIsPassedOver) {
  NAMESPACE(ns, "b14");
  ns.interface("docker0", "172.17.0.1/16");
  ns.interface("ens3", "10.20.0.1/24");
  const std::string text = choice_in(ns);
  EXPECT_TRUE(text.starts_with("ens3 10.20.0.1 ")) << text;
  EXPECT_TRUE(contains(text, "docker0 is a container's")) << text;
  expect_two_ranks_work(ns, "10.20.0.1:");
}

TEST(Netns, B15_HostNameAtLoopback) {
  NAMESPACE(ns, "b15");
  ns.interface("ens3", "10.20.0.1/24");
  const std::string hosts = fmt::format("/tmp/weft-hosts-{}", ::getpid());
  std::ofstream(hosts) << "127.0.0.1 localhost\n127.0.1.1 " << this_host() << "\n";
  const auto with_hosts = [&](const std::function<std::string()>& body) {
    return Inside(ns, [&, body]() -> std::string {
      if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount(hosts.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
        return "skip";
      }
      return body();
    });
  };
  const std::string address = with_hosts([] { return new_job({}).address; }).text();
  if (address == "skip") GTEST_SKIP() << "mount namespaces are not permitted here";
  EXPECT_TRUE(address.starts_with("10.20.0.1:")) << address;
  // The name leads to 127.0.1.1 on this host; the root listens where other hosts would find it, too.
  const std::string root = this_host() + ":23456";
  const Config config;
  Inside zero = with_hosts([&] { return take_part(root, 0, config, seconds(10)); });
  Inside one = with_hosts([&] { return take_part(root, 1, config, seconds(10)); });
  EXPECT_EQ(zero.text(), "joined at " + root);
  EXPECT_EQ(one.text(), "joined at " + root);
  ::unlink(hosts.c_str());
}

TEST(Netns, B16_OnlyLoopback) {
  NAMESPACE(ns, "b16");
  EXPECT_TRUE(contains(choice_in(ns), "lo 127.0.0.1 | only loopback is usable"));
  expect_two_ranks_work(ns, "127.0.0.1:");
}

TEST(Netns, B17_ManyUnroutableInterfaces) {
  NAMESPACE(ns, "b17");
  for (int i = 0; i < 20; ++i) ns.interface(fmt::format("net{}", i), fmt::format("203.0.113.{}/32", i + 1));
  expect_two_ranks_work(ns, "203.0.113.");
}

TEST(Netns, B18_IPv6Only) {
  NAMESPACE(ns, "b18");
  if (!ns.ip("addr del 127.0.0.1/8 dev lo") || !contains(choice_in(ns), "[::1]")) {
    GTEST_SKIP() << "no IPv6 here";
  }
  expect_two_ranks_work(ns, "[::1]:");
  // An interface that has only a link-local address is skipped, and the reason given.
  ns.interface("ens3", "fe80::77/64");
  const std::string text = choice_in(ns);
  EXPECT_TRUE(text.starts_with("lo [::1] ")) << text;
  EXPECT_TRUE(contains(text, "link-local")) << text;
  expect_two_ranks_work(ns, "[::1]:");
  // Asked for by name it is used, with its scope.
  Config config;
  config.socket_ifname = "=ens3";
  const std::string chosen = choice_in(ns, "=ens3");
  EXPECT_TRUE(chosen.starts_with("ens3 [fe80::") && contains(chosen, "%ens3]")) << chosen;
  expect_two_ranks_work(ns, "[fe80::", config);
}

// Two namespaces with a link each to a third, which forwards nothing by itself.
struct Apart {
  Namespace a{"a"}, b{"b"}, gate{"gate"};
  bool good() const { return a.good() && b.good() && gate.good(); }
  void link(const Namespace& side, const std::string& address, const std::string& gate_address) const {
    const std::string name = "to-" + side.name().substr(side.name().rfind('-') + 1);
    EXPECT_TRUE(
        shell(fmt::format("ip -n {} link add eth0 type veth peer name {} netns {}", side.name(), name, gate.name())));
    side.up("eth0", address);
    gate.up(name, gate_address);
  }
};

TEST(Netns, B19_FamiliesDiffer) {
  const Apart apart;
  if (!apart.good()) GTEST_SKIP() << "network namespaces are not permitted here";
  apart.link(apart.a, "fd00:a::2/64", "fd00:a::1/64");
  apart.link(apart.b, "10.2.0.2/24", "10.2.0.1/24");
  EXPECT_TRUE(shell("ip netns exec " + apart.b.name() + " sysctl -w net.ipv6.conf.eth0.disable_ipv6=1"));
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const Fd ours(sockets[0]), theirs(sockets[1]);
  Inside zero(apart.a, [&]() -> std::string {
    Config config;
    auto made = make_unique_id(config);
    if (!made.ok() || ::write(theirs.get(), &*made, sizeof *made) < 0) return made.status().message();
    const JobId id = JobId::unpack(*made).value();
    return join({.id = id,
                 .rank = 0,
                 .size = 2,
                 .listener = take_root_listener(id),
                 .deadline = Deadline::after(seconds(2)),
                 .config = &config})
        .status()
        .message();
  });
  weftUniqueId made;
  ASSERT_EQ(::read(ours.get(), &made, sizeof made), ssize_t(sizeof made));
  for (const char* family : {"any", "inet"}) {
    const std::string text = Inside(apart.b, [&] {
                               Config config;
                               config.socket_family = family;
                               return join({.id = JobId::unpack(made).value(),
                                            .rank = 1,
                                            .size = 2,
                                            .listener = nullptr,
                                            .deadline = Deadline::after(seconds(5)),
                                            .config = &config})
                                   .status()
                                   .message();
                             }).text();
    EXPECT_TRUE(contains(text, "IPv6") && contains(text, "[fd00:a::2]:")) << family << ": " << text;
  }
  EXPECT_TRUE(contains(zero.text(), "rank 1 of 2 never joined"));
}

TEST(Netns, B20_SelectionForms) {
  NAMESPACE(ns, "b20");
  ns.interface("eth0", "10.20.0.1/24");
  ns.interface("eth1", "10.20.1.1/24");
  ns.interface("docker0", "172.17.0.1/16");
  EXPECT_TRUE(choice_in(ns, "eth").starts_with("eth0 10.20.0.1 "));
  EXPECT_TRUE(choice_in(ns, "=eth1").starts_with("eth1 10.20.1.1 "));
  EXPECT_TRUE(choice_in(ns, "^lo,docker,eth0,p-").starts_with("eth1 10.20.1.1 "));
  EXPECT_TRUE(choice_in(ns, "ib0,eth1").starts_with("eth1 10.20.1.1 "));
  const std::string misspelt = choice_in(ns, "ehto");
  EXPECT_TRUE(contains(misspelt, "WEFT_SOCKET_IFNAME=\"ehto\"") && contains(misspelt, "eth1 10.20.1.1")) << misspelt;
}

TEST(Netns, B21_PortForwarder) {
  const Apart apart;
  if (!apart.good()) GTEST_SKIP() << "network namespaces are not permitted here";
  apart.link(apart.a, "10.1.0.2/24", "10.1.0.1/24");
  apart.link(apart.b, "10.2.0.2/24", "10.2.0.1/24");
  const auto both = [&](const Config& root_config, milliseconds timeout) {
    const std::string root = file_root();
    Inside zero(apart.a, [&] { return take_part(root, 0, root_config, timeout); });
    Inside one(apart.b, [&] { return take_part(root, 1, {}, timeout); });
    return std::pair(zero.text(), one.text());
  };
  const auto [zero_alone, one_alone] = both({}, seconds(1));
  EXPECT_TRUE(contains(zero_alone, "rank 1 of 2 never joined")) << zero_alone;
  EXPECT_TRUE(contains(one_alone, "10.1.0.2:") && contains(one_alone, "not to be reached")) << one_alone;

  const Inside forwarder(apart.gate, []() -> std::string {
    testing::forward_ports({"10.2.0.1", 7000, "10.1.0.2", 23000});
  });
  Config config;
  config.advertise = "10.2.0.1:7000";
  config.port_range = "23000-23003";
  const auto [zero, one] = both(config, seconds(10));
  EXPECT_EQ(zero, "joined at 10.2.0.1:7000");
  EXPECT_EQ(one, "joined at 10.2.0.1:7000");
}

}  // namespace
}  // namespace weft
