#include "engine/flow.hpp"

#include <algorithm>

#include "engine/combine.hpp"
#include "trace/trace.hpp"

namespace weft {
namespace {

// The chunks of a list of regions, one after the other.
class RegionWalk {
 public:
  explicit RegionWalk(std::span<const Region> regions) : regions_(regions) { settle(); }
  bool at_end() const { return region_ == regions_.size(); }
  Buffer buffer() const { return regions_[region_].buffer; }
  uint32_t chunk() const { return regions_[region_].first + offset_; }
  void next() {
    ++offset_;
    settle();
  }

 private:
  void settle() {
    while (region_ < regions_.size() && offset_ >= regions_[region_].count) {
      ++region_;
      offset_ = 0;
    }
  }
  std::span<const Region> regions_;
  size_t region_ = 0;
  uint32_t offset_ = 0;
};

// What is smaller goes through a ring and is not worth a look whether the receiver waits for it somewhere.
constexpr size_t kPlaceBytes = 32 << 10;

}  // namespace

bool Flow::start(const Launch& launch) {
  launch_ = launch;
  plan_ = launch.entry.plan.get();
  const Schedule& schedule = *launch.entry.schedule;
  tiles_ = geometry_.tiles();
  window_ = schedule.window;
  low_ = 0;
  ready_.clear();
  placed_.clear();
  lanes_.clear();
  if (plan_->ops.empty()) {
    low_ = tiles_;
    return true;
  }
  const size_t scratch_bytes = geometry_.scratch_bytes();
  if (scratch_bytes > 0) {
    std::byte* scratch = scratch_.get(scratch_bytes);
    if (scratch == nullptr) return false;
    geometry_.set_scratch(scratch);
  }
  if (launch.prepare != nullptr) {
    for (const Buffer buffer : {Buffer::in, Buffer::out, Buffer::scratch}) {
      const Piece memory = geometry_.extent(buffer);
      if (memory.data != nullptr && memory.bytes > 0) launch.prepare(launch.owner, memory);
    }
  }
  for (const Schedule::Queue& queue : schedule.queues) {
    Wire* wire = launch.wire_to(launch.owner, queue.peer);
    if (wire == nullptr) return false;
    lanes_.push_back({wire, Cursor(schedule, queue, tiles_), queue.verb == Verb::send, 0});
  }
  // Receives first: what they offer should be there when the peer sees the first message.
  std::stable_partition(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return !lane.is_send; });
  missing_.resize(size_t{window_} * plan_->ops.size());
  left_.assign(window_, 0);
  for (uint32_t tile = 0; tile < std::min(window_, tiles_); ++tile) open_tile(tile);
  return true;
}

void Flow::open_tile(uint32_t tile) {
  std::copy(plan_->predecessors.begin(), plan_->predecessors.end(), &missing(0, tile));
  left_[tile % window_] = static_cast<uint32_t>(plan_->ops.size());
  for (uint32_t op = 0; op < plan_->ops.size(); ++op) {
    if (plan_->ops[op].verb == Verb::copy && plan_->predecessors[op] == 0) ready_.emplace_back(op, tile);
  }
}

void Flow::complete(uint32_t op, uint32_t tile) {
  for (uint32_t i = plan_->successor_begin[op]; i < plan_->successor_begin[op + 1]; ++i) {
    const uint32_t successor = plan_->successors[i];
    if (--missing(successor, tile) == 0 && plan_->ops[successor].verb == Verb::copy)
      ready_.emplace_back(successor, tile);
  }
  --left_[tile % window_];
  while (low_ < tiles_ && left_[low_ % window_] == 0) {
    const uint32_t opened = low_ + window_;
    ++low_;
    if (opened < tiles_) {
      open_tile(opened);
    } else {
      left_[opened % window_] = UINT32_MAX;  // no tile: never counted down
      if (low_ == tiles_) return;
    }
  }
}

