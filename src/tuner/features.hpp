// What a program asks of the machine, counted in its plans. Bytes are fractions of the call's bytes.
#pragma once

#include "program/program.hpp"
#include "topology/topology.hpp"

namespace weft {

// Over several levels, with what steps, messages and bytes weigh on each. Who moves bytes is, on the lowest level, a
// rank; above it, a group of the level below, whose ranks share what leads out of it.
struct Features {
  double steps = 0;           // with messages, on the critical path; one with several levels is one of the heaviest
  double messages = 0;        // sent and received by the busiest rank, for each tile
  double path_bytes = 0;      // moved by the busiest of each step, added up over the steps
  double rank_bytes = 0;      // moved by the busiest over all steps
  double combined_bytes = 0;  // combined or copied by the busiest rank
  double chunk_bytes = 1;     // of one chunk
};

// From the plans of all ranks where they are few, else of some and their neighbours: milliseconds of work for a
// thousand ranks. A function of its arguments only, the root being rank 0.
Result<Features> features_of(const Program& program, const Hierarchy& hierarchy, const Links& links);
// Of a flat hierarchy, in which everything weighs 1. Remembered.
Result<Features> features_of(const Program& program, int ranks);

}  // namespace weft
