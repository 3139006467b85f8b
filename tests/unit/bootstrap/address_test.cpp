#include "bootstrap/address.hpp"

#include <netinet/in.h>

#include "bootstrap/interfaces.hpp"
#include "tests/unit/bootstrap/support.hpp"

namespace weft {
namespace {

TEST(Address, ParseAndFormat) {
  for (const char* text : {"1.2.3.4:567", "[::1]:567", "[fd00::17]:65535", "0.0.0.0:1", "[fe80::1%lo]:9"}) {
    auto address = SocketAddress::parse(text);
    ASSERT_TRUE(address.ok()) << address.status().message();
    EXPECT_EQ(address->format(), text);
  }
  EXPECT_EQ(SocketAddress::parse("[::1]:567")->format_host(), "::1");
  EXPECT_EQ(SocketAddress().format(), "");
  EXPECT_TRUE(SocketAddress::parse("127.3.4.5:1")->is_loopback());
  EXPECT_TRUE(SocketAddress::parse("[fe80::1%lo]:9")->is_link_local());
  EXPECT_TRUE(SocketAddress::any(AF_INET6, 7).is_any());
}

// B02: a port that is none is an error that shows the text and the legal form.
TEST(Address, B02_BadForms) {
  for (const char* text : {"", ":", "host", "host:", "host:0", "host:70000", "host:1x", "host:-1", ":5", "::1:5",
                           "[::1]", "[]:5", "[::1:5"}) {
    auto parts = split_host_port(text);
    ASSERT_FALSE(parts.ok()) << text;
    EXPECT_TRUE(contains(parts.status().message(), "1..65535"));
    EXPECT_TRUE(contains(parts.status().message(), fmt::format("\"{}\"", text)));
  }
  EXPECT_FALSE(SocketAddress::parse("localhost:5").ok());
}

TEST(Address, ResolveLeavesOutOtherFamilies) {
  auto found = SocketAddress::resolve("127.0.0.1:5", AF_INET);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->front().format(), "127.0.0.1:5");
  const auto none = SocketAddress::resolve("[::1]:5", AF_INET);
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(contains(none.status().message(), "IPv6") && contains(none.status().message(), "IPv4"));
}

Interface entry(const char* name, const char* host, bool up = true) {
  return {name, SocketAddress::parse(join_host_port(host, 1)).value(), up, std::string_view(name) == "lo"};
}

const std::vector<Interface> kHost = {
    entry("docker0", "172.17.0.1"), entry("lo", "127.0.0.1"),       entry("lo", "::1"),
    entry("eth0", "10.0.0.1"),      entry("eth0", "fd00::1"),       entry("eth1", "10.1.0.1"),
    entry("eth10", "10.10.0.1"),    entry("ib0", "10.2.0.1", false)};

std::string chosen(std::string_view selection, int family = AF_UNSPEC, std::span<const Interface> table = kHost) {
  auto choice = choose_interface(table, selection, family);
  return choice.ok() ? choice->address.format_host() : choice.status().message();
}

TEST(Interfaces, B14_DefaultPassesOverDocker) {
  auto choice = choose_interface(kHost, "", AF_UNSPEC);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->name, "eth0");
  EXPECT_TRUE(contains(choice->reason, "docker0")) << choice->reason;
  EXPECT_EQ(chosen("", AF_INET6), "fd00::1");
  const std::vector<Interface> only_docker = {entry("lo", "127.0.0.1"), entry("docker0", "172.17.0.1")};
  EXPECT_EQ(chosen("", AF_UNSPEC, only_docker), "172.17.0.1");
}

TEST(Interfaces, B16_B18_LoopbackAndLinkLocal) {
  const std::vector<Interface> only_lo = {entry("lo", "127.0.0.1"), entry("lo", "::1")};
  EXPECT_EQ(chosen("", AF_UNSPEC, only_lo), "127.0.0.1");
  EXPECT_EQ(chosen("", AF_INET6, only_lo), "::1");
  const std::vector<Interface> link_local = {entry("lo", "::1"), entry("eth0", "fe80::1%lo")};
  auto choice = choose_interface(link_local, "", AF_UNSPEC);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->address.format_host(), "::1");
  EXPECT_TRUE(contains(choice->reason, "link-local")) << choice->reason;
  // Selected by name, it keeps its scope.
  EXPECT_EQ(chosen("eth0", AF_UNSPEC, link_local), "fe80::1%lo");
}

