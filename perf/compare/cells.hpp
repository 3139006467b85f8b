// What every library's benchmark shares: the cells, how one is timed, and the form of the output.
//
// A cell is (collective, bytes). Bytes are those of the larger buffer of a rank. A cell is timed in batches; every
// batch begins after a barrier and is timed by rank 0. Output is one line for each: "cell <collective> <bytes> <median
// us> <least us>". The two ranks of a two-rank run touch their buffers before, so that no page fault is timed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace compare {

enum Collective { allreduce, reduce_scatter, allgather, broadcast, alltoall, kCollectives };
inline constexpr const char* kNames[kCollectives] = {"allreduce", "reduce_scatter", "allgather", "broadcast",
                                                     "alltoall"};

struct Buffers {
  float* in;
  float* out;
};

// Run: void(Collective, size_t floats of the larger buffer, Buffers); Barrier: void().
template <typename Run, typename Barrier>
void run_cells(int argc, char** argv, int rank, int ranks, Buffers buffers, Run&& run, Barrier&& barrier) {
  for (int i = 1; i < argc; ++i) {  // arguments: collective:bytes
    const std::string cell = argv[i];
    const size_t colon = cell.find(':');
    const std::string name = cell.substr(0, colon);
    const size_t bytes = std::strtoull(cell.c_str() + colon + 1, nullptr, 10);
    int which = 0;
    while (which < kCollectives && name != kNames[which]) ++which;
    if (which == kCollectives) continue;
    const size_t floats = bytes / sizeof(float);
    const size_t repeats =
        std::clamp<size_t>((size_t{32} << 20) / std::max<size_t>(bytes, 1), 3, 4000) / (ranks > 2 ? 2 : 1);
    constexpr int kBatches = 7;
    std::vector<double> times;
    for (int batch = 0; batch <= kBatches; ++batch) {  // the first warms up
      barrier();
      const auto begin = std::chrono::steady_clock::now();
      for (size_t k = 0; k < std::max<size_t>(repeats, 2); ++k) run(static_cast<Collective>(which), floats, buffers);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      if (batch > 0) times.push_back(took.count() / static_cast<double>(std::max<size_t>(repeats, 2)));
    }
    std::sort(times.begin(), times.end());
    if (rank == 0) {
      std::printf("cell %s %zu %.3f %.3f\n", kNames[which], bytes, times[kBatches / 2], times[0]);
      std::fflush(stdout);
    }
  }
}

inline size_t largest(int argc, char** argv) {
  size_t most = 64;
  for (int i = 1; i < argc; ++i) {
    if (const char* colon = std::strchr(argv[i], ':'))
      most = std::max(most, size_t{std::strtoull(colon + 1, nullptr, 10)});
  }
  return most;
}

}  // namespace compare
