#include "cost.hpp"

#include <nlohmann/json.hpp>

#include "tuner/tuner.hpp"

namespace weft {

std::vector<CostLine> costs(const std::vector<ProgramPtr>& all, const std::vector<ProgramPtr>& shown,
                            const TunePtr& tune, const CostRequest& request) {
  std::vector<CostLine> lines;
  for (const Topology& topology : request.topologies) {
    auto tuner = Tuner::create(topology, all, "", 0, 0, tune);
    if (!tuner.ok()) continue;  // only what is forced can be wrong
    AlphaBetaModel model(tune, topology, tuner->tile_bytes());
    // Programs that were named by their file may be others than those in the table.
    const auto is = [](const Program& a, const Program& b) {
      return a.collective() == b.collective() && a.name() == b.name();
    };
    for (const ProgramPtr& program : shown) {
      if (!program->supports(topology.hierarchy)) continue;
      for (const size_t bytes : request.sizes) {
        const Choice choice = tuner->choose(program->collective(), bytes);
        lines.push_back({program.get(), topology.ranks, bytes, model.cost(*program, bytes),
                         model.terms(*program, bytes), choice.program != nullptr && is(*choice.program, *program)});
      }
    }
  }
  return lines;
}

std::string to_text(const std::vector<CostLine>& lines) {
  std::string text = fmt::format("{:16}{:24}{:>6}{:>12}{:>14}\n", "collective", "algorithm", "ranks", "bytes", "us");
  for (const CostLine& line : lines) {
    text += fmt::format("{:16}{:24}{:>6}{:>12}{:>14.4g}{}{}\n", name_of(line.program->collective()),
                        line.program->name(), line.ranks, line.bytes, line.cost.microseconds, line.chosen ? " *" : "",
                        line.cost.measured ? "" : "  (by the model alone)");
  }
  return text;
}

std::string to_json(const std::vector<CostLine>& lines) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const CostLine& line : lines) {
    all.push_back({{"collective", name_of(line.program->collective())},
                   {"algorithm", line.program->name()},
                   {"ranks", line.ranks},
                   {"bytes", line.bytes},
                   {"microseconds", line.cost.microseconds},
                   {"measured", line.cost.measured},
                   {"chosen", line.chosen},
                   {"terms",
                    {{"alpha", line.terms.steps},
                     {"message", line.terms.messages},
                     {"beta", line.terms.moved_kb},
                     {"gamma", line.terms.combined_kb}}}});
  }
  return all.dump(1);
}

}  // namespace weft
