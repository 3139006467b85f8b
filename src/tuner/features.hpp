// What a program asks of the machine, counted in its plans. Bytes are fractions of the call's bytes.
#pragma once

#include "program/program.hpp"

namespace weft {

struct Features {
  double steps = 0;           // with messages, on the critical path
  double messages = 0;        // sent and received by the busiest rank, for each tile
  double path_bytes = 0;      // moved by the busiest rank of each step, added up over the steps
  double rank_bytes = 0;      // moved by the busiest rank over all steps
  double combined_bytes = 0;  // combined or copied by the busiest rank
  double chunk_bytes = 1;     // of one chunk
};

// From the plans of all ranks where they are few, else of some: milliseconds of work for a thousand ranks. A function
// of the program and the number of ranks only, the root being rank 0.
Result<Features> features_of(const Program& program, int ranks);

}  // namespace weft