// Posts the messages of one lane whose turn it is. Empty ones do not exist on the wire, at either end.
bool Flow::post(Lane& lane) {
  bool moved = false;
  for (; !lane.cursor.at_end(); lane.cursor.next()) {
    const uint32_t op = lane.cursor.op(), tile = lane.cursor.tile();
    if (tile >= low_ + window_ || missing(op, tile) != 0) break;
    const auto regions = lane.is_send ? plan_->src(plan_->ops[op]) : plan_->dst(plan_->ops[op]);
    const size_t bytes = geometry_.bytes(regions, tile);
    moved = true;
    if (bytes == 0) {
      complete(op, tile);
    } else {
      launch_node(lane, op, tile, bytes);
      // It was there already, and has cost its time: what can be sent now goes first.
      if (!lane.is_send && busy_.back()->done()) {
        lane.cursor.next();
        break;
      }
    }
  }
  return moved;
}

// What is combined has cost its reads already, and is sent on at leisure; what is copied is sent on from the caches.
bool Flow::streams(const Op& op) const {
  const size_t index = static_cast<size_t>(&op - plan_->ops.data());
  return launch_.stream && op.last && (op.reduce || plan_->successor_begin[index] == plan_->successor_begin[index + 1]);
}

void Flow::launch_node(Lane& lane, uint32_t op_index, uint32_t tile, size_t bytes) {
  const Op& op = plan_->ops[op_index];
  if (idle_.empty()) idle_.push_back(std::make_unique<Node>());
  std::unique_ptr<Node> node = std::move(idle_.back());
  idle_.pop_back();
  node->op = op_index;
  node->tile = tile;
  node->peer = op.peer;
  node->is_send = lane.is_send;
  node->forward = {};
  if (trace_enabled()) node->begun = ticks_now();
  MessageId id = launch_.id;
  id.index += lane.posted++;
  if (lane.is_send) {
    geometry_.pieces(plan_->src(op), tile, &node->pieces);
    if (op.answer != Op::kNone && bytes >= kPlaceBytes) offer(op.answer, tile, id.index);
    node->send.id = id;
    node->send.placed = std::erase(placed_, std::pair(op_index, tile)) > 0;
    node->send.source = {node->pieces.data(), static_cast<uint32_t>(node->pieces.size()), bytes};
    lane.wire->send(node->send);
  } else {
    Sink sink;
    if (op.reduce) {
      geometry_.pieces(plan_->dst(op), plan_->src(op), tile, &node->pieces, &node->accumulators);
      sink.acc = node->accumulators.data();
      sink.reduce = streams(op) ? launch_.streaming : launch_.reduce;
      if (op.forward != Op::kNone && bytes >= kPlaceBytes && find_message(op.forward, tile, &node->forward)) {
        sink.forward = &node->forward;
        if (launch_.stream) sink.streaming = launch_.streaming;
      }
    } else {
      geometry_.pieces(plan_->dst(op), tile, &node->pieces);
      sink.stream = streams(op);
      if (bytes >= kPlaceBytes && node->pieces.size() == 1) lane.wire->offer(id, node->pieces[0]);
    }
    sink.dst = node->pieces.data();
    sink.count = static_cast<uint32_t>(node->pieces.size());
    sink.bytes = bytes;
    sink.element = static_cast<uint32_t>(geometry_.element_bytes());
    node->recv.id = id;
    node->recv.sink = sink;
    lane.wire->recv(node->recv);
  }
  busy_.push_back(std::move(node));
}

// The message by which op will go on tile `tile`. False: it is too far away to be told.
bool Flow::find_message(uint32_t op, uint32_t tile, Forward* message) {
  constexpr int kMostSteps = 16;
  const bool is_send = plan_->ops[op].verb == Verb::send;
  for (const Lane& lane : lanes_) {
    if (lane.is_send != is_send || lane.wire->peer() != plan_->ops[op].peer) continue;
    message->wire = lane.wire;
    message->id = launch_.id;
    message->id.index += lane.posted;
    Cursor cursor = lane.cursor;
    for (int i = 0; i < kMostSteps && !cursor.at_end(); ++i, cursor.next()) {
      if (cursor.op() == op && cursor.tile() == tile) return true;
      const Op& before = plan_->ops[cursor.op()];
      if (geometry_.bytes(is_send ? plan_->src(before) : plan_->dst(before), cursor.tile()) > 0) ++message->id.index;
    }
  }
  return false;
}

