#include "verify/run.hpp"

#include <algorithm>

namespace weft::symbolic {
namespace {

constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

Value Run::contribution(int rank, uint32_t chunk) {
  const uint64_t id = (static_cast<uint64_t>(rank) << 32) | chunk;
  return {mix(id), mix(~id), mix(mix(id) ^ 1) | 1};
}

Value Run::combine(const Value& a, const Value& b) const {
  // Commutative, as a + b is, but not associative.
  const uint64_t term = mix(a.term + b.term) | 1;
  if (barrier_) return {a.low | b.low, a.high | b.high, term};
  const uint64_t low = a.low + b.low;
  return {low, a.high + b.high + static_cast<uint64_t>(low < a.low), term};
}

// Three or more in one operation: rounded once at the end, so it equals no chain of twos.
Value Run::combine(const std::vector<Value>& values) const {
  Value result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const uint64_t term = result.term;
    result = combine(result, values[i]);
    if (values.size() > 2) result.term = mix(mix(term + values.size()) ^ values[i].term) | 1;
  }
  return result;
}

uint32_t Run::slot_of(int rank, Buffer buffer, uint32_t chunk) const {
  const Plan& plan = *plans_[static_cast<size_t>(rank)];
  const Shape& shape = shapes_[static_cast<size_t>(rank)];
  const uint32_t per_block = plan.chunks_per_block, in = plan.in_blocks * per_block;
  uint32_t index = chunk;
  if (buffer == Buffer::out) {
    const uint32_t begin = shape.out_first * per_block;
    const bool same =
        plan.in_place && shape.can_be_in_place() && chunk >= begin && chunk < begin + shape.shared * per_block;
    index = same ? shape.in_first * per_block + chunk - begin : in + chunk;
  } else if (buffer == Buffer::scratch) {
    index = in + plan.out_blocks * per_block + chunk;
  }
  return base_[static_cast<size_t>(rank)] + index;
}

std::string Run::describe(int rank, uint32_t slot) const {
  const Plan& plan = *plans_[static_cast<size_t>(rank)];
  const uint32_t in = plan.in_blocks * plan.chunks_per_block, out = plan.out_blocks * plan.chunks_per_block;
  uint32_t index = slot - base_[static_cast<size_t>(rank)];
  if (index < in) return fmt::format("in[{}]", index);
  index -= in;
  return index < out ? fmt::format("out[{}]", index) : fmt::format("scratch[{}]", index - out);
}

template <typename Body>
Status Run::each(int rank, std::span<const Region> regions, Body body) const {
  const Plan& plan = *plans_[static_cast<size_t>(rank)];
  uint32_t position = 0;
  for (const Region& region : regions) {
    const uint32_t size = region.buffer == Buffer::in    ? plan.in_blocks * plan.chunks_per_block
                          : region.buffer == Buffer::out ? plan.out_blocks * plan.chunks_per_block
                                                         : plan.scratch_chunks;
    if (region.count > size || region.first > size - region.count) {
      return error(weftInvalidArgument, "rank {}, step {}: chunks {} to {} of a buffer of {}", rank, step_,
                   region.first, region.first + region.count, size);
    }
    for (uint32_t i = 0; i < region.count; ++i) {
      WEFT_RETURN_IF_ERROR(body(region.buffer, region.first + i, position++));
    }
  }
  return {};
}

Status Run::check_uniform() const {
  const Plan& first = *plans_[0];
  for (const auto& plan : plans_) {
    if (plan->steps != first.steps || plan->chunks_per_block != first.chunks_per_block || plan->lanes != first.lanes) {
      return error(weftInvalidArgument,
                   "rank {} has {} steps, {} chunks per block and {} lanes, rank 0 has {}, {} and {}", plan->rank,
                   plan->steps, plan->chunks_per_block, plan->lanes, first.steps, first.chunks_per_block, first.lanes);
    }
  }
  return {};
}

void Run::prepare() {
  uint32_t total = 0;
  for (int r = 0; r < ranks_; ++r) {
    const Plan& plan = *plans_[static_cast<size_t>(r)];
    shapes_.push_back(shape_of(collective_, ranks_, r, plan.root));
    base_.push_back(total);
    total += (plan.in_blocks + plan.out_blocks) * plan.chunks_per_block + plan.scratch_chunks;
  }
  values_.resize(total);
  uses_.resize(total);
  next_op_.assign(static_cast<size_t>(ranks_), 0);
  for (int r = 0; r < ranks_; ++r) {
    const Plan& plan = *plans_[static_cast<size_t>(r)];
    for (uint32_t c = 0; c < plan.in_blocks * plan.chunks_per_block; ++c) {
      Value value = contribution(r, c);
      if (barrier_) {
        const int bit = r - first_rank_;
        value.low = bit >= 0 && bit < 64 ? 1ULL << bit : 0;
        value.high = bit >= 64 && bit < 128 ? 1ULL << (bit - 64) : 0;
      }
      values_[slot_of(r, Buffer::in, c)] = value;
    }
  }
}

Status Run::run() {
  WEFT_RETURN_IF_ERROR(check_uniform());
  prepare();
  for (step_ = 0; step_ < plans_[0]->steps; ++step_) WEFT_RETURN_IF_ERROR(run_step(step_));
  line_ = 0;
  for (int r = 0; r < ranks_; ++r) {
    if (next_op_[static_cast<size_t>(r)] != plans_[static_cast<size_t>(r)]->ops.size()) {
      return error(weftInvalidArgument, "rank {}: operations out of order, or behind the last of {} steps", r, step_);
    }
  }
  WEFT_RETURN_IF_ERROR(check_results());
  if (heard_ != nullptr && collective_ == Collective::allreduce) {
    for (uint32_t c = 0; c < plans_[0]->chunks_per_block; ++c) {
      heard_->results.push_back(values_[slot_of(0, Buffer::out, c)].term);
    }
  }
  return check_same_bits();
}

// Reads first, of all ranks, then the writes: inside a step nothing depends on anything.
Status Run::run_step(uint32_t step) {
  sends_.clear();
  receives_.clear();
  writes_.clear();
  for (int r = 0; r < ranks_; ++r) {
    const Plan& plan = *plans_[static_cast<size_t>(r)];
    uint32_t& next = next_op_[static_cast<size_t>(r)];
    const uint32_t begin = next;
    for (; next < plan.ops.size() && plan.ops[next].step == step; ++next) {
      const Op& op = plan.ops[next];
      line_ = op.line;
      const auto read = [&](Buffer buffer, uint32_t chunk, uint32_t position) {
        return note_read(r, op, slot_of(r, buffer, chunk), position);
      };
      for (uint32_t s = 0; s < op.sources; ++s) {
        const uint32_t count = op.src_regions / op.sources;
        WEFT_RETURN_IF_ERROR(each(r, plan.src(op).subspan(size_t{s} * count, count), read));
      }
    }
    for (uint32_t i = begin; i < next; ++i) WEFT_RETURN_IF_ERROR(run_local(r, plan.ops[i]));
  }
  WEFT_RETURN_IF_ERROR(match());
  for (const Write& write : writes_) values_[write.slot] = write.value;
  return {};
}

Status Run::note_read(int rank, const Op& op, uint32_t slot, uint32_t position) {
  if (!values_[slot].defined()) {
    return error(weftInvalidArgument, "rank {}, step {}: {} is read before it is written", rank, step_,
                 describe(rank, slot));
  }
  Use& use = uses_[slot];
  use.several = use.read_step == step_ && (use.several || use.reader != &op || use.position != position);
  use.read_step = step_;
  use.reader = &op;
  use.position = position;
  return {};
}

Status Run::note_write(int rank, const Op& op, uint32_t slot, uint32_t position, Value value) {
  Use& use = uses_[slot];
  if (use.written_step == step_) {
    return error(weftInvalidArgument, "rank {}, step {}: {} is written twice", rank, step_, describe(rank, slot));
  }
  if (use.read_step == step_ && (use.several || use.reader != &op || use.position != position)) {
    return error(weftInvalidArgument, "rank {}, step {}: {} is both read and written", rank, step_,
                 describe(rank, slot));
  }
  use.written_step = step_;
  use.writer_line = op.line;
  writes_.push_back({slot, value});
  return {};
}

Status Run::run_local(int rank, const Op& op) {
  const Plan& plan = *plans_[static_cast<size_t>(rank)];
  line_ = op.line;
  if (op.verb != Verb::copy) {
    if (op.peer < 0 || op.peer >= ranks_ || op.peer == rank) {
      return error(weftInvalidArgument, "rank {}, step {}: a message with rank {}", rank, step_, op.peer);
    }
    if (op.verb == Verb::send) sends_.push_back({rank, op.peer, &op});
    if (op.verb == Verb::recv) receives_.push_back({op.peer, rank, &op});
  }
  if (op.verb != Verb::send) {
    for (const Region& region : plan.dst(op)) {
      if (region.buffer == Buffer::in) {
        return error(weftInvalidArgument, "rank {}, step {}: in[{}] is written", rank, step_, region.first);
      }
    }
  }
  if (op.verb != Verb::copy) return {};

  std::vector<uint64_t> classes, source_classes;
  WEFT_RETURN_IF_ERROR(each_class(rank, plan.dst(op), classes));
  std::vector<std::vector<Value>> values(classes.size());
  const uint32_t count = op.src_regions / op.sources;
  for (uint32_t s = 0; s < op.sources; ++s) {
    const auto regions = plan.src(op).subspan(size_t{s} * count, count);
    source_classes.clear();
    WEFT_RETURN_IF_ERROR(each_class(rank, regions, source_classes));
    if (source_classes != classes) {
      return error(weftInvalidArgument, "rank {}, step {}: a copy between chunks of different sizes", rank, step_);
    }
    WEFT_RETURN_IF_ERROR(each(rank, regions, [&](Buffer buffer, uint32_t chunk, uint32_t position) {
      values[position].push_back(values_[slot_of(rank, buffer, chunk)]);
      return Status();
    }));
  }
  return each(rank, plan.dst(op), [&](Buffer buffer, uint32_t chunk, uint32_t position) {
    return note_write(rank, op, slot_of(rank, buffer, chunk), position, combine(values[position]));
  });
}

// Messages of one wire and lane arrive in the order of the program, on both sides.
Status Run::match() {
  const auto before = [](const Message& a, const Message& b) {
    return a.channel() != b.channel() ? a.channel() < b.channel() : a.op->lane < b.op->lane;
  };
  std::stable_sort(sends_.begin(), sends_.end(), before);
  std::stable_sort(receives_.begin(), receives_.end(), before);
  const size_t common = std::min(sends_.size(), receives_.size());
  for (size_t i = 0; i < std::max(sends_.size(), receives_.size()); ++i) {
    if (i >= common || before(sends_[i], receives_[i]) || before(receives_[i], sends_[i])) {
      const bool sent = i < sends_.size() && (i >= receives_.size() || before(sends_[i], receives_[i]));
      const Message& alone = sent ? sends_[i] : receives_[i];
      line_ = alone.op->line;
      return error(weftInvalidArgument,
                   "step {}: rank {} {} rank {}, which does not {} in that step (a send and its receive share a step)",
                   step_, sent ? alone.from : alone.to, sent ? "sends to" : "receives from",
                   sent ? alone.to : alone.from, sent ? "receive" : "send");
    }
    WEFT_RETURN_IF_ERROR(deliver(sends_[i], receives_[i]));
  }
  return {};
}

Status Run::deliver(const Message& sent, const Message& received) {
  const Plan& sender = *plans_[static_cast<size_t>(sent.from)];
  const Plan& receiver = *plans_[static_cast<size_t>(received.to)];
  const Op& op = *received.op;
  line_ = op.line;
  std::vector<uint64_t>& sent_classes = other_classes_;
  std::vector<uint64_t>& classes = classes_;
  sent_classes.clear();
  classes.clear();
  WEFT_RETURN_IF_ERROR(each_class(sent.from, sender.src(*sent.op), sent_classes));
  WEFT_RETURN_IF_ERROR(each_class(received.to, receiver.dst(op), classes));
  if (sent_classes != classes) {
    const size_t count = sent_classes.size();
    if (count != classes.size()) {
      return error(weftInvalidArgument, "step {}: rank {} sends rank {} {} chunk{}, where it receives {}", step_,
                   sent.from, sent.to, count, count == 1 ? "" : "s", classes.size());
    }
    const auto differs = std::mismatch(classes.begin(), classes.end(), sent_classes.begin()).first - classes.begin();
    return error(weftInvalidArgument,
                 "step {}: of what rank {} sends rank {}, chunk number {} has another size than where it is received",
                 step_, sent.from, sent.to, differs);
  }
  std::vector<Value>& arriving = arriving_;
  std::vector<Value>& kept = kept_;
  arriving.clear();
  kept.clear();
  WEFT_RETURN_IF_ERROR(each(sent.from, sender.src(*sent.op), [&](Buffer buffer, uint32_t chunk, uint32_t) {
    arriving.push_back(values_[slot_of(sent.from, buffer, chunk)]);
    return Status();
  }));
  if (heard_ != nullptr) hear(sent);
  if (op.reduce) {
    sent_classes.clear();
    WEFT_RETURN_IF_ERROR(each_class(received.to, receiver.src(op), sent_classes));
    if (sent_classes != classes) {
      return error(weftInvalidArgument, "rank {}, step {}: a reduction of chunks of different sizes", received.to,
                   step_);
    }
    WEFT_RETURN_IF_ERROR(each(received.to, receiver.src(op), [&](Buffer buffer, uint32_t chunk, uint32_t) {
      kept.push_back(values_[slot_of(received.to, buffer, chunk)]);
      return Status();
    }));
  }
  return each(received.to, receiver.dst(op), [&](Buffer buffer, uint32_t chunk, uint32_t position) {
    const Value value = op.reduce ? combine(kept[position], arriving[position]) : arriving[position];
    return note_write(received.to, op, slot_of(received.to, buffer, chunk), position, value);
  });
}

// Of the message whose classes and values are in classes_ and arriving_.
void Run::hear(const Message& sent) {
  uint64_t digest = mix(sent.op->lane);
  const auto add = [&digest](uint64_t word) { digest = mix(digest ^ word); };
  for (size_t i = 0; i < arriving_.size(); ++i) {
    add(classes_[i]);
    add(arriving_[i].low ^ mix(arriving_[i].high));
    add(arriving_[i].term);
  }
  heard_->messages.push_back({digest, step_, sent.op->line, sent.from, sent.to});
}

// Chunks of one class have the same size on all ranks, whatever the counts are.
uint64_t Run::size_class(int rank, Buffer buffer, uint32_t chunk) const {
  const Plan& plan = *plans_[static_cast<size_t>(rank)];
  const Shape& shape = shapes_[static_cast<size_t>(rank)];
  const uint32_t per_block = plan.chunks_per_block;
  if (buffer == Buffer::scratch) {
    chunk %= shape.blocks() * per_block;
    buffer = shape.in_blocks >= shape.out_blocks ? Buffer::in : Buffer::out;
  }
  const uint64_t block = chunk / per_block, part = chunk % per_block;
  if (!shape.per_block_sizes) return part;
  const auto self = static_cast<uint64_t>(rank);
  uint64_t owner = block;
  if (collective_ == Collective::alltoallv) {
    const uint64_t from = buffer == Buffer::in ? self : block, to = buffer == Buffer::in ? block : self;
    owner = from * static_cast<uint64_t>(ranks_) + to;
  } else if ((buffer == Buffer::in ? shape.in_blocks : shape.out_blocks) == 1) {
    owner = self;
  }
  return (owner << 24) | part;
}

Status Run::each_class(int rank, std::span<const Region> regions, std::vector<uint64_t>& classes) const {
  return each(rank, regions, [&](Buffer buffer, uint32_t chunk, uint32_t) {
    classes.push_back(size_class(rank, buffer, chunk));
    return Status();
  });
}

}  // namespace weft::symbolic
