// Groups of ranks by the round trips between them.
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

}  // namespace weft::probe
