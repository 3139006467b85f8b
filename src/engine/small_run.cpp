// Running compiled small calls.
#include "comm/comm.hpp"
#include "engine/combine.hpp"
#include "engine/engine.hpp"
#include "plan/shape.hpp"

namespace weft {
namespace {

Wire* wire_of(void* comm, int peer) { return static_cast<Comm*>(comm)->wire(peer); }

constexpr int kPeeks = 16;              // looks at a ring between two pauses
constexpr size_t kMostSmall = 1 << 20;  // bytes of a call that is tried

// Which calls may be small: those whose shape the key holds whole.
bool may_be_small(const Call& call) {
  return call.in_counts.empty() && call.out_counts.empty() && !call.wide && !call.scaled && call.op != weftAvg &&
         call.collective != Collective::sendrecv && call.count > 0 && call.count * type_bytes(call.type) <= kMostSmall;
}

}  // namespace

std::unique_ptr<SmallRecord> Engine::make_small(const Call& call, std::optional<ptrdiff_t> distance) {
  size_t bytes = call.count * type_bytes(call.type);
  if (call.collective != Collective::allreduce && call.collective != Collective::reduce &&
      call.collective != Collective::broadcast && call.collective != Collective::barrier) {
    bytes *= static_cast<size_t>(comm_.size());
  }
  const Choice choice = comm_.tuner().choose(call.collective, call.collective == Collective::barrier ? 0 : bytes);
  if (choice.program == nullptr) return nullptr;
  auto entry = plan(choice, call.collective, call.root, distance.has_value());
  if (!entry.ok()) return nullptr;
  Geometry geometry;
  geometry.bind(call, *entry->plan, type_bytes(call.type), choice.tile_bytes, choice.window);
  auto compiled = compile_small(*entry->plan, geometry, distance, wire_of, &comm_);
  if (compiled == nullptr) return nullptr;
  compiled->signature = signature(call);
  if (call.reduces() || call.collective == Collective::barrier) compiled->reduce = reduce_function(call.type, call.op);
  const int neighbour = compiled->ops.empty() || compiled->ops[0].wire == nullptr ? -1 : compiled->ops[0].wire->peer();
  compiled->shape = shape(call, choice.program->name(), neighbour);
  if (compiled->scratch_bytes > 0 && small_scratch_.get(compiled->scratch_bytes) == nullptr) return nullptr;
  return compiled;
}

const SmallRecord* Engine::small_record(const Call& call) {
  const SmallCache::Key key = SmallCache::key_of(call);
  SmallCache::Entry* entry = small_.find(key);
  if (entry == nullptr) {
    const Shape shape = shape_of(call.collective, comm_.size(), comm_.rank(), std::max(call.root, 0));
    const size_t block = call.count * type_bytes(call.type);
    SmallCache::Entry made;
    made.can_be_in_place = shape.can_be_in_place();
    made.distance = (static_cast<ptrdiff_t>(shape.in_first) - shape.out_first) * static_cast<ptrdiff_t>(block);
    made.in_bytes = shape.has_in ? shape.in_blocks * block : 0;
    made.out_bytes = shape.has_out ? shape.out_blocks * block : 0;
    entry = small_.put(key, std::move(made));
  }
  const bool on_spot = in_place(call, comm_.rank());
  if (!entry->known[on_spot]) {
    entry->record[on_spot] = make_small(call, on_spot ? std::optional(entry->distance) : std::nullopt);
    entry->known[on_spot] = true;
  }
  return entry->record[on_spot].get();
}

// Nothing else is in flight, so that a small call may have the engine to itself.
bool Engine::idle() const {
  return active_.empty() && !in_small_ && turns_.load(std::memory_order_relaxed) < kUnstarted && !comm_.failed() &&
         !comm_.abort_requested.load(std::memory_order_relaxed);
}

// Runs the call if it is small and nothing else is in flight. Lock held.
bool Engine::try_small(const Call& call, Status* status) {
  if (!may_be_small(call) || !idle()) return false;
  const SmallRecord* record = small_record(call);
  return record != nullptr && run_small(*record, call, status);
}

bool Engine::run_known(const CallHead& call, Status* status) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || guests_.load(std::memory_order_relaxed) > 0) return false;
  if (armed_) disarm();
  const SmallCache::Entry* entry = small_.find(SmallCache::key_of(call));
  const SmallRecord* record = entry == nullptr ? nullptr : entry->quick(call);
  return record != nullptr && idle() && run_small(*record, call, status);
}

