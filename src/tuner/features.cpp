#include "tuner/features.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "expand/expand.hpp"
#include "plan/shape.hpp"

namespace weft {
namespace {

constexpr int kFewRanks = 16;

// The root, its neighbours, and some far from it and from powers of two; and those who share the lowest group with one
// of them.
std::vector<int> sample(const Hierarchy& hierarchy) {
  const int ranks = hierarchy.ranks();
  std::vector<int> all;
  if (ranks <= kFewRanks) {
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    return all;
  }
  all = {0, 1, ranks / 3, ranks / 2, ranks - 1};
  if (hierarchy.levels() == 1) return all;
  std::map<int, int> taken;  // by group
  for (const int seed : all) taken.try_emplace(hierarchy.group(0, seed), 0);
  all.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto group = taken.find(hierarchy.group(0, rank));
    if (group != taken.end() && group->second++ < kFewRanks) all.push_back(rank);
  }
  return all;
}

double chunks(std::span<const Region> regions) {
  double count = 0;
  for (const Region& region : regions) count += region.count;
  return count;
}

// Those who move bytes: ranks, and groups of all levels but the highest.
class Movers {
 public:
  Movers(const Hierarchy& hierarchy, const Links& links, const std::vector<int>& sampled)
      : hierarchy_(hierarchy), links_(links) {
    size_t count = 0;
    for (int level = 0; level < hierarchy.levels(); ++level) {
      first_.push_back(count);
      count += static_cast<size_t>(level == 0 ? hierarchy.ranks() : hierarchy.groups(level - 1));
    }
    load_.resize(count);
    std::vector<double> members(count), seen(count);
    for (int level = 0; level < hierarchy.levels(); ++level) {
      for (int rank = 0; rank < hierarchy.ranks(); ++rank) ++members[index(level, rank)];
      for (const int rank : sampled) ++seen[index(level, rank)];
    }
    for (size_t i = 0; i < count; ++i) load_[i].scale = seen[i] > 0 ? members[i] / seen[i] : 0;
  }

  // What goes from one rank to another: bytes from the lowest level pass nobody but the ranks, those from a higher one
  // pass every group on their way.
  void add(int rank, int level, bool sent, double bytes) {
    for (int l = std::min(level, 1); l <= level; ++l) {
      Load& load = load_[index(l, rank)];
      if (load.sent == 0 && load.received == 0) touched_.push_back(index(l, rank));
      (sent ? load.sent : load.received) += bytes * load.scale * links_[static_cast<size_t>(l)].byte_ns;
    }
  }
  // Ends a step: what its busiest mover moved.
  double end_step() {
    double most = 0;
    for (const size_t mover : touched_) {
      Load& load = load_[mover];
      most = std::max({most, load.sent, load.received});
      load.all_sent += load.sent;
      load.all_received += load.received;
      load.sent = load.received = 0;
      busiest_ = std::max({busiest_, load.all_sent, load.all_received});
    }
    touched_.clear();
    return most;
  }
  // Over all steps.
  double busiest() const { return busiest_; }

 private:
  struct Load {
    double scale = 0;  // how many ranks a sampled one stands for
    double sent = 0, received = 0, all_sent = 0, all_received = 0;
  };
  size_t index(int level, int rank) const {
    return first_[static_cast<size_t>(level)] +
           static_cast<size_t>(level == 0 ? rank : hierarchy_.group(level - 1, rank));
  }

  const Hierarchy& hierarchy_;
  const Links& links_;
  std::vector<size_t> first_;  // by level
  std::vector<Load> load_;
  std::vector<size_t> touched_;  // in this step
  double busiest_ = 0;
};

}  // namespace

Result<Features> features_of(const Program& program, const Hierarchy& hierarchy, const Links& links) {
  const int ranks = hierarchy.ranks();
  const std::vector<int> sampled = sample(hierarchy);
  // Out of place, a receive and the combination after it may have become one operation, and the step of the combination
  // stands empty; in place one sees which steps have messages.
  const bool in_place = shape_of(program.collective(), ranks, 0, 0).reduces;
  Features features;
  std::vector<std::shared_ptr<const Plan>> plans;
  uint32_t steps = 0;
  for (const int rank : sampled) {
    auto plan = expand_ops(program, {.ranks = ranks, .rank = rank, .in_place = in_place, .hierarchy = &hierarchy});
    if (!plan.ok()) return plan.status();
    steps = std::max(steps, (*plan)->steps);
    features.chunk_bytes =
        1.0 / (double((*plan)->chunks_per_block) * shape_of(program.collective(), ranks, rank, 0).blocks());
    plans.push_back(std::move(*plan));
  }

  Movers movers(hierarchy, links, sampled);
  std::vector<size_t> next(plans.size());
  std::vector<double> combined(plans.size()), messages(plans.size());
  double seen = 0, unseen = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    bool used = false, has_messages = false;
    double weight = 0;
    for (size_t i = 0; i < plans.size(); ++i) {
      const Plan& plan = *plans[i];
      for (; next[i] < plan.ops.size() && plan.ops[next[i]].step == step; ++next[i]) {
        const Op& op = plan.ops[next[i]];
        used = true;
        if (op.verb == Verb::copy || op.reduce) combined[i] += chunks(plan.dst(op)) * op.sources;
        if (op.verb == Verb::copy) continue;
        has_messages = true;
        const int level = hierarchy.level_between(plan.rank, op.peer);
        const Link& link = links[static_cast<size_t>(level)];
        weight = std::max(weight, link.latency_us);
        messages[i] += link.message_us;
        movers.add(plan.rank, level, op.verb == Verb::send,
                   chunks(op.verb == Verb::send ? plan.src(op) : plan.dst(op)));
      }
    }
    features.path_bytes += movers.end_step();
    features.steps += weight;
    seen += has_messages ? 1 : 0;
    unseen += used ? 0 : 1;
  }
  features.messages = *std::max_element(messages.begin(), messages.end());
  features.combined_bytes = *std::max_element(combined.begin(), combined.end());
  features.rank_bytes = movers.busiest();
  // Steps of which none of the sample knows anything are like the others.
  if (static_cast<int>(sampled.size()) < ranks && seen > 0) {
    features.steps += unseen * features.steps / seen;
    features.path_bytes *= (seen + unseen) / seen;
  }
  features.path_bytes *= features.chunk_bytes;
  features.rank_bytes *= features.chunk_bytes;
  features.combined_bytes *= features.chunk_bytes;
  // The busiest of all lies on no path that is shorter than its own work.
  features.path_bytes = std::max(features.path_bytes, features.rank_bytes);
  return features;
}

// By the text, since programs come and go with their communicators.
Result<Features> features_of(const Program& program, int ranks) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, Result<Features>> known;
  constexpr size_t kMost = 2048;
  const std::lock_guard lock(mutex);
  std::pair key(program.text(), ranks);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  if (known.size() >= kMost) known.clear();
  return known.emplace(std::move(key), features_of(program, Hierarchy::flat(ranks), Links(1))).first->second;
}

}  // namespace weft
