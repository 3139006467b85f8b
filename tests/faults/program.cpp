// What launchers start: all-reduces in a job that its environment describes. Arguments: how many (1), elements (1000),
// milliseconds of rank 0 before the last one (0). Prints one JSON line per rank.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "weft/weft.h"

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) { return argc > at ? std::atoi(argv[at]) : otherwise; };
  const int rounds = number(1, 1);
  const auto count = static_cast<size_t>(number(2, 1000));
  const int late_ms = number(3, 0);
  weftComm_t comm = nullptr;
  int rank = -1, size = 0;
  weftResult_t code = weftCommInitEnv(&comm, nullptr);
  if (code == weftSuccess) {
    weftCommUserRank(comm, &rank);
    weftCommCount(comm, &size);
  }
  std::vector<double> in(count), out(count);
  bool right = true;
  for (int round = 0; round < rounds && code == weftSuccess; ++round) {
    if (round == rounds - 1 && rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(late_ms));
    for (size_t i = 0; i < count; ++i) in[i] = rank + round + static_cast<double>(i);
    code = weftAllReduce(in.data(), out.data(), count, weftFloat64, weftSum, comm, nullptr);
    for (size_t i = 0; i < count && code == weftSuccess; ++i) {
      right = right && out[i] == size * (size - 1) / 2.0 + size * (round + static_cast<double>(i));
    }
  }
  if (code != weftSuccess) std::fprintf(stderr, "%s\n", weftGetLastError(comm));
  std::printf("{\"rank\": %d, \"size\": %d, \"result\": %d, \"right\": %s}\n", rank, size, static_cast<int>(code),
              right ? "true" : "false");
  std::fflush(stdout);
  weftCommDestroy(comm);
  return code == weftSuccess && right ? 0 : 1;
}
