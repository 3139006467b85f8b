#include "bench.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "generate.hpp"
#include "simulate/simulate.hpp"
#include "tuner/cost_model.hpp"

namespace weft {
namespace {

struct Row {
  const char *collective, *algorithm;
  int node, nodes, groups;  // ranks of a node, nodes of a rack, racks; of flat jobs nodes and racks are one
  size_t bytes;
  size_t tile_bytes;
  SimulateOptions options;
};

constexpr Link kLinks[] = {{1, 0.2, 1.0 / 200}, {5, 0.5, 1.0 / 400}, {8, 0.5, 1.0 / 3200}};
constexpr SimulateOptions kAuto{}, kFair{.sharing = Sharing::fair}, kPlans{.classes = Classes::plans},
    kEvery{.classes = Classes::none}, kEveryFair{.sharing = Sharing::fair, .classes = Classes::none};
constexpr size_t K = 1024, M = K * K;
constexpr int kQuick = 4096;  // ranks

const Row kRows[] = {
    {"allreduce", "ring", 4096, 1, 1, 64 * M, 4 * K, kAuto},
    {"allreduce", "ring", 1024, 1, 1, 64 * M, 16 * K, kEvery},
    {"allreduce", "ring", 1024, 1, 1, 64 * M, 16 * K, kEveryFair},
    {"broadcast", "binomial", 4096, 1, 1, 64 * M, 512 * K, kEvery},
    {"allreduce", "double_tree", 4096, 1, 1, 64 * M, 512 * K, kEvery},
    {"allreduce", "recursive_doubling", 4096, 1, 1, M, 256 * K, kAuto},
    {"allreduce", "recursive_doubling", 4096, 1, 1, M, 256 * K, kEvery},
    {"allreduce", "recursive_doubling", 4095, 1, 1, M, 256 * K, kAuto},
    {"allreduce", "hierarchical", 8, 512, 1, 64 * M, 512 * K, kFair},
    {"allreduce", "hierarchical", 8, 16384, 1, 1024 * M, 512 * K, kAuto},
    {"allreduce", "hierarchical", 8, 16384, 1, 1024 * M, 512 * K, kFair},
    {"allreduce", "hierarchical", 8, 128, 128, 1024 * M, 512 * K, kFair},
    {"allreduce", "recursive_doubling", 131072, 1, 1, M, 512 * K, kAuto},
    {"allreduce", "recursive_doubling", 131072, 1, 1, M, 512 * K, kPlans},
    {"allreduce", "recursive_doubling", 131072, 1, 1, M, 512 * K, kEvery},
    {"allreduce", "recursive_doubling", 131071, 1, 1, M, 512 * K, kAuto},
    {"allreduce", "recursive_doubling", 100000, 1, 1, M, 512 * K, kAuto},
    {"allreduce", "recursive_doubling", 100000, 1, 1, M, 512 * K, kEvery},
    {"allreduce", "recursive_doubling", 8, 16384, 1, M, 512 * K, kEvery},
};

// In the process that is only for it: without memory, which is known when it has ended.
int run(const Row& row) {
  ProgramPtr program;
  for (const ProgramPtr& candidate : builtin_programs()) {
    if (name_of(candidate->collective()) == std::string(row.collective) && candidate->name() == row.algorithm)
      program = candidate;
  }
  ClusterShape shape;
  shape.ranks = row.node;
  shape.nodes = row.nodes;
  shape.groups = row.groups;
  const Topology topology = fat_tree(shape);
  const Links links(kLinks, kLinks + topology.hierarchy.levels());
  SimulateOptions options = row.options;
  options.bytes = row.bytes;
  options.tile_bytes = row.tile_bytes;
  auto result = simulate(*program, topology, links, options);
  if (!result.ok()) {
    fmt::print(stderr, "weft-sim: {}\n", result.status().message());
    return 1;
  }
  const std::string ranks = row.nodes == 1
                                ? fmt::format("{}", row.node)
                                : fmt::format("{}x{}{}", row.node, row.nodes,
                                              row.groups > 1 ? fmt::format("x{}", row.groups) : std::string());
  fmt::print("{:32}{:>12}{:>6}{:>10}{:>9}{:>12}{:>12.6g}{:>9.2f}",
             fmt::format("{} {}", row.collective, row.algorithm).substr(0, 40), ranks,
             options.sharing == Sharing::fair ? "fair" : "fifo", result->simulated_ranks,
             fmt::format("{}{}", result->sampled ? "~" : "", result->classes), result->events, result->microseconds,
             result->cpu_seconds > 0 ? static_cast<double>(result->events) / result->cpu_seconds / 1e6 : 0);
  std::fflush(stdout);
  return 0;
}

}  // namespace

int bench(bool quick) {
  fmt::print(
      "# simulated; ~: classes found in a sample of the plans; Mev/s: million events a CPU second; CPU s: with the "
      "plans\n");
  fmt::print("{:32}{:>12}{:>6}{:>10}{:>9}{:>12}{:>12}{:>9}{:>9}{:>9}\n", "algorithm", "ranks", "links", "simulated",
             "classes", "events", "us", "Mev/s", "CPU s", "peak MiB");
  for (const Row& row : kRows) {
    if (quick && row.node * row.nodes * row.groups > kQuick) continue;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) _exit(run(row));
    int code = 0;
    rusage used{};
    if (wait4(child, &code, 0, &used) != child || code != 0) return 1;
    const auto seconds = [](const timeval& time) { return double(time.tv_sec) + double(time.tv_usec) / 1e6; };
    fmt::print("{:>9.2f}{:>9}\n", seconds(used.ru_utime) + seconds(used.ru_stime), used.ru_maxrss / 1024);
  }
  return 0;
}

}  // namespace weft
