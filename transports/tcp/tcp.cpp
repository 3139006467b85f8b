#include "transports/tcp/tcp.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bootstrap/address.hpp"
#include "bootstrap/listener.hpp"
#include "log/log.hpp"
#include "transports/peer_wires.hpp"
#include "transports/tcp/wire.hpp"

namespace weft {
namespace {

constexpr int kReachTime = 2000;  // ms
// A socket that holds less than a packet of the loopback device stalls between packets.
constexpr int64_t kLeastBuffer = 64 << 10;

class TcpTransport : public Transport {
 public:
  TcpTransport(const TransportContext& context, Listener& listener)
      : context_(context),
        address_(listener.address()),
        connector_(
            context, 't', listener.release(),
            [this](const Hello& hello, bool accepted, Fd fd) {
              set_buffers(fd.get());
              wires_->ready(context_.rank, hello, accepted, std::move(fd));
            },
            [this](const Hello& hello, const Status& why) { failed(hello, why); }) {}

  std::string_view name() const override { return "tcp"; }
  Capability capability() const override {
    return {.latency_us = 15, .bandwidth_gbs = 2.5, .eager_bytes = tcp::kEagerBytes};
  }
  std::string address() const override { return address_; }
  bool reaches(int peer, const std::string& address) override;
  std::unique_ptr<Wire> connect(int peer, const std::string& address, Deadline deadline) override;
  bool progress() override;

 private:
  void set_buffers(int fd) const;
  void failed(const Hello& hello, const Status& why);

  TransportContext context_;
  std::string address_;
  std::shared_ptr<PeerWires<tcp::TcpWire>> wires_ = std::make_shared<PeerWires<tcp::TcpWire>>();
  Connector connector_;
};

bool TcpTransport::reaches(int peer, const std::string& address) {
  auto found = SocketAddress::resolve(address, family_of(context_.config->socket_family));
  if (!found.ok()) {
    log(LogLevel::info, "tcp: rank {} cannot be reached: {}", peer, found.status().message());
    return false;
  }
  std::string trouble = "no answer";
  for (const SocketAddress& candidate : *found) {
    Result<Fd> fd = start_connect(candidate);
    if (!fd.ok()) {
      trouble = fd.status().message();
      continue;
    }
    pollfd wait{fd->get(), POLLOUT, 0};
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(kReachTime));
    int ready = 0;
    while ((ready = ::poll(&wait, 1, deadline.left_ms())) < 0 && errno == EINTR) continue;
    int number = ETIMEDOUT;
    socklen_t bytes = sizeof number;
    if (ready > 0) ::getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, &number, &bytes);
    if (number == 0) return true;
    trouble = std::strerror(number);
  }
  log(LogLevel::info, "tcp: rank {} cannot be reached at {}: {}", peer, address, trouble);
  return false;
}

std::unique_ptr<Wire> TcpTransport::connect(int peer, const std::string& address, Deadline deadline) {
  auto wire = std::make_unique<tcp::TcpWire>(peer, context_.poller, wires_->leaver(wires_, peer));
  wires_->join(*wire);
  if (peer > context_.rank) return wire;
  const auto streams = static_cast<uint32_t>(context_.config->tcp_streams);
  const Status dialled = connector_.dial(peer, streams, address, deadline);
  if (!dialled.ok()) wire->connection_failed(dialled.message());
  return wire;
}

bool TcpTransport::progress() {
  const bool moved = connector_.progress();
  wires_->starve(context_.rank, connector_.starving());
  return moved;
}

void TcpTransport::set_buffers(int fd) const {
  if (context_.config->tcp_buffer_bytes == 0) return;
  const int bytes = static_cast<int>(std::max(context_.config->tcp_buffer_bytes, kLeastBuffer));
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

void TcpTransport::failed(const Hello& hello, const Status& why) {
  tcp::TcpWire* wire = wires_->find(hello.to);
  // A wire works without its further streams.
  if (hello.channel != 0 || wire == nullptr) {
    log(LogLevel::warn, "tcp: {}", why.message());
    return;
  }
  wire->connection_failed(why.message());
}

}  // namespace

Result<std::unique_ptr<Transport>> create_tcp(const TransportContext& context) {
  Result<std::shared_ptr<Listener>> listener = Listener::open(*context.config);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<Transport>(new TcpTransport(context, **listener));
}

}  // namespace weft
