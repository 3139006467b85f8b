// This machine, by hwloc and sysfs.
#pragma once

#include "topology/machine.hpp"

namespace weft {

// GPUs are numbered in the order of their buses, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID. What only a GPU's own
// driver knows (NVLinks, compute capability) stays open; NCCL fills that in when it reads the file.
Machine this_machine();

}  // namespace weft
