// Simulations for people and for other programs.
#pragma once

#include <string>
#include <vector>

#include "program/program.hpp"
#include "simulate/simulate.hpp"

namespace weft {

struct SimulatedCall {
  std::string topology;  // its name
  ProgramPtr program;
  int ranks = 0;
  size_t bytes = 0;
  Simulation result;
  std::string failure;  // why there is no result
  bool best = false, chosen = false;
};

std::string to_text(const std::vector<SimulatedCall>& calls);
std::string to_json(const std::vector<SimulatedCall>& calls);

// A recorded simulation: ranks are rows, time goes to the right, messages are bars at their receiver with a line from
// their sender; the critical path is red.
std::string to_svg(const SimulatedCall& call);
// The same as a Perfetto (Chrome) trace.
std::string to_perfetto(const SimulatedCall& call);
// The critical path, line by line.
std::string path_to_text(const SimulatedCall& call);

}  // namespace weft
