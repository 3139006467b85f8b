#include "simulate/outline.hpp"

#include <xxhash.h>

namespace weft::simulation {
namespace {

uint32_t chunks(std::span<const Region> regions) {
  uint32_t count = 0;
  for (const Region& region : regions) count += region.count;
  return count;
}

}  // namespace

Outline::Outline(const Plan& plan, uint32_t window, Order order)
    : predecessors(plan.predecessors),
      successor_begin(plan.successor_begin),
      successors(plan.successors),
      schedule(plan, window, order) {
  for (const Op& op : plan.ops) {
    const double moved = chunks(op.verb == Verb::send ? plan.src(op) : plan.dst(op));
    const double times = op.verb == Verb::copy ? op.sources : op.reduce ? 1 : 0;
    if (op.verb == Verb::copy && plan.predecessors[ops.size()] == 0)
      first_copies.push_back(static_cast<uint32_t>(ops.size()));
    ops.push_back({op.verb, op.reduce, op.step, kNone, moved, moved * times});
  }
  for (uint32_t queue = 0; queue < schedule.queues.size(); ++queue) {
    for (const Schedule::Entry& entry : schedule.queues[queue].entries) ops[entry.op].queue = queue;
  }
}

Result<std::shared_ptr<const Plan>> plan_of(const Program& program, const Hierarchy& tree,
                                            const SimulateOptions& options, int rank) {
  const bool in_place = options.in_place && program.collective() != Collective::alltoallv;
  return expand(program, {tree.ranks(), rank, options.root, in_place, &tree});
}

Result<Outlines::Rank> Outlines::of(int number) {
  auto expanded = plan_of(program_, tree_, options_, number);
  if (!expanded.ok()) return expanded.status();
  const Plan& plan = **expanded;
  Rank rank;
  words_.clear();
  if (queue_of_.empty()) queue_of_.assign(2 * static_cast<size_t>(tree_.ranks()), kNone);
  const auto place_of = [](int peer, Verb verb) { return 2 * static_cast<size_t>(peer) + (verb == Verb::send); };
  std::vector<size_t> used;
  for (const Op& op : plan.ops) {
    uint32_t queue = kNone;
    if (op.verb != Verb::copy) {
      // Queues are numbered as Schedule does it: as they appear.
      uint32_t& place = queue_of_[place_of(op.peer, op.verb)];
      if (place == kNone) {
        place = static_cast<uint32_t>(rank.peers.size());
        rank.peers.push_back(op.peer);
        used.push_back(place_of(op.peer, op.verb));
      }
      queue = place;
    }
    for (const uint32_t word : {static_cast<uint32_t>(op.verb) * 2 + op.reduce, uint32_t{op.sources}, op.step, queue,
                                chunks(plan.dst(op)), chunks(plan.src(op))}) {
      words_.push_back(word);
    }
  }
  for (const size_t place : used) queue_of_[place] = kNone;
  for (const auto* list : {&plan.predecessors, &plan.successor_begin, &plan.successors})
    words_.insert(words_.end(), list->begin(), list->end());
  const uint64_t fingerprint = XXH3_64bits(words_.data(), words_.size() * sizeof(uint32_t));
  const auto [place, fresh] = known_.try_emplace(fingerprint, static_cast<uint32_t>(all_.size()));
  if (fresh) all_.push_back(std::make_unique<Outline>(plan, window_, options_.order));
  rank.outline = place->second;
  return rank;
}

}  // namespace weft::simulation
