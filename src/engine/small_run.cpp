// Running compiled small calls.
#include "comm/comm.hpp"
#include "engine/combine.hpp"
#include "engine/engine.hpp"

namespace weft {
namespace {

Wire* wire_of(void* comm, int peer) { return static_cast<Comm*>(comm)->wire(peer); }

constexpr int kPeeks = 16;               // looks at a ring between two pauses
constexpr size_t kMostSmall = 64 << 10;  // bytes of a call that is tried

// Which calls may be small: those whose shape the key holds whole.
bool may_be_small(const Call& call) {
  return call.in_counts.empty() && call.out_counts.empty() && !call.wide && !call.scaled && call.op != weftAvg &&
         call.collective != Collective::sendrecv && call.count > 0 && call.count * type_bytes(call.type) <= kMostSmall;
}

}  // namespace

SmallRecord* Engine::small_record(const Call& call) {
  const bool on_spot = in_place(call, comm_.rank());
  const SmallCache::Key key{call.count,
                            static_cast<uint32_t>(call.collective) | static_cast<uint32_t>(call.type) << 8 |
                                static_cast<uint32_t>(call.op) << 16 | static_cast<uint32_t>(on_spot) << 24,
                            call.root};
  bool found = false;
  SmallRecord* record = small_.find(key, &found);
  if (found) return record;
  size_t bytes = call.count * type_bytes(call.type);
  if (call.collective != Collective::allreduce && call.collective != Collective::reduce &&
      call.collective != Collective::broadcast && call.collective != Collective::barrier) {
    bytes *= static_cast<size_t>(comm_.size());
  }
  const Choice choice = comm_.tuner().choose(call.collective, call.collective == Collective::barrier ? 0 : bytes);
  if (choice.program == nullptr) return small_.put(key, nullptr);
  auto entry = plan(choice, call.collective, call.root, on_spot);
  if (!entry.ok()) return small_.put(key, nullptr);
  Geometry geometry;
  geometry.bind(call, *entry->plan, type_bytes(call.type), choice.tile_bytes, choice.window);
  auto compiled = compile_small(*entry->plan, geometry, wire_of, &comm_);
  if (compiled != nullptr) {
    compiled->signature = signature(call);
    if (call.reduces() || call.collective == Collective::barrier)
      compiled->reduce = reduce_function(call.type, call.op);
    const int neighbour =
        compiled->ops.empty() || compiled->ops[0].wire == nullptr ? -1 : compiled->ops[0].wire->peer();
    compiled->shape = shape(call, choice.program->name(), neighbour);
    if (compiled->scratch_bytes > 0 && small_scratch_.get(compiled->scratch_bytes) == nullptr) compiled = nullptr;
  }
  return small_.put(key, std::move(compiled));
}

// Runs the call if it is small and nothing else is in flight. Lock held.
bool Engine::try_small(Call& call, Status* status) {
  uint64_t turn = turns_.load(std::memory_order_relaxed);
  if (!may_be_small(call) || !active_.empty() || turn >= kUnstarted || comm_.failed() ||
      comm_.abort_requested.load(std::memory_order_relaxed)) {
    return false;
  }
  const SmallRecord* record = small_record(call);
  if (record == nullptr || !turns_.compare_exchange_strong(turn, turn + 1)) return false;
  const auto sequence = static_cast<uint32_t>(turn & 0x7fffffff);
  const uint64_t begun = trace_enabled() ? ticks_now() : 0;
  const uint64_t ticket = small_ticket_ = comm_.recorder().begin(record->shape, sequence);
  *status = run_small(*record, call, sequence);
  if (status->ok()) {
    comm_.recorder().done(ticket);
  } else {
    comm_.recorder().end(ticket, false);
  }
  if (status->ok()) past_[sequence % past_.size()] = {sequence, record->signature};
  operations_.store(operations_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (!status->ok()) failures_.fetch_add(1, std::memory_order_relaxed);
  if (trace_enabled()) {
    trace_event({.kind = TraceKind::operation,
                 .rank = comm_.rank(),
                 .peer = call.root,
                 .sequence = sequence,
                 .group = comm_.group(),
                 .bytes = record->shape.bytes,
                 .begin = begun,
                 .end = ticks_now(),
                 .name = name_of(call.collective)});
  }
  return true;
}

bool Engine::small_send(const SmallOp& op, const MessageId& id, const std::byte* src, Wait& wait,
                        const Describe& describe) {
  if (op.ring != nullptr && op.ring->try_send(id, src, op.bytes)) return true;
  const Piece piece{const_cast<std::byte*>(src), op.bytes};
  SendRequest request;
  request.id = id;
  request.source = {&piece, 1, op.bytes};
  op.wire->send(request);
  while (!request.done) {
    if (!op.wire->progress() && !pause(wait, describe)) return false;
  }
  return true;
}

// Messages that nobody asked for may be of an operation that this rank has ended as another call; then the
// communicator fails here, as soon as it is known what the sender called.
bool Engine::explain_early(Wait& wait, const Describe& describe) {
  if (!tick(wait, describe)) return false;
  while (comm_.watch().puzzled()) {
    if (!pause(wait, describe)) return false;
  }
  return true;
}

bool Engine::small_recv(const SmallOp& op, const SmallRecord& record, const MessageId& id, std::byte* dst,
                        const std::byte* acc, Wait& wait, const Describe& describe) {
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
      if (!pause(wait, describe)) return false;
    }
  }
  const Piece to{dst, op.bytes}, from{const_cast<std::byte*>(acc), op.bytes};
  RecvRequest request;
  request.id = id;
  request.sink = {&to, 1, op.bytes, reduces ? &from : nullptr, reduces ? record.reduce : nullptr, record.element};
  op.wire->recv(request);
  while (!request.done) {
    if (!op.wire->progress() && !pause(wait, describe)) return false;
  }
  return !op.wire->has_early() || explain_early(wait, describe);
}

Status Engine::run_small(const SmallRecord& record, const Call& call, uint32_t sequence) {
  std::byte* const base[3] = {const_cast<std::byte*>(static_cast<const std::byte*>(call.in)),
                              static_cast<std::byte*>(call.out), small_scratch_.get(0)};
  const auto at = [&base](const SmallPlace& place) { return base[place.buffer] + place.offset; };
  Wait wait(spins_);
  struct {
    const Call& call;
    const SmallRecord& record;
    uint32_t sequence;
    const SmallOp* op;
  } now{call, record, sequence, nullptr};
  // One pointer is captured, so that making the function allocates nothing.
  const Describe describe = [&now] {
    const Wire* wire = now.op->wire;
    return Doing{now.sequence, now.record.signature, wire == nullptr ? -1 : wire->peer(), weft::describe(now.call)};
  };
  for (const SmallOp& op : record.ops) {
    now.op = &op;
    const MessageId id{sequence, op.index, record.signature};
    switch (op.kind) {
      case SmallOp::Kind::send:
        if (!small_send(op, id, at(op.src), wait, describe)) return comm_.status();
        break;
      case SmallOp::Kind::recv:
      case SmallOp::Kind::recv_reduce:
        if (!small_recv(op, record, id, at(op.dst), at(op.src), wait, describe)) return comm_.status();
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
  return {};
}

}  // namespace weft
