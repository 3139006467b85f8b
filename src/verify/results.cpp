// What every rank must hold at the end of a run.
#include <algorithm>
#include <bit>

#include "verify/run.hpp"

namespace weft::symbolic {

// Where the result is a sum: the chunk of everyone's `in` that goes into a chunk of this rank's `out`.
uint32_t Run::contributed_chunk(int rank, uint32_t chunk) const {
  const bool scattered = collective_ == Collective::reducescatter || collective_ == Collective::reducescatterv;
  return scattered ? static_cast<uint32_t>(rank) * plans_[0]->chunks_per_block + chunk : chunk;
}

Value Run::expected(int rank, uint32_t chunk) const {
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
  const uint32_t from = contributed_chunk(rank, chunk);
  Value sum = contribution(0, from);
  for (int r = 1; r < ranks_; ++r) sum = combine(sum, contribution(r, from));
  return sum;
}

// The likely mistakes by name: one contribution too few or too many, another chunk in this one's place.
std::string Run::difference(const Value& have, const Value& want, int rank, uint32_t chunk) const {
  const auto same = [](const Value& a, const Value& b) { return a.low == b.low && a.high == b.high; };
  if (barrier_) {
    const uint64_t low = want.low & ~have.low, high = want.high & ~have.high;
    return fmt::format("nothing of rank {} is in it",
                       first_rank_ + (low != 0 ? std::countr_zero(low) : 64 + std::countr_zero(high)));
  }
  const bool reduces = shapes_[static_cast<size_t>(rank)].reduces;
  for (int r = 0; r < ranks_; ++r) {
    if (reduces) {
      const Value part = contribution(r, contributed_chunk(rank, chunk));
      if (same(combine(have, part), want)) return fmt::format("rank {}'s contribution is missing", r);
      if (same(combine(want, part), have)) return fmt::format("rank {}'s contribution is in it twice", r);
      continue;
    }
    const Plan& plan = *plans_[static_cast<size_t>(r)];
    for (uint32_t c = 0; c < plan.in_blocks * plan.chunks_per_block; ++c) {
      if (same(have, contribution(r, c))) return fmt::format("it holds rank {}'s in[{}]", r, c);
    }
  }
  return reduces ? "contributions are missing, doubled or misplaced" : "it holds something else";
}

Status Run::check_results() {
  // Results that are the same on all ranks are computed once.
  const bool shared = collective_ == Collective::allreduce || collective_ == Collective::reduce || barrier_;
  std::vector<Value> sums;
  for (int r = 0; r < ranks_; ++r) {
    const Plan& plan = *plans_[static_cast<size_t>(r)];
    for (uint32_t c = 0; c < plan.out_blocks * plan.chunks_per_block; ++c) {
      if (shared && sums.size() <= c) sums.push_back(expected(r, c));
      const Value want = shared ? sums[c] : expected(r, c);
      const uint32_t slot = slot_of(r, Buffer::out, c);
      const Value& have = values_[slot];
      if (!have.defined()) return error(weftInvalidArgument, "rank {}: out[{}] is never written", r, c);
      if (have.low == want.low && have.high == want.high) continue;
      line_ = uses_[slot].writer_line;
      return error(weftInvalidArgument, "rank {}: the result in out[{}] is wrong: {}", r, c,
                   difference(have, want, r, c));
    }
  }
  return {};
}

Status Run::check_same_bits() {
  if (collective_ != Collective::allreduce) return {};
  for (uint32_t c = 0; c < plans_[0]->chunks_per_block; ++c) {
    const uint64_t first = values_[slot_of(0, Buffer::out, c)].term;
    for (int r = 1; r < ranks_; ++r) {
      const uint32_t slot = slot_of(r, Buffer::out, c);
      if (values_[slot].term == first) continue;
      line_ = uses_[slot].writer_line;
      return error(weftInvalidArgument, "ranks 0 and {} combine out[{}] in different orders, so their bits may differ",
                   r, c);
    }
  }
  return {};
}

}  // namespace weft::symbolic
