// The wires of a transport by peer, for those that a Connector connects: each is found by the connections that come for
// it, and connections of peers whose wire is not asked for yet wait for it. Of two ranks the higher one dials.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transports/connector.hpp"

namespace weft {

// W has adopt(channel, fd), connected() and connection_failed(why).
template <typename W>
class PeerWires {
 public:
  static constexpr uint32_t kMostChannels = 64;

  // What a wire calls when it is gone. Either may go first.
  static std::function<void()> leaver(const std::shared_ptr<PeerWires>& wires, int peer) {
    return [registry = std::weak_ptr<PeerWires>(wires), peer] {
      if (const auto wires = registry.lock()) wires->peers_.erase(peer);
    };
  }
  void join(W& wire) {
    Peer& slot = peers_[wire.peer()];
    slot.wire = &wire;
    for (auto& [channel, fd] : std::exchange(slot.early, {})) wire.adopt(channel, std::move(fd));
  }
  // Null: there is none.
  W* find(int peer) const {
    const auto slot = peers_.find(peer);
    return slot == peers_.end() ? nullptr : slot->second.wire;
  }
  // A connection of rank `rank`, its own or one that came.
  void ready(int rank, const Hello& hello, bool accepted, Fd fd) {
    const int peer = accepted ? hello.from : hello.to;
    if (hello.channel >= kMostChannels || (accepted && peer < rank)) return;
    if (W* wire = find(peer)) {
      wire->adopt(hello.channel, std::move(fd));
    } else if (accepted && peers_[peer].early.size() < kMostChannels) {
      peers_[peer].early.emplace_back(hello.channel, std::move(fd));
    }
  }
  // Nobody can be let in: what waits for those who dial us waits in vain.
  void starve(int rank, const Status& why) {
    if (why.ok()) return;
    for (const auto& [peer, slot] : peers_) {
      if (peer > rank && slot.wire != nullptr && !slot.wire->connected()) slot.wire->connection_failed(why.message());
    }
  }

 private:
  struct Peer {
    W* wire = nullptr;
    std::vector<std::pair<uint32_t, Fd>> early;
  };
  std::unordered_map<int, Peer> peers_;
};

}  // namespace weft
