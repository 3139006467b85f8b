#include "tuner/tuner.hpp"

#include <algorithm>
#include <bit>

namespace weft {
namespace {

constexpr int kFree = -1;

// One line of the table: the first whose limits hold is taken. Sizes are bytes of the call's larger buffer.
struct Rule {
  Collective collective;
  int most_ranks;
  size_t most_bytes;
  const char* algorithm;
};
constexpr size_t kAny = SIZE_MAX;
constexpr int kAll = INT32_MAX;

constexpr Rule kRules[] = {
    {Collective::allreduce, 2, 256 << 10, "recursive_doubling"},
    {Collective::allreduce, 2, kAny, "ring"},
    {Collective::allreduce, 8, 512, "flat"},
    {Collective::allreduce, kAll, 16 << 10, "recursive_doubling"},
    {Collective::allreduce, kAll, 512 << 10, "halving_doubling"},
    {Collective::allreduce, kAll, kAny, "ring"},
    {Collective::allgather, 8, 64 << 10, "flat"},
    {Collective::allgather, kAll, 64 << 10, "bruck"},
    {Collective::allgather, 8, kAny, "flat"},
    {Collective::allgather, kAll, kAny, "ring"},
    {Collective::reducescatter, 8, 64 << 10, "flat"},
    {Collective::reducescatter, kAll, 64 << 10, "halving"},
    {Collective::reducescatter, kAll, kAny, "ring"},
    {Collective::broadcast, 4, 8 << 10, "flat"},
    {Collective::broadcast, kAll, 64 << 10, "binomial"},
    {Collective::broadcast, kAll, kAny, "chain"},
    {Collective::reduce, kAll, 64 << 10, "binomial"},
    {Collective::reduce, kAll, kAny, "chain"},
    {Collective::alltoall, 16, kAny, "flat"},
    {Collective::alltoall, kAll, 16 << 10, "bruck"},
    {Collective::alltoall, kAll, kAny, "pairwise"},
    {Collective::gather, 16, kAny, "flat"},
    {Collective::gather, kAll, 64 << 10, "binomial"},
    {Collective::gather, kAll, kAny, "flat"},
    {Collective::scatter, 16, kAny, "flat"},
    {Collective::scatter, kAll, 64 << 10, "binomial"},
    {Collective::scatter, kAll, kAny, "flat"},
    {Collective::barrier, kAll, kAny, "dissemination"},
    {Collective::allgatherv, kAll, kAny, "ring"},
    {Collective::reducescatterv, kAll, kAny, "ring"},
    {Collective::alltoallv, kAll, kAny, "pairwise"},
    {Collective::gatherv, kAll, kAny, "flat"},
    {Collective::scatterv, kAll, kAny, "flat"},
};

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
                            size_t tile_bytes, uint32_t window) {
  Tuner tuner;
  tuner.topology_ = topology;
  tuner.programs_ = std::move(programs);
  tuner.tile_bytes_ = tile_bytes;
  tuner.window_ = window;
  std::fill(std::begin(tuner.forced_), std::end(tuner.forced_), kFree);
  for (size_t begin = 0; begin < forced.size();) {
    const size_t end = std::min(forced.find(',', begin), forced.size());
    const std::string item = forced.substr(begin, end - begin);
    begin = end + 1;
    if (item.empty()) continue;
    const size_t colon = item.find(':');
    const std::string name = colon == std::string::npos ? item : item.substr(colon + 1);
    int only = -1;
    if (colon != std::string::npos) {
      for (int c = 0; c < kCollectives; ++c) {
        if (item.substr(0, colon) == name_of(static_cast<Collective>(c))) only = c;
      }
      if (only < 0) {
        return error(weftInvalidArgument, "WEFT_ALGO={}: no collective is called {}; legal: {}", forced,
                     item.substr(0, colon), legal_names(tuner.programs_, -1));
      }
    }
    bool found = false;
    for (int c = 0; c < kCollectives; ++c) {
      if (only >= 0 && c != only) continue;
      const int index = find(tuner.programs_, static_cast<Collective>(c), name);
      if (index == kFree) continue;
      tuner.forced_[c] = index;
      found = true;
    }
    if (!found) {
      return error(weftInvalidArgument, "WEFT_ALGO={}: no algorithm is called {}; legal: {}", forced, item,
                   legal_names(tuner.programs_, only));
    }
  }
  return tuner;
}

Choice Tuner::choose(Collective collective, size_t bytes) const {
  const int ranks = topology_.ranks;
  Choice choice;
  choice.window = window();
  int index = forced_[static_cast<int>(collective)];
  if (index != kFree && programs_[static_cast<size_t>(index)]->supports(ranks)) {
    choice.reason = "forced";
  } else {
    const bool refused = index != kFree;
    index = kFree;
    for (const Rule& rule : kRules) {
      if (rule.collective != collective || ranks > rule.most_ranks || bytes > rule.most_bytes) continue;
      const int candidate = find(programs_, collective, rule.algorithm);
      if (candidate == kFree || !programs_[static_cast<size_t>(candidate)]->supports(ranks)) continue;
      index = candidate;
      choice.reason = refused ? "the forced one is not for this number of ranks" : "by size and number of ranks";
      break;
    }
    for (size_t i = 0; index == kFree && i < programs_.size(); ++i) {
      if (programs_[i]->collective() == collective && programs_[i]->supports(ranks)) {
        index = static_cast<int>(i);
        choice.reason = "the first that supports this number of ranks";
      }
    }
  }
  if (index == kFree) return choice;
  choice.program = programs_[static_cast<size_t>(index)].get();
  choice.program_index = static_cast<uint32_t>(index);
  choice.tile_bytes = tile_bytes();
  return choice;
}

size_t Tuner::tile_bytes() const {
  const size_t free = topology_.nodes > 1 ? 512 << 10 : 256 << 10;
  return ((tile_bytes_ == 0 ? free : tile_bytes_) + 63) & ~size_t{63};
}

// Inside a node what is in flight should stay in the second-level caches; between nodes it should cover round trips.
uint32_t Tuner::window() const { return window_ != 0 ? window_ : topology_.nodes > 1 ? 8 : 2; }

}  // namespace weft
