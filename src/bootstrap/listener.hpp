// A bound, listening TCP socket and the address by which others reach it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bootstrap/address.hpp"
#include "config/config.hpp"
#include "status/fd.hpp"
#include "status/status.hpp"

namespace weft {

// WEFT_PORT_RANGE "first-last" (or one port); {0, 0} when empty: any free port.
struct PortRange {
  uint16_t first = 0, last = 0;
  static Result<PortRange> parse(const std::string& text);
};

class Listener {
 public:
  // As the configuration says: on the interface chosen by WEFT_SOCKET_IFNAME and WEFT_SOCKET_FAMILY (see
  // interfaces.hpp), at a port of WEFT_PORT_RANGE that is free there. With WEFT_ADVERTISE=host it listens on all
  // addresses and advertises host with its port; with host:port, the first port of the range is advertised as `port`,
  // the next as port + 1, and so on (an empty range then starts at `port` itself).
  static Result<std::shared_ptr<Listener>> open(const Config& config);
  // At one address, at the first free port of the range ({0, 0}: the address's own port; 0 any). `advertise_host`
  // replaces the host that others are told. weftSystemError with EADDRINUSE's text when no port is free; `*in_use`
  // then tells it from other failures.
  static Result<std::shared_ptr<Listener>> bind(const SocketAddress& at, PortRange range = {},
                                                const std::string& advertise_host = {}, bool* in_use = nullptr);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return fd_.get(); }
  // A tuned stream socket; empty when nobody waits.
  Fd accept();
  // "1.2.3.4:567", "[::1]:567", or a host name with a port: what others are told.
  const std::string& address() const { return advertised_; }
  // What the socket is bound to; the host may be "any".
  const SocketAddress& local() const { return local_; }
  // Hands the descriptor out; this listener is closed then.
  Fd release();
  // Closes it for every process that has inherited it, so that who comes later is refused at once.
  void close();
  // Called once, when the listener closes in the process that made it.
  void on_close(std::function<void()> action) { on_close_ = std::move(action); }

 private:
  Listener(Fd fd, SocketAddress local, std::string advertised);
  void closed();

  Fd fd_;
  SocketAddress local_;
  std::string advertised_;
  std::function<void()> on_close_;
  pid_t pid_;
};

}  // namespace weft
