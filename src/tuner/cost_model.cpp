#include "tuner/cost_model.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace weft {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();  // the program has no plan
constexpr int kFloors = 50;                                         // beyond, no call is

// A chunk of T tiles: the first tile takes the critical path alone, and while the others follow it, the busiest rank is
// what holds them up. T is not rounded, so that no size is a cliff.
AlphaBetaModel::Terms terms_of(const Features& features, size_t bytes, size_t tile_bytes) {
  const double kb = static_cast<double>(bytes) / 1000;
  const double tiles =
      std::max(1.0, static_cast<double>(bytes) * features.chunk_bytes / static_cast<double>(tile_bytes));
  const double moved = features.rank_bytes + (features.path_bytes - features.rank_bytes) / tiles;
  return {features.steps, features.messages * tiles, moved * kb, features.combined_bytes * kb};
}

}  // namespace

Links links_of(const Tune& tune, const Topology& topology) {
  Links links;
  for (int level = 0; level < topology.hierarchy.levels(); ++level) {
    const auto known = topology.links.find(topology.hierarchy.name(level));
    if (known != topology.links.end()) {
      links.push_back(known->second);
      continue;
    }
    const bool inside = level == 0 && topology.hierarchy.name(level) == kNodeLevel;
    const KindTune& kind = tune.of(inside ? TopologyKind::shm : kind_of(topology));
    links.push_back({kind.alpha, kind.message, kind.beta});
  }
  return links;
}

AlphaBetaModel::AlphaBetaModel(TunePtr tune, const Topology& topology, size_t tile_bytes)
    : tune_(std::move(tune)),
      kind_(kind_of(topology)),
      topology_(topology),
      tile_bytes_(tile_bytes),
      links_(links_of(*tune_, topology)) {}

AlphaBetaModel::Terms AlphaBetaModel::terms(const Program& program, size_t bytes) {
  return terms_of(known(program).features, bytes, tile_bytes_);
}

Cost AlphaBetaModel::cost(const Program& program, size_t bytes) {
  const Known& what = known(program);
  if (what.features.steps == kNever) return {kNever, false};
  const double now = corrected(program, what.features, bytes);
  const int below = std::clamp(static_cast<int>(std::bit_width(bytes)) - 1, 0, kFloors);
  const auto& measured = tune_->of(kind_).corrections;
  return {std::max(now, what.floors[static_cast<size_t>(below)]),
          by_measurements() && measured.contains(std::pair(program.collective(), program.name()))};
}

AlphaBetaModel::Known& AlphaBetaModel::known(const Program& program) {
  const auto [place, is_new] = known_.try_emplace(&program);
  Known& known = place->second;
  if (!is_new) return known;
  const auto features =
      by_measurements() ? features_of(program, topology_.ranks) : features_of(program, topology_.hierarchy, links_);
  known.features = features.ok() ? features.value() : Features{.steps = kNever};
  double floor = corrected(program, known.features, 0);
  for (int k = 0; k <= kFloors; ++k) {
    floor = std::max(floor, corrected(program, known.features, size_t{1} << k));
    known.floors.push_back(floor);
  }
  return known;
}

double AlphaBetaModel::corrected(const Program& program, const Features& features, size_t bytes) const {
  const KindTune& tune = tune_->of(kind_);
  const Terms t = terms_of(features, bytes, tile_bytes_);
  if (!by_measurements()) return t.steps + t.messages + t.moved_kb + tune.gamma * t.combined_kb;
  const double predicted =
      tune.alpha * t.steps + tune.message * t.messages + tune.beta * t.moved_kb + tune.gamma * t.combined_kb;
  return predicted * tune.correction(program.collective(), program.name(), topology_, bytes).value_or(1);
}

}  // namespace weft
