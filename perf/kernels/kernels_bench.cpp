// Reduction kernels by type, operation and size, and the float32 sum against the machine's own limit.
//
//   kernels_bench --benchmark_filter=limit      the float32 sum, each run beside every hand-written loop
//   kernels_bench --benchmark_filter=reduce     bytes per second (two reads and one write) of all types and operations
//   kernels_bench --benchmark_filter=call       time of one small call
//   kernels_bench --benchmark_filter=copy       copy() beside memcpy
//
// A limit benchmark interleaves: kernel, probe, kernel, next probe, ... in each iteration, so that all see the same
// machine. `ratio` is the fastest probe's median time over the kernel's: 0.9 means 90 % of the limit.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "kernels/reduce.hpp"
#include "probes.hpp"

namespace weft::perf {
namespace {

struct Freed {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<std::byte, Freed>;

// Touched, so that no page fault is measured. The bytes are finite, normal numbers in every format.
Buffer make_buffer(size_t bytes) {
  Buffer buffer(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)));
  std::memset(buffer.get(), 0x3c, bytes);
  return buffer;
}

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Of this thread's time, so that being scheduled away does not count; nothing here waits.
double seconds(auto&& work) {
  const double start = thread_seconds();
  work();
  return thread_seconds() - start;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Small sizes are repeated within one timing, else the clock would be measured.
void limit(benchmark::State& state, size_t bytes, bool in_place) {
  const size_t count = bytes / sizeof(float);
  const Buffer a = make_buffer(bytes), b = make_buffer(bytes), out = make_buffer(bytes);
  auto* const from = reinterpret_cast<float*>(a.get());
  auto* const other = reinterpret_cast<float*>(b.get());
  auto* const to = in_place ? from : reinterpret_cast<float*>(out.get());
  const ReduceFn kernel = reduce_function(weftFloat32, weftSum);
  const std::vector<Probe> all = probes();
  const size_t repeats = std::max<size_t>(1, (size_t{4} << 20) / bytes);
  std::vector<double> kernel_times;
  std::vector<std::vector<double>> probe_times(all.size());
  const auto run_kernel = [&] {
    for (size_t i = 0; i < repeats; ++i) kernel(to, from, other, count);
  };
  for (auto _ : state) {
    double total = 0;
    for (size_t p = 0; p < all.size(); ++p) {
      const auto run_probe = [&] {
        for (size_t i = 0; i < repeats; ++i) all[p].run(to, from, other, count);
      };
      // What the cache holds depends on who ran last: each first once unmeasured where that is cheap.
      if (bytes <= size_t{64} << 20) run_kernel();
      kernel_times.push_back(seconds(run_kernel));
      if (bytes <= size_t{64} << 20) run_probe();
      probe_times[p].push_back(seconds(run_probe));
      total += kernel_times.back();
    }
    state.SetIterationTime(total / static_cast<double>(all.size() * repeats));
  }
  const double kernel_time = median(kernel_times);
  double best = 0;
  for (size_t p = 0; p < all.size(); ++p) {
    const double time = median(probe_times[p]);
    if (p == 0 || time < best) {
      best = time;
      state.SetLabel(all[p].name);
    }
  }
  const double moved = 3.0 * static_cast<double>(bytes * repeats);
  state.counters["kernel_GB/s"] = moved / kernel_time * 1e-9;
  state.counters["limit_GB/s"] = moved / best * 1e-9;
  state.counters["ratio"] = best / kernel_time;
}

void reduce(benchmark::State& state, weftDataType_t type, weftRedOp_t op, size_t bytes) {
  const Buffer a = make_buffer(bytes), b = make_buffer(bytes), out = make_buffer(bytes);
  const ReduceFn kernel = reduce_function(type, op);
  for (auto _ : state) {
    kernel(out.get(), a.get(), b.get(), bytes / type_bytes(type));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(3 * bytes) * state.iterations());
}

void call(benchmark::State& state, weftDataType_t type, size_t count) {
  const Buffer a = make_buffer(4096), b = make_buffer(4096), out = make_buffer(4096);
  const ReduceFn kernel = reduce_function(type, weftSum);
  for (auto _ : state) {
    kernel(out.get(), a.get(), b.get(), count);
    benchmark::ClobberMemory();
  }
}

void copying(benchmark::State& state, size_t bytes, bool ours) {
  const Buffer a = make_buffer(bytes), out = make_buffer(bytes);
  for (auto _ : state) {
    if (ours) {
      weft::copy(out.get(), a.get(), bytes);
    } else {
      std::memcpy(out.get(), a.get(), bytes);
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(2 * bytes) * state.iterations());
}

std::string size_name(size_t bytes) {
  if (bytes >= size_t{1} << 20) return std::to_string(bytes >> 20) + "MiB";
  if (bytes >= size_t{1} << 10) return std::to_string(bytes >> 10) + "KiB";
  return std::to_string(bytes) + "B";
}

constexpr size_t kKi = 1024, kMi = 1024 * 1024;

void register_all() {
  for (const size_t bytes : {64 * kKi, 256 * kKi, kMi, 4 * kMi, 8 * kMi, 16 * kMi, 64 * kMi, 256 * kMi}) {
    for (const bool in_place : {false, true}) {
      const std::string name = "limit/float/sum/" + size_name(bytes) + (in_place ? "/inplace" : "");
      benchmark::RegisterBenchmark(name.c_str(), limit, bytes, in_place)
          ->UseManualTime()
          ->Iterations(bytes <= 4 * kMi ? 15 : 5);
    }
  }
  for (int type = 0; type < weftNumTypes; ++type) {
    for (const weftRedOp_t op : {weftSum, weftProd, weftMax, weftMin}) {
      for (const size_t bytes : {256 * kKi, 64 * kMi}) {
        const std::string name =
            "reduce/" + std::string(kTypes[type].name) + "/" + std::string(kOps[op]) + "/" + size_name(bytes);
        benchmark::RegisterBenchmark(name.c_str(), reduce, static_cast<weftDataType_t>(type), op, bytes)->MinTime(0.1);
      }
    }
  }
  for (const weftDataType_t type : {weftFloat32, weftBfloat16, weftFloat16, weftFloat8e4m3, weftInt8}) {
    for (const size_t bytes : {8, 64, 256, 4096}) {
      const std::string name = "call/" + std::string(kTypes[type].name) + "/" + size_name(bytes);
      benchmark::RegisterBenchmark(name.c_str(), call, type, bytes / type_bytes(type))->MinTime(0.1);
    }
  }
  for (const size_t bytes : {256 * kKi, kMi, 4 * kMi, 8 * kMi, 16 * kMi, 64 * kMi, 256 * kMi}) {
    for (const bool ours : {true, false}) {
      const std::string name = "copy/" + size_name(bytes) + (ours ? "/weft" : "/memcpy");
      benchmark::RegisterBenchmark(name.c_str(), copying, bytes, ours)->MinTime(0.2);
    }
  }
}

}  // namespace
}  // namespace weft::perf

int main(int argc, char** argv) {
  weft::perf::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("kernel_target", weft::kernel_target());
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
