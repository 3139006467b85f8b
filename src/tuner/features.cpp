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

// The root, its neighbours, and some far from it and from powers of two.
std::vector<int> sample(int ranks) {
  if (ranks > kFewRanks) return {0, 1, ranks / 3, ranks / 2, ranks - 1};
  std::vector<int> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
  return all;
}

double chunks(std::span<const Region> regions) {
  double count = 0;
  for (const Region& region : regions) count += region.count;
  return count;
}

// A step as the sampled ranks see it.
struct Step {
  double moved = 0;  // by the busiest of them
  bool used = false, messages = false;
};

// Adds one rank's plan.
void add(const Plan& plan, std::vector<Step>& steps, Features& features) {
  double sent = 0, received = 0, combined = 0, messages = 0;
  for (size_t begin = 0; begin < plan.ops.size();) {
    Step& step = steps[plan.ops[begin].step];
    double step_sent = 0, step_received = 0;
    size_t end = begin;
    for (; end < plan.ops.size() && plan.ops[end].step == plan.ops[begin].step; ++end) {
      const Op& op = plan.ops[end];
      step.used = true;
      if (op.verb != Verb::copy) {
        step.messages = true;
        messages += 1;
      }
      if (op.verb == Verb::send) step_sent += chunks(plan.src(op));
      if (op.verb == Verb::recv) step_received += chunks(plan.dst(op));
      if (op.verb == Verb::copy || op.reduce) combined += chunks(plan.dst(op)) * op.sources;
    }
    step.moved = std::max({step.moved, step_sent, step_received});
    sent += step_sent;
    received += step_received;
    begin = end;
  }
  features.messages = std::max(features.messages, messages);
  features.rank_bytes = std::max({features.rank_bytes, sent, received});
  features.combined_bytes = std::max(features.combined_bytes, combined);
}

Result<Features> count(const Program& program, int ranks) {
  Features features;
  std::vector<Step> steps;
  const std::vector<int> sampled = sample(ranks);
  // Out of place, a receive and the combination after it may have become one operation, and the step of the combination
  // stands empty; in place one sees which steps have messages.
  const bool in_place = shape_of(program.collective(), ranks, 0, 0).reduces;
  for (const int rank : sampled) {
    auto plan = expand_ops(program, {.ranks = ranks, .rank = rank, .in_place = in_place});
    if (!plan.ok()) return plan.status();
    steps.resize(std::max<size_t>(steps.size(), (*plan)->steps));
    features.chunk_bytes =
        1.0 / (double((*plan)->chunks_per_block) * shape_of(program.collective(), ranks, rank, 0).blocks());
    add(**plan, steps, features);
  }
  double seen = 0, unseen = 0;
  for (const Step& step : steps) {
    seen += step.messages ? 1 : 0;
    unseen += step.used ? 0 : 1;
    features.path_bytes += step.moved;
  }
  features.steps = seen;
  // Steps of which none of the sample knows anything are like the others.
  if (static_cast<int>(sampled.size()) < ranks && seen > 0) {
    features.steps += unseen;
    features.path_bytes *= features.steps / seen;
  }
  features.path_bytes *= features.chunk_bytes;
  features.rank_bytes *= features.chunk_bytes;
  features.combined_bytes *= features.chunk_bytes;
  // The busiest rank of all lies on no path that is shorter than its own work.
  features.path_bytes = std::max(features.path_bytes, features.rank_bytes);
  return features;
}

}  // namespace

// By the text, since programs come and go with their communicators.
Result<Features> features_of(const Program& program, int ranks) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, Result<Features>> known;
  constexpr size_t kMost = 2048;
  const std::lock_guard lock(mutex);
  std::pair key(program.text(), ranks);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  if (known.size() >= kMost) known.clear();
  return known.emplace(std::move(key), count(program, ranks)).first->second;
}

}  // namespace weft
