// What the cost model says of programs, and which one the tuner takes.
#pragma once

#include <string>
#include <vector>

#include "tuner/cost_model.hpp"

namespace weft {

struct CostRequest {
  std::vector<Topology> topologies;
  std::vector<size_t> sizes;
};

struct CostLine {
  const Program* program;
  int ranks;
  size_t bytes;
  Cost cost;
  AlphaBetaModel::Terms terms;
  bool chosen;
};

// Of the programs that are shown; all of them may be chosen.
std::vector<CostLine> costs(const std::vector<ProgramPtr>& all, const std::vector<ProgramPtr>& shown,
                            const TunePtr& tune, const CostRequest& request);
std::string to_text(const std::vector<CostLine>& lines);
std::string to_json(const std::vector<CostLine>& lines);

}  // namespace weft
