#include "verify/verify.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "expand/expand.hpp"
#include "plan/shape.hpp"

namespace weft {
namespace {

using Plans = std::vector<std::shared_ptr<const Plan>>;

constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// What a chunk holds. `low` and `high` are the sum of the fingerprints of all contributions (in a barrier: a set of
// ranks), `term` is a hash of how they were combined, 0 for "nothing yet".
struct Value {
  uint64_t low = 0, high = 0, term = 0;
  bool defined() const { return term != 0; }
};

Value contribution(int rank, uint32_t chunk) {
  const uint64_t id = (static_cast<uint64_t>(rank) << 32) | chunk;
  return {mix(id), mix(~id), mix(mix(id) ^ 1) | 1};
}

class Verifier {
 public:
  // For a barrier: only ranks [first_rank, first_rank + 128) are tracked.
  Verifier(const Plans& plans, int first_rank)
      : plans_(plans),
        ranks_(static_cast<int>(plans.size())),
        collective_(plans[0]->collective),
        barrier_(collective_ == Collective::barrier),
        first_rank_(first_rank) {}

  Status run();

 private:
  struct Message {
    int from = 0, to = 0;
    const Op* op = nullptr;
    uint64_t channel() const { return (static_cast<uint64_t>(from) << 32) | static_cast<uint32_t>(to); }
  };
  struct Write {
    uint32_t slot;
    Value value;
  };
  // What this step did to a slot. One operation may read what it writes, at the same position.
  struct Use {
    uint32_t read_step = UINT32_MAX, written_step = UINT32_MAX;
    const Op* reader = nullptr;
    uint32_t position = 0;
    bool several = false;
  };

  Status check_uniform() const;
  void prepare();
  Status run_step(uint32_t step);
  Status run_local(int rank, const Op& op);
  Status match();
  Status deliver(const Message& sent, const Message& received);
  Status note_read(int rank, const Op& op, uint32_t slot, uint32_t position);
  Status note_write(int rank, const Op& op, uint32_t slot, uint32_t position, Value value);
  Status check_results();
  Status check_same_bits();
  Value expected(int rank, uint32_t chunk);

  uint32_t slot_of(int rank, Buffer buffer, uint32_t chunk) const;
  std::string describe(int rank, uint32_t slot) const;
  // Calls body(slot, position) for each chunk of a list of regions; the first error ends it.
  template <typename Body>
  Status each(int rank, std::span<const Region> regions, Body body) const;
  Status each_class(int rank, std::span<const Region> regions, std::vector<uint64_t>& classes) const;
  uint64_t size_class(int rank, Buffer buffer, uint32_t chunk) const;
  Value combine(const Value& a, const Value& b) const;
  Value combine(const std::vector<Value>& values) const;

  const Plans& plans_;
  const int ranks_;
  const Collective collective_;
  const bool barrier_;
  const int first_rank_;