bool Engine::run_small(const SmallRecord& record, const CallHead& call, Status* status) {
  uint64_t turn = turns_.load(std::memory_order_relaxed);
  if (turn >= kUnstarted || !turns_.compare_exchange_strong(turn, turn + 1)) return false;
  const auto sequence = static_cast<uint32_t>(turn & 0x7fffffff);
  const bool traced = trace_enabled();
  const uint64_t begun = traced ? ticks_now() : 0;
  const uint64_t ticket = small_ticket_ = comm_.recorder().begin(record.shape, sequence, OpState::running, begun);
  in_small_ = true;
  const bool ok = run_ops(record, call, sequence);
  in_small_ = false;
  if (ok) {
    comm_.recorder().done(ticket);
    past_[sequence % past_.size()] = {sequence, record.signature};
  } else {
    comm_.recorder().end(ticket, false);
    failures_.fetch_add(1, std::memory_order_relaxed);
    *status = comm_.status();
  }
  operations_.store(operations_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (traced) {
    trace_event({.kind = TraceKind::operation,
                 .rank = comm_.rank(),
                 .peer = call.root,
                 .sequence = sequence,
                 .group = comm_.group(),
                 .bytes = record.shape.bytes,
                 .begin = begun,
                 .end = ticks_now(),
                 .name = name_of(call.collective)});
  }
  return true;
}

Doing SmallRun::doing() const {
  Call whole;
  static_cast<CallHead&>(whole) = call;
  return {sequence, record.signature, op->wire == nullptr ? -1 : op->wire->peer(), describe(whole)};
}

bool Engine::small_send(const SmallOp& op, const MessageId& id, const std::byte* src, Wait& wait, const SmallRun& now) {
  if (op.ring != nullptr && op.ring->try_send(id, src, op.bytes)) return true;
  const Piece piece{const_cast<std::byte*>(src), op.bytes};
  SendRequest request;
  request.id = id;
  request.source = {&piece, 1, op.bytes};
  op.wire->send(request);
  while (!request.done) {
    if (!op.wire->progress() && !pause(wait, &now)) return false;
  }
  return true;
}

void Engine::send_view(const SmallOp& op, const MessageId& id, std::byte* src, size_t place) {
  SmallView& view = small_views_[place];
  view.op = &op;
  view.piece = {src, op.bytes};
  view.request.id = id;
  view.request.source = {&view.piece, 1, op.bytes};
  view.request.in_place = true;
  op.wire->send(view.request);
}

// Messages that nobody asked for may be of an operation that this rank has ended as another call; then the
// communicator fails here, as soon as it is known what the sender called.
bool Engine::explain_early(Wait& wait, const SmallRun& now) {
  if (!tick(wait, &now)) return false;
  while (comm_.watch().puzzled()) {
    if (!pause(wait, &now)) return false;
  }
  return true;
}

bool Engine::small_recv(const SmallOp& op, const MessageId& id, std::byte* dst, const std::byte* acc, Wait& wait,
                        const SmallRun& now) {
  const SmallRecord& record = now.record;
  const bool reduces = op.kind == SmallOp::Kind::recv_reduce;
  if (op.ring != nullptr) {
    bool other = false;
    for (int looks = 0; !other;) {
      if (const std::byte* data = op.ring->try_peek(id, op.bytes, &other)) {
        if (reduces) {
          record.reduce(dst, acc, data, op.bytes / record.element);
        } else {
          std::memcpy(dst, data, op.bytes);
        }
        op.ring->release(op.bytes);
        return true;
      }
      if (++looks < kPeeks || other) continue;
      looks = 0;
      if (!pause(wait, &now)) return false;
      // It takes long. A wire knows only by a request that somebody waits for a peer that may have left.
      if (wait.sleep_ms_ > 1) break;
    }
  }
  const Piece to{dst, op.bytes}, from{const_cast<std::byte*>(acc), op.bytes};
  RecvRequest request;
  request.id = id;
  request.sink = {&to, 1, op.bytes, reduces ? &from : nullptr, reduces ? record.reduce : nullptr, record.element};
  op.wire->recv(request);
  while (!request.done) {
    if (!op.wire->progress() && !pause(wait, &now)) return false;
  }
  return !op.wire->has_early() || explain_early(wait, now);
}

// False: the communicator has failed.
bool Engine::run_ops(const SmallRecord& record, const CallHead& call, uint32_t sequence) {
  std::byte* const base[3] = {const_cast<std::byte*>(static_cast<const std::byte*>(call.in)),
                              static_cast<std::byte*>(call.out), small_scratch_.get(0)};
  const auto at = [&base](const SmallPlace& place) { return base[place.buffer] + place.offset; };
  Wait wait(spins_);
  SmallRun now{call, record, sequence, nullptr};
  size_t views = 0;
  for (const SmallOp& op : record.ops) {
    now.op = &op;
    const MessageId id{sequence, op.index, record.signature};
    switch (op.kind) {
      case SmallOp::Kind::send:
        if (op.viewed) {
          send_view(op, id, at(op.src), views++);
        } else if (!small_send(op, id, at(op.src), wait, now)) {
          return false;
        }
        break;
      case SmallOp::Kind::recv:
      case SmallOp::Kind::recv_reduce:
        if (!small_recv(op, id, at(op.dst), at(op.src), wait, now)) return false;
        break;
      case SmallOp::Kind::copy:
        std::memmove(at(op.dst), at(op.src), op.bytes);
        break;
      case SmallOp::Kind::combine: {
        const std::byte* from[64];
        std::vector<const std::byte*> many;
        const std::byte** list = from;
        if (op.sources > 64) {
          many.resize(op.sources);
          list = many.data();
        }
        for (uint16_t i = 0; i < op.sources; ++i) list[i] = at(record.sources[op.first_source + i]);
        combine(record.reduce, record.element, {at(op.dst), op.bytes}, {list, op.sources});
        break;
      }
    }
  }
  for (size_t i = 0; i < views; ++i) {  // until all have been read
    now.op = small_views_[i].op;
    while (!small_views_[i].request.done) {
      if (!now.op->wire->progress() && !pause(wait, &now)) return false;
    }
  }
  return true;
}

}  // namespace weft
