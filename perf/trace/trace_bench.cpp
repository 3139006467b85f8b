// What the trace costs while it is off, beside the cheapest call there is: an all-reduce of two floats by a single
// rank, which asks twice whether it is on. A call that sends asks twice more for every tile of a message, whose own
// cost is many times that of such a call.
#include <benchmark/benchmark.h>

#include "trace/trace.hpp"
#include "weft/weft.h"

namespace {

void call(benchmark::State& state) {
  weftComm_t comm = nullptr;
  if (weftCommInitAll(&comm, 1, nullptr) != weftSuccess) {
    state.SkipWithError(weftGetLastError(nullptr));
    return;
  }
  float data[2] = {1, 2};
  for (auto _ : state) {
    if (weftAllReduce(data, data, 2, weftFloat, weftMax, comm, nullptr) != weftSuccess) {
      state.SkipWithError(weftGetLastError(comm));
    }
    benchmark::ClobberMemory();
  }
  weftCommDestroy(comm);
}
BENCHMARK(call);

void question(benchmark::State& state) {
  for (auto _ : state) {
    if (weft::trace_enabled()) weft::trace_event({});
    benchmark::ClobberMemory();
  }
}
BENCHMARK(question);

}  // namespace

BENCHMARK_MAIN();