TEST(Interfaces, B20_SelectionForms) {
  EXPECT_EQ(chosen("eth"), "10.0.0.1");
  EXPECT_EQ(chosen("=eth1"), "10.1.0.1");
  EXPECT_EQ(chosen("eth1"), "10.1.0.1");
  EXPECT_EQ(chosen("^docker,lo"), "10.0.0.1");
  EXPECT_EQ(chosen("^docker,lo,=eth0"), "10.1.0.1");
  EXPECT_EQ(chosen("^eth1,=eth0"), "172.17.0.1");
  EXPECT_EQ(chosen("ens5,eth1,eth0"), "10.1.0.1");
  EXPECT_EQ(chosen("docker0"), "172.17.0.1");
  EXPECT_EQ(chosen("=lo"), "127.0.0.1");
  EXPECT_EQ(chosen(" eth1 , eth0"), "10.1.0.1");
  for (const char* selection : {"ehto", "=eth", "ib0", "^eth,lo,docker", "a,b"}) {
    const std::string text = chosen(selection);
    EXPECT_TRUE(contains(text, fmt::format("WEFT_SOCKET_IFNAME=\"{}\"", selection))) << text;
    EXPECT_TRUE(contains(text, "eth0 10.0.0.1") && contains(text, "ib0 10.2.0.1 (down)")) << text;
  }
  EXPECT_TRUE(contains(chosen("eth1", AF_INET6), "IPv6"));
  EXPECT_TRUE(contains(chosen("", AF_UNSPEC, {}), "no network interface"));
}

TEST(PortRangeTest, Parse) {
  auto range = PortRange::parse("2000-2010");
  ASSERT_TRUE(range.ok());
  EXPECT_EQ(range->first, 2000);
  EXPECT_EQ(range->last, 2010);
  EXPECT_EQ(PortRange::parse("7")->last, 7);
  EXPECT_EQ(PortRange::parse("")->first, 0);
  for (const char* text : {"0-5", "5-", "-5", "9-8", "1-70000", "1-2-3", "a"}) {
    auto bad = PortRange::parse(text);
    ASSERT_FALSE(bad.ok()) << text;
    EXPECT_TRUE(contains(bad.status().message(), fmt::format("WEFT_PORT_RANGE=\"{}\"", text)));
  }
}

TEST(ListenerTest, TellsItsAddress) {
  auto listener = Listener::open(loopback_config());
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  EXPECT_EQ((*listener)->address(), (*listener)->local().format());
  EXPECT_TRUE((*listener)->address().starts_with("127.0.0.1:"));
  Config six = loopback_config();
  six.socket_family = "inet6";
  auto v6 = Listener::open(six);
  if (v6.ok()) {
    EXPECT_TRUE((*v6)->address().starts_with("[::1]:")) << (*v6)->address();
  }
}

TEST(ListenerTest, B07_PortTakenOnTheAdvertisedAddress) {
  auto held = Listener::open(loopback_config());
  ASSERT_TRUE(held.ok());
  const uint16_t port = (*held)->local().port();
  Config config = loopback_config();
  config.port_range = fmt::format("{}-{}", port, std::min(65535, port + 20));
  auto other = Listener::open(config);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_NE((*other)->local().port(), port);
  config.port_range = std::to_string(port);
  bool in_use = false;
  auto none = Listener::bind((*held)->local(), {}, {}, &in_use);
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(in_use);
  EXPECT_TRUE(contains(none.status().message(), fmt::format("127.0.0.1, port {}", port))) << none.status().message();
  // Held on one address, it is not free for all addresses either.
  auto any = Listener::bind(SocketAddress::any(AF_INET, port), {}, {}, &in_use);
  EXPECT_TRUE(!any.ok() && in_use);
}

TEST(ListenerTest, B21_Advertise) {
  Config config = loopback_config();
  config.advertise = "gate.example";
  auto listener = Listener::open(config);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  EXPECT_EQ((*listener)->address(), fmt::format("gate.example:{}", (*listener)->local().port()));
  config.advertise = "gate.example:7000";
  config.port_range = "23000-23900";
  auto mapped = Listener::open(config);
  ASSERT_TRUE(mapped.ok());
  EXPECT_EQ((*mapped)->address(), fmt::format("gate.example:{}", 7000 + (*mapped)->local().port() - 23000));
  config.advertise = "[fd00::1]:7000";
  EXPECT_TRUE(Listener::open(config).value()->address().starts_with("[fd00::1]:7"));
  config.advertise = "fd00::1";
  EXPECT_TRUE(Listener::open(config).value()->address().starts_with("[fd00::1]:23"));
  config.advertise = "gate:70000";
  auto bad = Listener::open(config);
  ASSERT_FALSE(bad.ok());
  EXPECT_TRUE(contains(bad.status().message(), "WEFT_ADVERTISE=\"gate:70000\""));
}

TEST(ListenerTest, CloseReachesInheritedDescriptors) {
  auto listener = Listener::open(loopback_config());
  ASSERT_TRUE(listener.ok());
  const Fd copy(::dup((*listener)->fd()));
  bool closed = false;
  (*listener)->on_close([&closed] { closed = true; });
  const auto at = (*listener)->local();
  (*listener)->close();
  EXPECT_TRUE(closed);
  EXPECT_TRUE(Listener::bind(at).ok());
}

}  // namespace
}  // namespace weft
