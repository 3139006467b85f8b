#include "cells.hpp"
#include "weft/weft.h"

namespace {

void check(weftResult_t result) {
  if (result == weftSuccess) return;
  std::fprintf(stderr, "%s: %s\n", weftGetErrorString(result), weftGetLastError(nullptr));
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  weftComm_t comm;
  int rank, ranks;
  check(weftCommInitEnv(&comm, nullptr));
  check(weftCommUserRank(comm, &rank));
  check(weftCommCount(comm, &ranks));
  const size_t bytes = compare::largest(argc, argv);
  const bool shared = std::getenv("COMPARE_SHARED") != nullptr;  // memory of weftMemAlloc instead of malloc
  void *in = nullptr, *out = nullptr;
  if (shared) {
    check(weftMemAlloc(&in, bytes));
    check(weftMemAlloc(&out, bytes));
  } else {
    in = std::malloc(bytes);
    out = std::malloc(bytes);
  }
  compare::run_cells(
      argc, argv, rank, {compare::written(in, bytes), compare::written(out, bytes)},
      [&](compare::Collective which, size_t floats, compare::Buffers buffers) {
        const size_t part = floats / static_cast<size_t>(ranks);
        switch (which) {
          case compare::allreduce:
            check(weftAllReduce(buffers.in, buffers.out, floats, weftFloat, weftSum, comm, nullptr));
            break;
          case compare::reduce_scatter:
            check(weftReduceScatter(buffers.in, buffers.out, part, weftFloat, weftSum, comm, nullptr));
            break;
          case compare::allgather:
            check(weftAllGather(buffers.in, buffers.out, part, weftFloat, comm, nullptr));
            break;
          case compare::broadcast:
            check(weftBroadcast(buffers.out, buffers.out, floats, weftFloat, 0, comm, nullptr));
            break;
          default:
            check(weftAlltoAll(buffers.in, buffers.out, part, weftFloat, comm, nullptr));
        }
      },
      [&] { check(weftBarrier(comm, nullptr)); });
  check(weftCommDestroy(comm));
}