// What is sent now, as message `sent`, comes back into the same place, and its reader may put it there.
void Flow::offer(uint32_t answer, uint32_t tile, uint32_t sent) {
  Forward message;
  if (!find_message(answer, tile, &message)) return;
  geometry_.pieces(plan_->dst(plan_->ops[answer]), tile, &answer_);
  if (answer_.size() == 1) message.wire->offer(message.id, answer_[0], sent);
}

bool Flow::reap() {
  bool moved = false;
  for (size_t i = 0; i < busy_.size();) {
    if (!busy_[i]->done()) {
      ++i;
      continue;
    }
    std::unique_ptr<Node> node = std::move(busy_[i]);
    busy_[i] = std::move(busy_.back());
    busy_.pop_back();
    if (trace_enabled()) trace_node(*node);
    const uint32_t op = node->op, tile = node->tile;
    if (node->forward.done) placed_.emplace_back(plan_->ops[op].forward, tile);
    idle_.push_back(std::move(node));
    complete(op, tile);
    moved = true;
  }
  return moved;
}

// dst = src0 op src1 op src2 ..., chunk by chunk and, inside a chunk, block by block through a small buffer: dst may be
// any one of the sources, so a block of it is written only after that block of every source was read.
void Flow::run_copy(const Op& op, uint32_t tile) {
  const auto dst = plan_->dst(op);
  const auto src = plan_->src(op);
  const size_t per_source = src.size() / op.sources;
  std::vector<RegionWalk> walks;
  for (uint16_t i = 0; i < op.sources; ++i) walks.emplace_back(src.subspan(i * per_source, per_source));
  std::vector<const std::byte*> from(op.sources);
  const bool stream = streams(op);
  for (RegionWalk to(dst); !to.at_end(); to.next()) {
    const Piece piece = geometry_.piece(to.buffer(), to.chunk(), tile);
    for (size_t i = 0; i < walks.size(); ++i) {
      from[i] = geometry_.piece(walks[i].buffer(), walks[i].chunk(), tile).data;
      walks[i].next();
    }
    if (piece.bytes == 0) continue;
    if (op.sources == 1) {
      copy(piece.data, from[0], piece.bytes, stream);
    } else {
      combine(launch_.reduce, geometry_.element_bytes(), piece, from);
    }
  }
}

bool Flow::run_copies() {
  bool moved = false;
  while (!ready_.empty()) {
    const auto [op, tile] = ready_.back();
    ready_.pop_back();
    const uint64_t begun = trace_enabled() ? ticks_now() : 0;
    run_copy(plan_->ops[op], tile);
    if (trace_enabled()) {
      trace_event({.kind = TraceKind::copy,
                   .rank = launch_.rank,
                   .sequence = launch_.id.sequence,
                   .tile = tile,
                   .step = plan_->ops[op].step,
                   .group = launch_.group,
                   .bytes = geometry_.bytes(plan_->dst(plan_->ops[op]), tile),
                   .begin = begun,
                   .end = ticks_now()});
    }
    complete(op, tile);
    moved = true;
  }
  return moved;
}

bool Flow::advance() {
  bool moved = reap();
  moved |= run_copies();
  for (Lane& lane : lanes_) moved |= post(lane);
  if (moved) {
    reap();
    run_copies();
  }
  return moved;
}

void Flow::drop() {
  for (auto& node : busy_) idle_.push_back(std::move(node));
  busy_.clear();
  ready_.clear();
  lanes_.clear();
  low_ = tiles_;
}

int Flow::waiting_for() const {
  for (const auto& node : busy_) {
    if (!node->is_send && !node->done()) return node->peer;
  }
  for (const auto& node : busy_) {
    if (!node->done()) return node->peer;
  }
  return -1;
}

void Flow::trace_node(const Node& node) const {
  trace_event({.kind = node.is_send ? TraceKind::send : TraceKind::recv,
               .rank = launch_.rank,
               .peer = node.peer,
               .sequence = launch_.id.sequence,
               .tile = node.tile,
               .step = plan_->ops[node.op].step,
               .group = launch_.group,
               .bytes = node.is_send ? node.send.source.bytes : node.recv.sink.bytes,
               .begin = node.begun,
               .end = ticks_now()});
}

}  // namespace weft
