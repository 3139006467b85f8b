// Socket addresses as plain values: "1.2.3.4:567", "[::1]:567", "[fe80::1%eth0]:567".
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "status/fd.hpp"
#include "status/status.hpp"

namespace weft {

class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t bytes);
  static SocketAddress any(int family, uint16_t port);  // 0.0.0.0 or ::

  // Numeric forms only, no resolver. The port is required.
  static Result<SocketAddress> parse(std::string_view text);
  // "host:port" with a numeric address or a name. family: AF_UNSPEC, AF_INET or AF_INET6; addresses of another family
  // are left out, and none left is an error that names both families. Names go through the system's resolver, which may
  // take seconds.
  static Result<std::vector<SocketAddress>> resolve(std::string_view text, int family = AF_UNSPEC);
  // The local or remote end of a socket.
  static Result<SocketAddress> local(int fd);
  static Result<SocketAddress> remote(int fd);

  std::string format() const;       // with port; an IPv6 host in brackets; "" when empty
  std::string format_host() const;  // without port and brackets
  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  bool is_loopback() const;
  bool is_link_local() const;
  bool is_any() const;
  bool same_host(const SocketAddress& other) const;  // equal but for the port

  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  const sockaddr_storage& storage() const { return storage_; }
  socklen_t bytes() const { return bytes_; }
  explicit operator bool() const { return bytes_ > 0; }

 private:
  sockaddr_storage storage_{};
  socklen_t bytes_ = 0;
};

// "host:port", "[v6]:port" -> host without brackets, and port. Errors name the text and the legal form.
Result<std::pair<std::string, uint16_t>> split_host_port(std::string_view text);
std::string join_host_port(std::string_view host, uint16_t port);
// "IPv4", "IPv6"
std::string_view family_name(int family);
// WEFT_SOCKET_FAMILY's any|inet|inet6 as AF_UNSPEC, AF_INET, AF_INET6.
int family_of(std::string_view choice);

// Close-on-exec, non-blocking, no Nagle delay, keep-alive within half a minute: what every stream socket of Weft is.
void tune_stream(int fd);
// A non-blocking connect() under way; writable when it is over, SO_ERROR tells how. Already tuned.
Result<Fd> start_connect(const SocketAddress& address);

}  // namespace weft
