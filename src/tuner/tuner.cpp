#include "tuner/tuner.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "plan/shape.hpp"
#include "status/parse.hpp"

namespace weft {
namespace {

constexpr int kFree = -1;

// The v-variants do not choose by their counts. They are taken for calls of this size.
constexpr size_t kVariableBytes = 1 << 20;

int find(const std::vector<ProgramPtr>& programs, Collective collective, std::string_view name) {
  for (size_t i = 0; i < programs.size(); ++i) {
    if (programs[i]->collective() == collective && programs[i]->name() == name) return static_cast<int>(i);
  }
  return kFree;
}

std::string legal_names(const std::vector<ProgramPtr>& programs, int collective) {
  std::string text;
  for (const ProgramPtr& program : programs) {
    if (collective >= 0 && program->collective() != static_cast<Collective>(collective)) continue;
    if (!text.empty()) text += ", ";
    if (collective < 0) text += std::string(name_of(program->collective())) + ":";
    text += program->name();
  }
  return text;
}

}  // namespace

Result<Tuner> Tuner::create(const Topology& topology, std::vector<ProgramPtr> programs, const std::string& forced,
                            size_t tile_bytes, uint32_t window, const TunePtr& tune) {
  Tuner tuner;
  tuner.topology_ = topology;
  tuner.programs_ = std::move(programs);
  tuner.tile_bytes_ = tile_bytes;
  tuner.window_ = window;
  tuner.model_ = std::make_unique<AlphaBetaModel>(tune, topology, tuner.tile_bytes());
  tuner.reasons_.resize(tuner.programs_.size());
  for (size_t begin = 0; begin < forced.size();) {
    const size_t end = std::min(forced.find(',', begin), forced.size());
    if (end > begin) WEFT_RETURN_IF_ERROR(tuner.force(forced, forced.substr(begin, end - begin)));
    begin = end + 1;
  }
  return tuner;
}

// "ring", "allreduce:ring", or "allreduce:4K-1M:ring".
Status Tuner::force(const std::string& all, const std::string& item) {
  const size_t first = item.find(':'), last = item.rfind(':');
  const std::string name = item.substr(last == std::string::npos ? 0 : last + 1);
  int only = -1;
  if (first != std::string::npos) {
    const auto collective = collective_of(item.substr(0, first));
    if (!collective) {
      return error(weftInvalidArgument, "WEFT_ALGO={}: no collective is called {}; legal: {}", all,
                   item.substr(0, first), legal_names(programs_, -1));
    }
    only = static_cast<int>(*collective);
  }
  Forced entry;
  if (first != last) {
    const std::string range = item.substr(first + 1, last - first - 1);
    const size_t dash = range.find('-');
    const auto low = parse_size(range.substr(0, dash));
    const auto high = dash == std::string::npos         ? std::nullopt
                      : range.substr(dash + 1) == "inf" ? SIZE_MAX
                                                        : parse_size(range.substr(dash + 1));
    if (!low || !high || *low >= *high) {
      return error(weftInvalidArgument,
                   "WEFT_ALGO={}: {} is no range of sizes; legal: LOW-HIGH, such as 0-4K or 1M-inf", all, range);
    }
    entry.low = *low;
    entry.high = *high;
  }
  bool found = false;
  for (int c = 0; c < kCollectives; ++c) {
    if (only >= 0 && c != only) continue;
    entry.index = find(programs_, static_cast<Collective>(c), name);
    if (entry.index == kFree) continue;
    forced_[c].push_back(entry);
    found = true;
  }
  if (found) return {};
  return error(weftInvalidArgument, "WEFT_ALGO={}: no algorithm is called {}; legal: {}", all, item,
               legal_names(programs_, only));
}

// The last that names the size.
int Tuner::forced(Collective collective, size_t bytes) const {
  int index = kFree;
  for (const Forced& entry : forced_[static_cast<int>(collective)]) {
    if (bytes >= entry.low && bytes < entry.high) index = entry.index;
  }
  return index;
}

// Sizes are often powers of two: a multiplicative hash (Fibonacci) keeps them apart.
size_t Tuner::slot_of(Collective collective, size_t bytes) {
  static_assert(kDecisions == 64);
  return (uint64_t{bytes} * kCollectives + static_cast<uint64_t>(collective)) * 0x9e3779b97f4a7c15 >> 58;
}

Choice Tuner::choose(Collective collective, size_t bytes) const {
  if (shape_of(collective, topology_.ranks, 0, 0).per_block_sizes) bytes = kVariableBytes;
  Decision& known = decisions_[slot_of(collective, bytes)];
  if (known.collective != collective || known.bytes != bytes) known = decide(collective, bytes);
  Choice choice;
  choice.window = window();
  choice.order = order();
  if (known.index == kFree) return choice;
  const auto index = static_cast<size_t>(known.index);
  choice.program = programs_[index].get();
  choice.program_index = static_cast<uint32_t>(index);
  choice.tile_bytes = tile_bytes();
  choice.reason = reasons_[index];
  return choice;
}

// Least time first, but a program that was never measured gives way to one that was; of equals the first in the table.
Tuner::Decision Tuner::decide(Collective collective, size_t bytes) const {
  const Hierarchy& ranks = topology_.hierarchy;
  Decision decision{.collective = collective, .bytes = bytes};
  const int forced = this->forced(collective, bytes);
  if (forced != kFree && programs_[static_cast<size_t>(forced)]->supports(ranks)) {
    decision.index = forced;
    std::string& reason = reasons_[static_cast<size_t>(forced)];
    if (reason.empty()) reason = "forced";
    return decision;
  }
  int next = kFree;
  Cost best, second;
  const auto better = [](const Cost& a, const Cost& b) {
    return a.measured != b.measured ? a.measured : a.microseconds < b.microseconds;
  };
  for (size_t i = 0; i < programs_.size(); ++i) {
    if (programs_[i]->collective() != collective || !programs_[i]->supports(ranks)) continue;
    const Cost cost = model_->cost(*programs_[i], bytes);
    if (decision.index == kFree || better(cost, best)) {
      next = std::exchange(decision.index, static_cast<int>(i));
      second = std::exchange(best, cost);
    } else if (next == kFree || better(cost, second)) {
      next = static_cast<int>(i);
      second = cost;
    }
  }
  if (decision.index == kFree) return decision;
  std::string& reason = reasons_[static_cast<size_t>(decision.index)];
  if (reason.empty()) reason = explain(decision, best, next, second);
  return decision;
}

std::string Tuner::explain(const Decision& decision, const Cost& best, int next, const Cost& second) const {
  const auto predicted = [](const Cost& cost) {
    return fmt::format("{:.4g} us{}", cost.microseconds, cost.measured ? "" : " by the model alone");
  };
  std::string text =
      forced(decision.collective, decision.bytes) != kFree ? "the forced one is not for this number of ranks; " : "";
  text += fmt::format("predicted for {} bytes: {}", decision.bytes, predicted(best));
  if (next != kFree) text += fmt::format("; {}: {}", programs_[static_cast<size_t>(next)]->name(), predicted(second));
  return text;
}

size_t Tuner::tile_bytes() const {
  const size_t free = topology_.nodes > 1 ? 512 << 10 : 256 << 10;
  return ((tile_bytes_ == 0 ? free : tile_bytes_) + 63) & ~size_t{63};
}

// Inside a node what is in flight should stay in the second-level caches. Between nodes it should cover the round trip
// of the longest link that is known, each rank of a group its share.
uint32_t Tuner::window() const {
  constexpr double kLeast = 8, kMost = 64;
  if (window_ != 0) return window_;
  if (topology_.nodes == 1) return 2;
  const Hierarchy& tree = topology_.hierarchy;
  double tiles = kLeast;
  for (int level = 0; level < tree.levels(); ++level) {
    const auto link = topology_.links.find(tree.name(level));
    if (link == topology_.links.end()) continue;
    const double members = static_cast<double>(tree.tail(-1)) / static_cast<double>(tree.tail(level - 1));
    const double bytes = 2000 * link->second.latency_us / link->second.byte_ns / members;
    tiles = std::max(tiles, std::ceil(bytes / static_cast<double>(tile_bytes())) + 2);
  }
  return static_cast<uint32_t>(std::min(tiles, kMost));
}

}  // namespace weft
