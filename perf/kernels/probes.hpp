// Hand-written float32 sums: what this machine's memory lets any loop of two reads and one write do. The best of them
// is the limit that kernels_bench compares with.
#pragma once

#include <cstddef>
#include <vector>

namespace weft::perf {

using ProbeFn = void (*)(float* dst, const float* a, const float* b, size_t count);
struct Probe {
  const char* name;
  ProbeFn run;
};

// Those that this CPU can run. Pointers are aligned to 64 bytes and count is a multiple of 64.
std::vector<Probe> probes();

}  // namespace weft::perf
