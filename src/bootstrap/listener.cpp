#include "bootstrap/listener.hpp"

#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <utility>

#include "bootstrap/interfaces.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

constexpr int kBacklog = 4096;  // the kernel cuts it to net.core.somaxconn

// socket, bind and listen; *number is errno of what failed.
Fd try_listen(const SocketAddress& at, int* number) {
  Fd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  if (fd) {
    // Connections of an earlier job that linger in TIME_WAIT do not hold the port; listeners still do.
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (at.family() == AF_INET6 && at.is_any()) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (!fd || ::bind(fd.get(), at.data(), at.bytes()) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    *number = errno;
    fd.reset();
  }
  return fd;
}

struct Advertised {
  std::string host;
  uint16_t port = 0;  // 0: the listening port
};

Result<Advertised> parse_advertise(const std::string& text) {
  const bool bracketed = text.front() == '[';
  const bool has_port = bracketed ? text.find("]:") != std::string::npos
                                  : text.find(':') != std::string::npos && text.find(':') == text.rfind(':');
  if (has_port) {
    auto parts = split_host_port(text);
    if (!parts.ok()) {
      return error(weftInvalidArgument, "WEFT_ADVERTISE=\"{}\": legal is host or host:port, port 1..65535", text);
    }
    return Advertised{parts->first, parts->second};
  }
  if (bracketed && (text.size() < 3 || text.back() != ']')) {
    return error(weftInvalidArgument, "WEFT_ADVERTISE=\"{}\": legal is host or host:port, an IPv6 address in []", text);
  }
  return Advertised{bracketed ? text.substr(1, text.size() - 2) : text, 0};
}

}  // namespace

Result<PortRange> PortRange::parse(const std::string& text) {
  if (text.empty()) return PortRange{};
  unsigned first = 0, last = 0;
  const char* end = text.data() + text.size();
  auto [rest, code] = std::from_chars(text.data(), end, first);
  last = first;
  bool good = code == std::errc();
  if (good && rest != end) {
    good = *rest == '-';
    if (good) {
      const auto second = std::from_chars(rest + 1, end, last);
      good = second.ec == std::errc() && second.ptr == end;
    }
  }
  if (!good || first < 1 || last > 65535 || first > last) {
    return error(weftInvalidArgument, "WEFT_PORT_RANGE=\"{}\": legal is first-last with 1 <= first <= last <= 65535",
                 text);
  }
  return PortRange{static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
}

Listener::Listener(Fd fd, SocketAddress local, std::string advertised)
    : fd_(std::move(fd)), local_(local), advertised_(std::move(advertised)), pid_(::getpid()) {}

Listener::~Listener() { closed(); }

Result<std::shared_ptr<Listener>> Listener::bind(const SocketAddress& at, PortRange range,
                                                 const std::string& advertise_host, bool* in_use) {
  if (in_use != nullptr) *in_use = false;
  if (range.first == 0) range = {at.port(), at.port()};
  SocketAddress where = at;
  int number = EADDRINUSE;
  // A port may be taken at bind() or, by somebody who has bound but not listened yet, at listen(): both count.
  for (unsigned port = range.first; port <= range.last && number == EADDRINUSE; ++port) {
    where.set_port(static_cast<uint16_t>(port));
    Fd fd = try_listen(where, &number);
    if (!fd) continue;
    auto local = SocketAddress::local(fd.get());
    if (!local.ok()) return local.status();
    std::string advertised = advertise_host.empty() ? local->format() : join_host_port(advertise_host, local->port());
    return std::shared_ptr<Listener>(new Listener(std::move(fd), *local, std::move(advertised)));
  }
  if (in_use != nullptr) *in_use = number == EADDRINUSE;
  std::string ports;
  if (range.first != 0) ports = fmt::format(", port {}", range.first);
  if (range.last != range.first) ports = fmt::format(", ports {}-{}", range.first, range.last);
  return system_error(number, fmt::format("cannot listen at {}{}", at.format_host(), ports));
}

Result<std::shared_ptr<Listener>> Listener::open(const Config& config) {
  auto range = PortRange::parse(config.port_range);
  if (!range.ok()) return range.status();
  if (config.advertise.empty()) {
    auto choice = choose_interface(config);
    if (!choice.ok()) return choice.status();
    return bind(choice->address, *range);
  }
  auto advertised = parse_advertise(config.advertise);
  if (!advertised.ok()) return advertised.status();
  if (advertised->port != 0 && range->first == 0) *range = {advertised->port, 65535};
  const int family = family_of(config.socket_family);
  auto listener = bind(SocketAddress::any(family == AF_INET ? AF_INET : AF_INET6, 0), *range, advertised->host);
  // A kernel without IPv6 has no "::" to listen on.
  if (!listener.ok() && family == AF_UNSPEC) listener = bind(SocketAddress::any(AF_INET, 0), *range, advertised->host);
  if (listener.ok() && advertised->port != 0) {
    const unsigned port = advertised->port + ((*listener)->local().port() - range->first);
    if (port > 65535) {
      return error(weftInvalidArgument, "WEFT_ADVERTISE=\"{}\": the port to advertise would be {}, above 65535",
                   config.advertise, port);
    }
    (*listener)->advertised_ = join_host_port(advertised->host, static_cast<uint16_t>(port));
  }
  if (listener.ok()) {
    log(LogLevel::info, "listening at {}, advertised as {} (WEFT_ADVERTISE)", (*listener)->local().format(),
        (*listener)->address());
  }
  return listener;
}

Fd Listener::accept() {
  if (!fd_) return {};
  Fd peer;
  do {
    peer = Fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  } while (!peer && (errno == EINTR || errno == ECONNABORTED));
  if (peer) tune_stream(peer.get());
  return peer;
}

Fd Listener::release() {
  Fd fd = std::move(fd_);
  closed();
  return fd;
}

void Listener::close() {
  // shutdown() reaches the socket itself and so also the descriptors that forked processes have inherited.
  if (fd_) ::shutdown(fd_.get(), SHUT_RDWR);
  closed();
}

void Listener::closed() {
  fd_.reset();
  auto action = std::exchange(on_close_, nullptr);
  if (action && ::getpid() == pid_) action();
}

}  // namespace weft
