#include "advice.hpp"

#include <algorithm>

#include "simulate/simulate.hpp"
#include "tuner/tuner.hpp"

namespace weft {
namespace {

constexpr size_t kShown = 8;
constexpr size_t kTiles[] = {64 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20};
constexpr uint32_t kWindows[] = {2, 8, 32};

bool is_for(const Program& program, Collective collective, const Topology& topology) {
  return program.collective() == collective && program.supports(topology.hierarchy);
}

std::string size_text(size_t bytes) {
  for (const auto& [shift, unit] : {std::pair(30, 'G'), std::pair(20, 'M'), std::pair(10, 'K')}) {
    if (bytes > 0 && bytes % (size_t{1} << shift) == 0) return fmt::format("{}{}", bytes >> shift, unit);
  }
  return fmt::format("{}", bytes);
}

}  // namespace

std::string why(const std::vector<ProgramPtr>& programs, Collective collective, const Topology& topology,
                const TunePtr& tune, size_t bytes) {
  auto tuner = Tuner::create(topology, programs, "", 0, 0, tune);
  if (!tuner.ok()) return tuner.status().message() + "\n";
  AlphaBetaModel model(tune, topology, tuner->tile_bytes());
  const KindTune& kind = tune->of(kind_of(topology));
  const bool corrected = model.by_measurements();
  const int levels = topology.hierarchy.levels();
  const Choice choice = tuner->choose(collective, bytes);
  struct Line {
    const Program* program;
    Cost cost;
    AlphaBetaModel::Terms terms;
  };
  std::vector<Line> lines;
  for (const ProgramPtr& program : programs) {
    if (!is_for(*program, collective, topology)) continue;
    lines.push_back({program.get(), model.cost(*program, bytes), model.terms(*program, bytes)});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.cost.microseconds < b.cost.microseconds; });
  std::string text =
      fmt::format("{} of {} bytes, {} ranks, {} level{}; tiles of {}, {} at once\n", name_of(collective), bytes,
                  topology.ranks, levels, levels == 1 ? "" : "s", size_text(tuner->tile_bytes()), tuner->window());
  text += fmt::format("{:24}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "us", "predicted", "steps", "messages", "moved",
                      "combined", "corrected");
  for (const Line& line : lines) {
    const double steps = line.terms.steps * (corrected ? kind.alpha : 1),
                 combined = line.terms.combined_kb * kind.gamma;
    const double messages = line.terms.messages * (corrected ? kind.message : 1);
    const double moved = line.terms.moved_kb * (corrected ? kind.beta : 1);
    const double sum = steps + messages + moved + combined;
    text += fmt::format("{:24}{:12.5g}{:12.4g}{:12.4g}{:12.4g}{:12.4g}{:>12}{}{}\n", line.program->name(),
                        line.cost.microseconds, steps, messages, moved, combined,
                        line.cost.measured ? fmt::format("x {:.2f}", line.cost.microseconds / sum) : "-",
                        line.program == choice.program ? "  *" : "",
                        corrected && !line.cost.measured ? "  (never measured)" : "");
  }
  return text;
}

Result<std::string> best(const std::vector<ProgramPtr>& programs, Collective collective, const Topology& topology,
                         const TunePtr& tune, size_t bytes) {
  auto tuner = Tuner::create(topology, programs, "", 0, 0, tune);
  if (!tuner.ok()) return tuner.status();
  struct Candidate {
    const Program* program;
    size_t tile;
    uint32_t window;
    double microseconds;
    bool own;
  };
  std::vector<Candidate> all;
  const Links links = links_of(*tune, topology);
  const Choice own = tuner->choose(collective, bytes);
  const auto add = [&](const Program& program, size_t tile, uint32_t window, bool is_own) {
    const SimulateOptions options{.bytes = bytes,
                                  .tile_bytes = tile,
                                  .window = window,
                                  .order = own.order,
                                  .combine_ns = tune->of(kind_of(topology)).gamma};
    auto result = simulate(program, topology, links, options);
    if (result.ok()) all.push_back({&program, tile, window, result->microseconds, is_own});
    return result.status();
  };
  Status failure;
  for (const ProgramPtr& program : programs) {
    if (!is_for(*program, collective, topology)) continue;
    for (const size_t tile : kTiles) {
      for (const uint32_t window : kWindows) {
        // Where there is one tile they are all the same.
        if (bytes <= kTiles[0] && (tile != kTiles[0] || window != kWindows[0])) continue;
        if (const Status status = add(*program, tile, window, false); !status.ok()) failure = status;
      }
    }
  }
  if (own.program != nullptr) static_cast<void>(add(*own.program, own.tile_bytes, own.window, true).ok());
  if (all.empty()) {
    return failure.ok() ? error(weftInvalidArgument, "no {} is for this topology", name_of(collective)) : failure;
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.microseconds < b.microseconds; });
  std::string text =
      fmt::format("# simulated, not measured: {} of {} bytes, {} ranks\n", name_of(collective), bytes, topology.ranks);
  size_t shown = 0;
  for (const Candidate& candidate : all) {
    if (!candidate.own && shown++ >= kShown) continue;
    text += fmt::format("{:12.5g} us  ", candidate.microseconds);
    text += candidate.own ? fmt::format("as the library chooses: {}, tiles of {}, {} at once\n",
                                        candidate.program->name(), size_text(candidate.tile), candidate.window)
                          : fmt::format("WEFT_ALGO={}:{} WEFT_TILE={} WEFT_WINDOW={}\n", name_of(collective),
                                        candidate.program->name(), size_text(candidate.tile), candidate.window);
  }
  return text;
}

}  // namespace weft
