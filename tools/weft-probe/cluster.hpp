// Groups of ranks, and their order, by the round trips between them.
#pragma once

#include <optional>
#include <vector>

namespace weft::probe {

// Latencies in microseconds between n parts, n*n, symmetric; those that were not measured are negative.
struct Latencies {
  int parts = 0;
  std::vector<double> us;
  double at(int a, int b) const { return us[static_cast<size_t>(a * parts + b)]; }
};

// Where latencies fall into two kinds, near and far, at least `ratio` apart: the threshold between them, in the middle
// of the widest gap (of the logarithms).
std::optional<double> gap(const Latencies& latencies, double ratio);
// The group of each part, where those nearer than the threshold are one (single linkage), numbered by their first.
std::vector<int> cluster(const Latencies& latencies, double threshold);
// The parts in the order of the ring with the best worst link (topology/ring.hpp); empty where the ring in the order of
// their numbers has one that is less than `gain` times as bad.
std::vector<int> ring_through(const Latencies& times, double gain);

}  // namespace weft::probe
