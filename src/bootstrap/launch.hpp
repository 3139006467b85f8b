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
  std::shared_ptr<Listener> listener;  // rank 0's; null when size is 1
};

// Reads the environment, meets the other ranks' launcher service where an address must be exchanged (PMI, PMIx, a
// rendezvous file), and leaves an id to join with. Errors name the variable, its value and what is legal.
//   weft-run   WEFT_RANK, WEFT_WORLD_SIZE, WEFT_ROOT (host:port or file:/path); WEFT_JOB_ID, WEFT_SECRET
//   torchrun   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (the 16 ports after it are used); TORCHELASTIC_RUN_ID
//   openmpi    OMPI_COMM_WORLD_*; PMIx, or on one host a file named after PMIX_NAMESPACE
//   mpich      PMI_RANK, PMI_SIZE, PMI_FD
//   slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST, SLURM_JOB_ID
// A size of 1 needs none of the rest. The ids of weft-run with host:port, torchrun and slurm are derived from
// variables, so all communicators that a job makes from them have the same group: see Bootstrap::session.
Result<Launch> detect_launch(const Config& config, const Getter& get, Deadline deadline);
// The same from this process's environment.
Result<Launch> detect_launch(const Config& config, Deadline deadline);

}  // namespace weft
