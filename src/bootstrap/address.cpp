#include "bootstrap/address.hpp"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>

namespace weft {
namespace {

sockaddr_in* v4(sockaddr_storage& storage) { return reinterpret_cast<sockaddr_in*>(&storage); }
const sockaddr_in* v4(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr_in*>(&storage); }
sockaddr_in6* v6(sockaddr_storage& storage) { return reinterpret_cast<sockaddr_in6*>(&storage); }
const sockaddr_in6* v6(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr_in6*>(&storage); }

Status bad_form(std::string_view text) {
  return error(weftInvalidArgument, "\"{}\" is no address: legal is host:port or [ipv6]:port, port 1..65535", text);
}

using Resolved = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<Resolved> look_up(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (rc != 0) return error(weftSystemError, "cannot resolve host \"{}\": {}", host, gai_strerror(rc));
  return Resolved(list, freeaddrinfo);
}

Result<SocketAddress> end_of(int fd, decltype(&getsockname) call, const char* name) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  if (call(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return system_error(errno, name);
  return SocketAddress(reinterpret_cast<sockaddr*>(&storage), bytes);
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t bytes)
    : bytes_(std::min<socklen_t>(bytes, sizeof storage_)) {
  std::memcpy(&storage_, address, bytes_);
}

SocketAddress SocketAddress::any(int family, uint16_t port) {
  SocketAddress address;
  address.storage_.ss_family = static_cast<sa_family_t>(family);
  address.bytes_ = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.set_port(port);
  return address;
}

Result<SocketAddress> SocketAddress::parse(std::string_view text) {
  auto parts = split_host_port(text);
  if (!parts.ok()) return parts.status();
  auto list = look_up(parts->first, parts->second, AI_NUMERICHOST);
  if (!list.ok()) return error(weftInvalidArgument, "\"{}\" is no numeric address", text);
  return SocketAddress((*list)->ai_addr, (*list)->ai_addrlen);
}

Result<std::vector<SocketAddress>> SocketAddress::resolve(std::string_view text, int family) {
  auto parts = split_host_port(text);
  if (!parts.ok()) return parts.status();
  auto list = look_up(parts->first, parts->second, 0);
  if (!list.ok()) return list.status();
  std::vector<SocketAddress> found;
  int other = 0;
  for (const addrinfo* info = list->get(); info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    if (family != AF_UNSPEC && info->ai_family != family) {
      other = info->ai_family;
    } else {
      found.emplace_back(info->ai_addr, info->ai_addrlen);
    }
  }
  if (!found.empty()) return found;
  if (other != 0) {
    return error(weftInvalidUsage, "\"{}\" is an {} address, but only {} may be used here (WEFT_SOCKET_FAMILY)", text,
                 family_name(other), family_name(family));
  }
  return error(weftSystemError, "\"{}\" has no IPv4 or IPv6 address", text);
}

Result<SocketAddress> SocketAddress::local(int fd) { return end_of(fd, getsockname, "getsockname"); }
Result<SocketAddress> SocketAddress::remote(int fd) { return end_of(fd, getpeername, "getpeername"); }

std::string SocketAddress::format_host() const {
  if (bytes_ == 0) return {};
  char host[NI_MAXHOST];
  if (getnameinfo(data(), bytes_, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return host;
}

std::string SocketAddress::format() const {
  return bytes_ == 0 ? std::string() : join_host_port(format_host(), port());
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(v4(storage_)->sin_port);
  if (family() == AF_INET6) return ntohs(v6(storage_)->sin6_port);
  return 0;
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET) v4(storage_)->sin_port = htons(port);
  if (family() == AF_INET6) v6(storage_)->sin6_port = htons(port);
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return ntohl(v4(storage_)->sin_addr.s_addr) >> 24 == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6(storage_)->sin6_addr);
}

bool SocketAddress::is_link_local() const {
  if (family() == AF_INET) return ntohl(v4(storage_)->sin_addr.s_addr) >> 16 == 0xa9fe;
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(storage_)->sin6_addr);
}

bool SocketAddress::is_any() const {
  if (family() == AF_INET) return v4(storage_)->sin_addr.s_addr == 0;
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6(storage_)->sin6_addr);
}

bool SocketAddress::same_host(const SocketAddress& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET) return v4(storage_)->sin_addr.s_addr == v4(other.storage_)->sin_addr.s_addr;
  return family() == AF_INET6 && IN6_ARE_ADDR_EQUAL(&v6(storage_)->sin6_addr, &v6(other.storage_)->sin6_addr) &&
         v6(storage_)->sin6_scope_id == v6(other.storage_)->sin6_scope_id;
}

Result<std::pair<std::string, uint16_t>> split_host_port(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return bad_form(text);
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return bad_form(text);
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad_form(text);
  }
  unsigned port = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || code != std::errc() || end != digits.data() + digits.size() || port < 1 || port > 65535) {
    return bad_form(text);
  }
  return std::pair(std::string(host), static_cast<uint16_t>(port));
}

std::string join_host_port(std::string_view host, uint16_t port) {
  return host.find(':') == std::string_view::npos ? fmt::format("{}:{}", host, port)
                                                  : fmt::format("[{}]:{}", host, port);
}

std::string_view family_name(int family) {
  return family == AF_INET ? "IPv4" : family == AF_INET6 ? "IPv6" : "any family";
}

int family_of(std::string_view choice) { return choice == "inet" ? AF_INET : choice == "inet6" ? AF_INET6 : AF_UNSPEC; }

void tune_stream(int fd) {
  // Failures are harmless (a socket of another family, an old kernel), so nothing is checked.
  const auto set = [fd](int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

Result<Fd> start_connect(const SocketAddress& address) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return system_error(errno, fmt::format("socket ({})", family_name(address.family())));
  tune_stream(fd.get());
  if (::connect(fd.get(), address.data(), address.bytes()) != 0 && errno != EINPROGRESS && errno != EINTR) {
    return system_error(errno, fmt::format("connect to {}", address.format()));
  }
  return fd;
}

}  // namespace weft