  std::vector<Shape> shapes_;
  std::vector<uint32_t> base_;  // first slot of each rank
  std::vector<Value> values_;
  std::vector<Use> uses_;
  std::vector<uint32_t> next_op_;
  std::vector<Write> writes_;
  std::vector<Message> sends_, receives_;
  uint32_t step_ = 0;
  // Of one operation; kept for their memory.
  std::vector<uint64_t> classes_, other_classes_;
  std::vector<Value> arriving_, kept_;
};

Value Verifier::combine(const Value& a, const Value& b) const {
  // Commutative, as a + b is, but not associative.
  const uint64_t term = mix(a.term + b.term) | 1;
  if (barrier_) return {a.low | b.low, a.high | b.high, term};
  const uint64_t low = a.low + b.low;
  return {low, a.high + b.high + static_cast<uint64_t>(low < a.low), term};
}

// Three or more in one operation: rounded once at the end, so it equals no chain of twos.
Value Verifier::combine(const std::vector<Value>& values) const {
  Value result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const uint64_t term = result.term;
    result = combine(result, values[i]);
    if (values.size() > 2) result.term = mix(mix(term + values.size()) ^ values[i].term) | 1;
  }
  return result;
}

uint32_t Verifier::slot_of(int rank, Buffer buffer, uint32_t chunk) const {
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

std::string Verifier::describe(int rank, uint32_t slot) const {
  const Plan& plan = *plans_[static_cast<size_t>(rank)];
  const uint32_t in = plan.in_blocks * plan.chunks_per_block, out = plan.out_blocks * plan.chunks_per_block;
  uint32_t index = slot - base_[static_cast<size_t>(rank)];
  if (index < in) return fmt::format("in[{}]", index);
  index -= in;
  return index < out ? fmt::format("out[{}]", index) : fmt::format("scratch[{}]", index - out);
}

template <typename Body>
Status Verifier::each(int rank, std::span<const Region> regions, Body body) const {
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

Status Verifier::check_uniform() const {
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

void Verifier::prepare() {
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

Status Verifier::run() {
  WEFT_RETURN_IF_ERROR(check_uniform());
  prepare();
  for (step_ = 0; step_ < plans_[0]->steps; ++step_) WEFT_RETURN_IF_ERROR(run_step(step_));
  for (int r = 0; r < ranks_; ++r) {
    if (next_op_[static_cast<size_t>(r)] != plans_[static_cast<size_t>(r)]->ops.size()) {
      return error(weftInvalidArgument, "rank {}: operations out of order, or behind the last of {} steps", r, step_);
    }
  }
  WEFT_RETURN_IF_ERROR(check_results());
  return check_same_bits();
}

// Reads first, of all ranks, then the writes: inside a step nothing depends on anything.
Status Verifier::run_step(uint32_t step) {
  sends_.clear();
  receives_.clear();
  writes_.clear();
  for (int r = 0; r < ranks_; ++r) {
    const Plan& plan = *plans_[static_cast<size_t>(r)];
    uint32_t& next = next_op_[static_cast<size_t>(r)];
    const uint32_t begin = next;
    for (; next < plan.ops.size() && plan.ops[next].step == step; ++next) {
      const Op& op = plan.ops[next];
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

Status Verifier::note_read(int rank, const Op& op, uint32_t slot, uint32_t position) {
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

Status Verifier::note_write(int rank, const Op& op, uint32_t slot, uint32_t position, Value value) {
  Use& use = uses_[slot];
  if (use.written_step == step_) {
    return error(weftInvalidArgument, "rank {}, step {}: {} is written twice", rank, step_, describe(rank, slot));
  }
  if (use.read_step == step_ && (use.several || use.reader != &op || use.position != position)) {
    return error(weftInvalidArgument, "rank {}, step {}: {} is both read and written", rank, step_,
                 describe(rank, slot));
  }
  use.written_step = step_;
  writes_.push_back({slot, value});
  return {};
}

Status Verifier::run_local(int rank, const Op& op) {
  const Plan& plan = *plans_[static_cast<size_t>(rank)];
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
Status Verifier::match() {
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
      return error(weftInvalidArgument, "step {}: rank {} {} rank {}, which does not {} in that step", step_,
                   sent ? alone.from : alone.to, sent ? "sends to" : "receives from", sent ? alone.to : alone.from,
                   sent ? "receive" : "send");
    }
    WEFT_RETURN_IF_ERROR(deliver(sends_[i], receives_[i]));
  }
  return {};
}

Status Verifier::deliver(const Message& sent, const Message& received) {
  const Plan& sender = *plans_[static_cast<size_t>(sent.from)];
  const Plan& receiver = *plans_[static_cast<size_t>(received.to)];
  const Op& op = *received.op;
  std::vector<uint64_t>& sent_classes = other_classes_;
  std::vector<uint64_t>& classes = classes_;
  sent_classes.clear();
  classes.clear();
  WEFT_RETURN_IF_ERROR(each_class(sent.from, sender.src(*sent.op), sent_classes));
  WEFT_RETURN_IF_ERROR(each_class(received.to, receiver.dst(op), classes));
  if (sent_classes != classes) {
    return error(weftInvalidArgument,
                 "step {}: rank {} sends rank {} {} chunks, and rank {} expects {} chunks, or they differ in size",
                 step_, sent.from, sent.to, sent_classes.size(), sent.to, classes.size());
  }
  std::vector<Value>& arriving = arriving_;
  std::vector<Value>& kept = kept_;
  arriving.clear();
  kept.clear();
  WEFT_RETURN_IF_ERROR(each(sent.from, sender.src(*sent.op), [&](Buffer buffer, uint32_t chunk, uint32_t) {
    arriving.push_back(values_[slot_of(sent.from, buffer, chunk)]);
    return Status();
  }));
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

// Chunks of one class have the same size on all ranks, whatever the counts are.
uint64_t Verifier::size_class(int rank, Buffer buffer, uint32_t chunk) const {
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

Status Verifier::each_class(int rank, std::span<const Region> regions, std::vector<uint64_t>& classes) const {
  return each(rank, regions, [&](Buffer buffer, uint32_t chunk, uint32_t) {
    classes.push_back(size_class(rank, buffer, chunk));
    return Status();
  });
}

Value Verifier::expected(int rank, uint32_t chunk) {
  const uint32_t per_block = plans_[0]->chunks_per_block;
  const uint32_t block = chunk / per_block, part = chunk % per_block, mine = static_cast<uint32_t>(rank) * per_block;
  const int root = plans_[0]->root;
  switch (collective_) {
    case Collective::broadcast:
      return contribution(root, chunk);
    case Collective::allgather:
    case Collective::allgatherv:
    case Collective::gather:
    case Collective::gatherv:
      return contribution(static_cast<int>(block), part);
    case Collective::alltoall:
    case Collective::alltoallv:
      return contribution(static_cast<int>(block), mine + part);
    case Collective::scatter:
    case Collective::scatterv:
      return contribution(root, mine + part);
    case Collective::barrier: {
      const int tracked = std::min(ranks_ - first_rank_, 128);
      const auto ones = [](int count) { return count >= 64 ? ~0ULL : (1ULL << std::max(count, 0)) - 1; };
      return {ones(tracked), ones(tracked - 64), 1};
    }
    default:
      break;
  }
  const bool scattered = collective_ == Collective::reducescatter || collective_ == Collective::reducescatterv;
  Value sum = contribution(0, scattered ? mine + part : chunk);
  for (int r = 1; r < ranks_; ++r) sum = combine(sum, contribution(r, scattered ? mine + part : chunk));
  return sum;
}

Status Verifier::check_results() {
  // Results that are the same on all ranks are computed once.
  const bool shared = collective_ == Collective::allreduce || collective_ == Collective::reduce || barrier_;
  std::vector<Value> sums;
  for (int r = 0; r < ranks_; ++r) {
    const Plan& plan = *plans_[static_cast<size_t>(r)];
    for (uint32_t c = 0; c < plan.out_blocks * plan.chunks_per_block; ++c) {
      if (shared && sums.size() <= c) sums.push_back(expected(r, c));
      const Value want = shared ? sums[c] : expected(r, c);
      const Value& have = values_[slot_of(r, Buffer::out, c)];
      if (!have.defined()) return error(weftInvalidArgument, "rank {}: out[{}] is never written", r, c);
      if (have.low != want.low || have.high != want.high) {
        return error(weftInvalidArgument,
                     "rank {}: the result in out[{}] is wrong: a contribution is missing, doubled "
                     "or misplaced",
                     r, c);
      }
    }
  }
  return {};
}

Status Verifier::check_same_bits() {
  if (collective_ != Collective::allreduce) return {};
  for (uint32_t c = 0; c < plans_[0]->chunks_per_block; ++c) {
    const uint64_t first = values_[slot_of(0, Buffer::out, c)].term;
    for (int r = 1; r < ranks_; ++r) {
      if (values_[slot_of(r, Buffer::out, c)].term != first) {
        return error(weftInvalidArgument,
                     "ranks 0 and {} combine out[{}] in different orders, so their bits may differ", r, c);
      }
    }
  }
  return {};
}

std::vector<int> roots_to_try(const Program& program, int ranks, const VerifyOptions& options) {
  if (!is_rooted(program.collective())) return {0};
  std::vector<int> roots = options.roots;
  if (!roots.empty()) return roots;
  for (int root = 0; root < ranks; ++root) {
    if (ranks <= 8 || root < 2 || root == ranks - 1 || root == ranks / 2 || root == ranks / 3) roots.push_back(root);
  }
  return roots;
}

}  // namespace

Status verify_plans(const std::vector<std::shared_ptr<const Plan>>& plans) {
  const auto ranks = static_cast<int>(plans.size());
  const bool barrier = ranks > 0 && plans[0]->collective == Collective::barrier;
  for (int first = 0; first < ranks; first += barrier ? 128 : ranks) {
    WEFT_RETURN_IF_ERROR(Verifier(plans, first).run());
  }
  return {};
}

Status verify(const Program& program, int ranks, const VerifyOptions& options) {
  if (!program.supports(ranks)) return {};
  std::mt19937_64 random(options.seed);
  const bool in_place =
      shape_of(program.collective(), ranks, 0, 0).shared > 0 && program.collective() != Collective::barrier;
  const int variants = in_place ? 2 + std::max(options.mixtures, 0) : 1;
  Plans plans(static_cast<size_t>(ranks));
  for (const int root : roots_to_try(program, ranks, options)) {
    for (int variant = 0; variant < variants; ++variant) {
      for (int r = 0; r < ranks; ++r) {
        const bool here = variant == 1 || (variant > 1 && (random() & 1) != 0);
        auto plan = expand_ops(program, {ranks, r, root, here});
        if (!plan.ok()) return plan.status();
        plans[static_cast<size_t>(r)] = *plan;
      }
      if (Status status = verify_plans(plans); !status.ok()) {
        return error(weftInvalidArgument, "{}: {} {} for {} ranks, root {}, {}: {}", program.file(),
                     name_of(program.collective()), program.name(), ranks, root,
                     variant == 0   ? "out of place"
                     : variant == 1 ? "in place"
                                    : "partly in place",
                     status.message());
      }
    }
  }
  return {};
}

}  // namespace weft
