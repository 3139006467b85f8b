// A rank of a job across sites: so many all-reduces (or other collectives) of so many floats, each checked, and what
// they took. wan-job COLLECTIVE COUNT CALLS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>
#include <weft/weft.hpp>

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::fprintf(stderr, "usage: wan-job allreduce|allgather|reducescatter|broadcast|alltoall COUNT CALLS\n");
    return 2;
  }
  const std::string collective = argv[1];
  const size_t count = std::strtoul(argv[2], nullptr, 10);
  const int calls = std::atoi(argv[3]);
  weft::Communicator comm = weft::Communicator::from_env();
  const auto ranks = static_cast<size_t>(comm.size()), rank = static_cast<size_t>(comm.rank());
  const bool gathers = collective == "allgather" || collective == "alltoall", scatters = collective == "reducescatter";
  std::vector<float> in(scatters || collective == "alltoall" ? count * ranks : count),
      out(gathers ? count * ranks : count);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(rank + i % 100);
  double seconds = 0;
  for (int call = 0; call <= calls; ++call) {  // the first is to warm up connections
    if (collective == "broadcast" && rank == 0) out = in;
    comm.barrier();
    const auto begin = std::chrono::steady_clock::now();
    if (collective == "allreduce") comm.all_reduce(in, out);
    if (collective == "allgather") comm.all_gather(in, out);
    if (scatters) comm.reduce_scatter(in, out);
    if (collective == "alltoall") comm.all_to_all(in, out);
    if (collective == "broadcast") comm.broadcast(out, 0);
    comm.barrier();
    if (call > 0) seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t sum = ranks * (ranks - 1) / 2;
      const size_t want = collective == "allreduce"   ? sum + ranks * (i % 100)
                          : collective == "allgather" ? i / count + i % count % 100
                          : scatters                  ? sum + ranks * ((rank * count + i) % 100)
                          : collective == "alltoall"  ? i / count + (rank * count + i % count) % 100
                                                      : i % 100;
      if (out[i] != static_cast<float>(want)) {
        std::fprintf(stderr, "rank %zu: element %zu is %g, not %zu\n", rank, i, static_cast<double>(out[i]), want);
        return 1;
      }
    }
  }
  if (rank == 0) std::printf("{\"seconds\": %.6f}\n", seconds / calls);
  return 0;
} catch (const weft::Error& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
