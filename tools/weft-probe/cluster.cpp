#include "cluster.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "topology/ring.hpp"

namespace weft::probe {

std::optional<double> gap(const Latencies& latencies, double ratio) {
  std::vector<double> sorted;
  for (int a = 0; a < latencies.parts; ++a) {
    for (int b = 0; b < a; ++b) {
      if (latencies.at(a, b) > 0) sorted.push_back(latencies.at(a, b));
    }
  }
  std::sort(sorted.begin(), sorted.end());
  std::optional<double> threshold;
  double widest = ratio;
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i] / sorted[i - 1] < widest) continue;
    widest = sorted[i] / sorted[i - 1];
    threshold = std::sqrt(sorted[i] * sorted[i - 1]);
  }
  return threshold;
}

std::vector<int> cluster(const Latencies& latencies, double threshold) {
  std::vector<int> group(static_cast<size_t>(latencies.parts));
  std::iota(group.begin(), group.end(), 0);
  for (int a = 0; a < latencies.parts; ++a) {
    for (int b = 0; b < a; ++b) {
      if (latencies.at(a, b) <= 0 || latencies.at(a, b) > threshold) continue;
      const int from = std::max(group[static_cast<size_t>(a)], group[static_cast<size_t>(b)]);
      const int to = std::min(group[static_cast<size_t>(a)], group[static_cast<size_t>(b)]);
      std::replace(group.begin(), group.end(), from, to);
    }
  }
  std::map<int, int> numbers;
  for (int& number : group) number = numbers.try_emplace(number, static_cast<int>(numbers.size())).first->second;
  return group;
}

std::vector<int> ring_through(const Latencies& times, double gain) {
  const PairCosts costs{times.parts, times.us};
  std::vector<int> by_number(static_cast<size_t>(times.parts));
  std::iota(by_number.begin(), by_number.end(), 0);
  std::vector<int> ring = best_ring(costs);
  return cost_of(costs, by_number).worst >= gain * cost_of(costs, ring).worst ? ring : std::vector<int>{};
}

}  // namespace weft::probe
