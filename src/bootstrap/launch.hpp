// Which launcher started us, and what it says of our place in the job.
#pragma once

#include <memory>
#include <string>

#include "bootstrap/bootstrap.hpp"

namespace weft {

struct Launch {
  std::string launcher;  // "weft-run", "torchrun", "openmpi", "mpich", "slurm", "none"
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  JobId id;                            // complete: address, group, secret
  std::shared_ptr<Listener> listener;  // rank 0's
};

// Reads the environment, meets the other ranks' launcher service where an address must be exchanged (PMI, PMIx, a
// rendezvous file), and leaves an id to join with. Errors name the variable, its value and what is legal.
Result<Launch> detect_launch(const Config& config, const Getter& get, Deadline deadline);

}  // namespace weft
