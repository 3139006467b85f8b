// Why a call takes the algorithm that it takes, and what would be best of all that could be set.
#pragma once

#include <string>
#include <vector>

#include "program/program.hpp"
#include "topology/topology.hpp"
#include "tuner/tune.hpp"

namespace weft {

// What the cost model says of each algorithm, part by part, the fastest first.
std::string why(const std::vector<ProgramPtr>& programs, Collective collective, const Topology& topology,
                const TunePtr& tune, size_t bytes);
// By simulation, over all algorithms, tiles and windows: the best settings, as variables, beside the library's own.
Result<std::string> best(const std::vector<ProgramPtr>& programs, Collective collective, const Topology& topology,
                         const TunePtr& tune, size_t bytes);

}  // namespace weft
