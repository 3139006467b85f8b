#include "transports/tcp/tcp.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "bootstrap/address.hpp"
#include "bootstrap/listener.hpp"
#include "log/log.hpp"
#include "transports/connector.hpp"
#include "transports/tcp/wire.hpp"

namespace weft {
namespace {

constexpr uint32_t kMostStreams = 64;
constexpr int kReachTime = 2000;  // ms
// A socket that holds less than a packet of the loopback device stalls between packets.
constexpr int64_t kLeastBuffer = 64 << 10;

// The wires of a transport by peer, and connections of peers whose wire is not asked for yet. Shared with the wires, so
// that either may go first.
struct Wires {
  struct Peer {
    tcp::TcpWire* wire = nullptr;
    std::vector<std::pair<uint32_t, Fd>> early;
  };
  std::unordered_map<int, Peer> peers;
};

class TcpTransport : public Transport {
 public:
  TcpTransport(const TransportContext& context, Listener& listener)
      : context_(context),
        address_(listener.address()),
        connector_(
            context, 't', listener.release(),
            [this](const Hello& hello, bool accepted, Fd fd) { ready(hello, accepted, std::move(fd)); },
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
  void ready(const Hello& hello, bool accepted, Fd fd);
  void failed(const Hello& hello, const Status& why);
  int family() const { return family_of(context_.config->socket_family); }

  TransportContext context_;
  std::string address_;
  std::shared_ptr<Wires> wires_ = std::make_shared<Wires>();
  Connector connector_;
};

bool TcpTransport::reaches(int peer, const std::string& address) {
  auto found = SocketAddress::resolve(address, family());
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
  std::weak_ptr<Wires> registry = wires_;
  auto wire = std::make_unique<tcp::TcpWire>(peer, context_.poller, [registry, peer] {
    if (const auto wires = registry.lock()) wires->peers.erase(peer);
  });
  auto& slot = wires_->peers[peer];
  slot.wire = wire.get();
  for (auto& [channel, fd] : std::exchange(slot.early, {})) wire->adopt(channel, std::move(fd));
  if (peer > context_.rank) return wire;
  auto found = SocketAddress::resolve(address, family());
  if (!found.ok()) {
    wire->connection_failed(found.status().message());
    return wire;
  }
  const SocketAddress& target = found->front();
  for (int64_t channel = 0; channel < context_.config->tcp_streams; ++channel) {
    connector_.dial(peer, static_cast<uint32_t>(channel), target.storage(), target.bytes(), deadline);
  }
  return wire;
}

bool TcpTransport::progress() {
  const bool moved = connector_.progress();
  if (const Status starving = connector_.starving(); !starving.ok()) {
    for (const auto& [peer, slot] : wires_->peers) {
      if (peer > context_.rank && slot.wire != nullptr && !slot.wire->connected()) {
        slot.wire->connection_failed(starving.message());
      }
    }
  }
  return moved;
}

void TcpTransport::ready(const Hello& hello, bool accepted, Fd fd) {
  const int peer = accepted ? hello.from : hello.to;
  if (hello.channel >= kMostStreams) return;
  if (context_.config->tcp_buffer_bytes > 0) {
    const int bytes = static_cast<int>(std::max(context_.config->tcp_buffer_bytes, kLeastBuffer));
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }
  // Only the higher rank dials.
  if (accepted && peer < context_.rank) return;
  if (!accepted && wires_->peers.count(peer) == 0) return;  // the wire is gone meanwhile
  auto& slot = wires_->peers[peer];
  if (slot.wire != nullptr) {
    slot.wire->adopt(hello.channel, std::move(fd));
  } else if (slot.early.size() < kMostStreams) {
    slot.early.emplace_back(hello.channel, std::move(fd));
  }
}

void TcpTransport::failed(const Hello& hello, const Status& why) {
  const auto slot = wires_->peers.find(hello.to);
  // A wire works without its further streams.
  if (hello.channel != 0 || slot == wires_->peers.end() || slot->second.wire == nullptr) {
    log(LogLevel::warn, "tcp: {}", why.message());
    return;
  }
  slot->second.wire->connection_failed(why.message());
}

}  // namespace

Result<std::unique_ptr<Transport>> create_tcp(const TransportContext& context) {
  Result<std::shared_ptr<Listener>> listener = Listener::open(*context.config);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<Transport>(new TcpTransport(context, **listener));
}

}  // namespace weft
