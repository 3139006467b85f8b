#include "transports/shm/shm.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <fstream>
#include <map>
#include <random>

#include "log/log.hpp"
#include "transports/connector.hpp"
#include "transports/shm/shm_wire.hpp"

namespace weft {
namespace {

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

// An abstract unix address: no file, gone with the process, visible inside one network namespace.
socklen_t unix_address(const std::string& name, sockaddr_storage* storage) {
  auto* address = reinterpret_cast<sockaddr_un*>(storage);
  *storage = {};
  address->sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address->sun_path) - 2);
  std::copy_n(name.data(), length, address->sun_path + 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

class ShmTransport final : public Transport {
 public:
  ShmTransport(const TransportContext& context, std::string host, std::string name, Fd listener)
      : context_(context),
        host_(std::move(host)),
        name_(std::move(name)),
        connector_(
            context, 's', std::move(listener),
            [this](const Hello& hello, bool accepted, Fd fd) { connected(hello, accepted, std::move(fd)); },
            [this](const Hello& hello, const Status& why) {
              if (auto found = wires_.find(hello.to); found != wires_.end()) found->second->refused(why);
            }) {}

  std::string_view name() const override { return "shm"; }
  Capability capability() const override {
    return {.latency_us = 0.15,
            .bandwidth_gbs = 8,
            .eager_bytes = RingWire::kEager,
            .same_host_only = true,
            .maps_memory = true};
  }
  std::string address() const override { return host_ + "|" + name_; }

  // A peer is reached when its socket can be connected to, which needs the same kernel and network namespace; both are
  // then known to carry descriptors.
  bool reaches(int peer, const std::string& address) override {
    const size_t bar = address.find('|');
    if (bar == std::string::npos || address.substr(0, bar) != host_) return false;
    sockaddr_storage storage;
    const socklen_t length = unix_address(address.substr(bar + 1), &storage);
    Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (probe && ::connect(probe.get(), reinterpret_cast<sockaddr*>(&storage), length) == 0) return true;
    log(LogLevel::info, "shm: rank {} has this kernel but not this network namespace: {}", peer, std::strerror(errno));
    return false;
  }

  std::unique_ptr<Wire> connect(int peer, const std::string& address, Deadline deadline) override {
    auto wire = std::make_unique<ShmWire>(context_, peer, [this, peer] { wires_.erase(peer); });
    wires_[peer] = wire.get();
    if (context_.rank > peer) {
      sockaddr_storage storage;
      const socklen_t length = unix_address(address.substr(address.find('|') + 1), &storage);
      connector_.dial(peer, 0, storage, length, deadline);
    } else if (auto waiting = accepted_.find(peer); waiting != accepted_.end()) {
      wire->take(std::move(waiting->second), false);
      accepted_.erase(waiting);
    }
    return wire;
  }
  bool progress() override {
    const bool moved = connector_.progress();
    if (const Status starving = connector_.starving(); !starving.ok()) {
      for (const auto& [peer, wire] : wires_) {
        if (peer > context_.rank && !wire->connected()) wire->refused(starving);
      }
    }
    return moved;
  }

 private:
  void connected(const Hello& hello, bool accepted, Fd fd) {
    const int peer = accepted ? hello.from : hello.to;
    if (auto found = wires_.find(peer); found != wires_.end()) {
      found->second->take(std::move(fd), !accepted);
    } else if (accepted) {
      accepted_[peer] = std::move(fd);
    }
  }

  TransportContext context_;
  std::string host_, name_;
  std::map<int, ShmWire*> wires_;
  std::map<int, Fd> accepted_;  // before connect() asked for them
  Connector connector_;
};

}  // namespace

Result<std::unique_ptr<Transport>> create_shm(const TransportContext& context) {
  const std::string host = boot_id();
  if (host.empty()) return error(weftSystemError, "shm: /proc/sys/kernel/random/boot_id cannot be read");
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return system_error(errno, "shm: socket(AF_UNIX)");
  std::random_device random;
  const std::string name = fmt::format("weft-{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  sockaddr_storage storage;
  const socklen_t length = unix_address(name, &storage);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    return system_error(errno, "shm: cannot listen on a unix socket");
  }
  return std::unique_ptr<Transport>(std::make_unique<ShmTransport>(context, host, name, std::move(listener)));
}

}  // namespace weft
