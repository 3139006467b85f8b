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

// Every page of a buffer is written, and not with zeros: compilers make a calloc of malloc and memset(0), and of pages
// that were only ever read there is but one, which stays in the caches.
inline float* written(void* memory, size_t bytes) {
  auto* floats = static_cast<float*>(memory);
  std::fill(floats, floats + bytes / sizeof(float), 1.0f);
  return floats;
}

// Run: void(Collective, size_t floats of the larger buffer, Buffers); Barrier: void().
template <typename Run, typename Barrier>
void run_cells(int argc, char** argv, int rank, Buffers buffers, Run&& run, Barrier&& barrier) {
  for (int i = 1; i < argc; ++i) {  // arguments: collective:bytes
    const std::string cell = argv[i];
    const size_t colon = cell.find(':');
    const std::string name = cell.substr(0, colon);
    const size_t bytes = std::strtoull(cell.c_str() + colon + 1, nullptr, 10);
    int which = 0;
    while (which < kCollectives && name != kNames[which]) ++which;
    if (which == kCollectives) continue;
    const size_t floats = bytes / sizeof(float);
    // As many calls as fit into a batch's time, by rank 0's clock: libraries that spin where ranks share cores take
    // milliseconds for what others do in microseconds.
    const auto timed = [&](size_t calls) {
      barrier();
      const auto begin = std::chrono::steady_clock::now();
      for (size_t k = 0; k < calls; ++k) run(static_cast<Collective>(which), floats, buffers);
      const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
      return took.count() / static_cast<double>(calls);
    };
    constexpr double kBatchMicroseconds = 30e3;
    double calls = std::clamp(kBatchMicroseconds / timed(3), 2.0, 4000.0);
    buffers.out[0] = static_cast<float>(calls);
    run(broadcast, 1, buffers);
    calls = buffers.out[0];
    constexpr int kBatches = 7;
    std::vector<double> times;
    timed(static_cast<size_t>(calls));  // warms up
    for (int batch = 0; batch < kBatches; ++batch) times.push_back(timed(static_cast<size_t>(calls)));
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
