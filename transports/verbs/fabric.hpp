// The rails of one communicator: for each port its completion queue, shared receive queue and buffers, and the one
// place where completions are polled. Wires hang on it by their queue pairs' numbers.
#pragma once

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "transports/transport.hpp"
#include "transports/verbs/blocks.hpp"
#include "transports/verbs/device.hpp"

namespace weft::verbs {

class ConnectionManager;
class VerbsWire;
struct Pair;

// Of wr_id: a receive, of the buffer with the number in the other bits. Sends have their serial numbers there.
inline constexpr uint64_t kReceiveTag = uint64_t{1} << 63;

inline constexpr uint32_t kSendDepth = 64;  // entries of a queue pair's send queue
inline constexpr uint32_t kMostPieces = 8;  // of one write
inline constexpr int kQueueAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
inline constexpr uint8_t kNotReadyTimer = 6;    // 0.08 ms until a receiver without buffers is asked again,
inline constexpr uint8_t kNotReadyRetries = 7;  // for ever: it is alive

// Buffers of the receive queue that all peers of a rail share. Whole blocks are filled: 31 frames take 256 KiB.
constexpr uint32_t receive_buffers(uint32_t peers) { return std::clamp(62 * peers, 248u, 1016u); }

// A queue pair of a wire.
struct Lane {
  // What is posted to the send queue and not known to be done.
  struct Posted {
    struct Outgoing* message = nullptr;  // null: a frame
    uint32_t fragment = 0;
    uint32_t bytes = 0;
    Block* bounce = nullptr;  // the fragment's bytes are here
    uint64_t serial = 0;
  };

  VerbsWire* wire = nullptr;
  int pair = 0;  // of the wire's
  int rail = 0;  // of the fabric's
  ibv_qp* queue = nullptr;
  struct rdma_cm_id* cm = nullptr;  // where the connection manager connects it
  uint32_t index = 0;               // in its pair
  bool established = false;         // by the connection manager
  uint32_t first_packet = 0;        // number of ours
  uint64_t serial = 0;              // of the last one posted
  uint32_t unsignaled = 0;          // the last ones that will not tell of their completion
  uint32_t fragments = 0;           // posted ones
  size_t bytes = 0;                 // of these
  bool failed = false;
  Queue<Posted> posted;
};

struct Rail {
  Port port;
  std::shared_ptr<Device> device;  // null: gone
  bool up = false;                 // usable, as far as this end can tell
  ibv_comp_channel* channel = nullptr;
  ibv_cq* completions = nullptr;
  ibv_srq* receives = nullptr;
  Block* buffers = nullptr;        // of the receive queue
  std::vector<uint32_t> returned;  // buffers that are to be posted again
  uint32_t depth = 0;
  uint32_t sends = 0;       // posted, of all lanes
  uint32_t most_sends = 0;  // so that the completion queue cannot overflow
  uint32_t most_inline = 0;
  uint32_t most_pieces = 0;  // of one write
  uint32_t seen = 0;         // changes of the device's
  bool notified = false;     // an event is asked for
  uint16_t cm_port = 0;      // where the connection manager listens; 0: it does not
  std::string trouble;       // why it is not up
};

// What others may read of a rail at any time.
struct RailStats {
  std::atomic<bool> up{false};
  std::atomic<uint64_t> connections{0};
  Counter bytes_sent, bytes_received, failures;
};

class Fabric {
 public:
  static Result<std::shared_ptr<Fabric>> create(const TransportContext& context, Registrations::FindRegion find_region);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  const TransportContext& context() const { return context_; }
  const Config& config() const { return *context_.config; }
  std::vector<Rail>& rails() { return rails_; }
  RailStats& stats(int rail) { return stats_[static_cast<size_t>(rail)]; }
  std::vector<RailCounters> counters() const;
  Blocks& blocks() { return blocks_; }
  FrameBuffers& frames() { return frames_; }

  // A queue pair. The error says what is in the way.
  Status open(Lane& lane);
  // After it the queue pair neither reads nor writes any memory.
  void close(Lane& lane);

  // Whether the connection manager (librdmacm) connects queue pairs.
  bool uses_cm() const { return manager_ != nullptr; }
  // Connects the queue pairs of a pair by it, whose other end listens.
  Status dial(Pair& pair);
  void progress_connections();

  // Hands completions to the wires. True when there were any.
  bool poll();
  // False: there is something already.
  bool arm();
  void disarm();
  // About once a millisecond: what devices and ports say, and what has come back.
  void tick();

  void join(VerbsWire* wire) { wires_.push_back(wire); }
  void part(VerbsWire* wire) { std::erase(wires_, wire); }
  VerbsWire* wire(int peer) const;

 private:
  explicit Fabric(const TransportContext& context);
  Status open_rail(size_t index);
  void close_rail(size_t index);
  Status make_receives(Rail& rail);
  void drop_resources(Rail& rail);
  void set_up(size_t index, bool up);
  void look_at(size_t index);
  bool poll(Rail& rail);
  // Posts what the wires have taken from receive buffers.
  void refill();
  bool scarce() const;
  void handle(Rail& rail, const ibv_wc& completion);

  TransportContext context_;
  Registrations::FindRegion find_region_ = nullptr;
  std::vector<Rail> rails_;
  std::vector<std::string> names_;  // of the rails
  std::array<RailStats, kMostRails> stats_;
  Blocks blocks_;
  FrameBuffers frames_{blocks_};
  std::unordered_map<uint64_t, Lane*> lanes_;  // by rail and queue pair number
  std::vector<VerbsWire*> wires_;
  std::unique_ptr<ConnectionManager> manager_;
  Clock::time_point ticked_{}, retry_at_{};
  bool asleep_ = false;
};

}  // namespace weft::verbs
