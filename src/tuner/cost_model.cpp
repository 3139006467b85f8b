#include "tuner/cost_model.hpp"

#include <algorithm>
#include <limits>

namespace weft {

AlphaBetaModel::AlphaBetaModel(TunePtr tune, const Topology& topology, size_t tile_bytes)
    : tune_(std::move(tune)), kind_(kind_of(topology)), ranks_(topology.ranks), tile_bytes_(tile_bytes) {}

// A chunk of T tiles: the first tile takes the critical path alone, and while the others follow it, the busiest rank is
// what holds them up. T is not rounded, so that no size is a cliff.
AlphaBetaModel::Terms AlphaBetaModel::terms(const Program& program, size_t bytes) {
  auto found = features_.find(&program);
  if (found == features_.end()) {
    auto features = features_of(program, ranks_);
    constexpr double kNever = std::numeric_limits<double>::infinity();
    found = features_.emplace(&program, features.ok() ? *features : Features{.steps = kNever}).first;
  }
  const Features& features = found->second;
  const double kb = static_cast<double>(bytes) / 1000;
  const double tiles =
      std::max(1.0, static_cast<double>(bytes) * features.chunk_bytes / static_cast<double>(tile_bytes_));
  const double moved = features.rank_bytes + (features.path_bytes - features.rank_bytes) / tiles;
  return {features.steps, features.messages * tiles, moved * kb, features.combined_bytes * kb};
}

Cost AlphaBetaModel::cost(const Program& program, size_t bytes) {
  const KindTune& tune = tune_->of(kind_);
  const Terms t = terms(program, bytes);
  const double predicted =
      tune.alpha * t.steps + tune.message * t.messages + tune.beta * t.moved_kb + tune.gamma * t.combined_kb;
  const auto correction = tune.correction(program.collective(), program.name(), ranks_, bytes);
  return {predicted * correction.value_or(1), correction.has_value()};
}

}  // namespace weft
