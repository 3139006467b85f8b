// A flow: one operation in progress, as a data flow over (op, tile). Every wire direction walks its messages in key
// order and posts one as soon as its dependencies inside the tile are done and the tile is inside the window; local
// copies run when they are ready. It never blocks: advance() does what can be done now.
#pragma once

#include <memory>
#include <vector>

#include "bind/geometry.hpp"
#include "bind/schedule.hpp"
#include "memory/regions.hpp"

namespace weft {

struct PlanEntry {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Schedule> schedule;
};

class Flow {
 public:
  // Gives the wire to a peer; null ends the operation (the reason is the communicator's).
  using WireTo = Wire* (*)(void* owner, int peer);
  // Hears of memory that messages will come from or go to, before there are any.
  using Prepare = void (*)(void* owner, const Piece& memory);

  struct Launch {
    PlanEntry entry;
    MessageId id;  // index is counted from id.index up, on each wire and direction
    ReduceFn reduce = nullptr;
    ReduceFn streaming = nullptr;  // the same with streaming stores
    bool stream = false;           // results that no op reads go past the caches
    WireTo wire_to = nullptr;
    Prepare prepare = nullptr;  // null: nobody wants to know
    void* owner = nullptr;
    int rank = 0;
    uint64_t group = 0;  // for the trace
  };
  // geometry() must be bound before. False when scratch memory is out, or a wire cannot be had.
  bool start(const Launch& launch);
  Geometry& geometry() { return geometry_; }

  // True when anything moved.
  bool advance();
  bool done() const { return low_ == tiles_; }
  // Drops all requests. The wires must have been cancelled.
  void drop();
  const MessageId& id() const { return launch_.id; }
  // A peer whose message or acknowledgement is missing; -1 when none is.
  int waiting_for() const;

 private:
  struct Node {
    SendRequest send;
    RecvRequest recv;
    std::vector<Piece> pieces, accumulators;
    Forward forward;
    uint32_t op = 0, tile = 0;
    int peer = -1;
    bool is_send = false;
    uint64_t begun = 0;  // ticks, for the trace
    bool done() const { return is_send ? send.done : recv.done; }
  };
  struct Lane {  // one wire, one direction
    Wire* wire = nullptr;
    Cursor cursor;
    bool is_send = false;
    uint32_t posted = 0;
  };

  uint32_t& missing(uint32_t op, uint32_t tile) { return missing_[(tile % window_) * plan_->ops.size() + op]; }
  void open_tile(uint32_t tile);
  void complete(uint32_t op, uint32_t tile);
  bool post(Lane& lane);
  bool streams(const Op& op) const;
  bool find_message(uint32_t op, uint32_t tile, Forward* message);
  void offer(uint32_t answer, uint32_t tile, uint32_t sent);
  void launch_node(Lane& lane, uint32_t op, uint32_t tile, size_t bytes);
  bool reap();
  bool run_copies();
  void run_copy(const Op& op, uint32_t tile);
  void trace_node(const Node& node) const;

  Launch launch_;
  const Plan* plan_ = nullptr;
  Geometry geometry_;
  Scratch scratch_;
  uint32_t tiles_ = 0, window_ = 1, low_ = 0;
  std::vector<Lane> lanes_;
  std::vector<uint32_t> missing_;                      // per tile of the window and op: dependencies not done yet
  std::vector<uint32_t> left_;                         // per tile of the window: ops not done yet
  std::vector<std::pair<uint32_t, uint32_t>> ready_;   // copies to run: (op, tile)
  std::vector<std::pair<uint32_t, uint32_t>> placed_;  // sends whose data has been written at the receiver: (op, tile)
  std::vector<Piece> answer_;
  std::vector<std::unique_ptr<Node>> idle_, busy_;
};

}  // namespace weft
