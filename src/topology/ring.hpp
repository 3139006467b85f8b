// The order in which to go around a ring: what holds a ring up is its worst link, since all of its steps go over all
// links at once. So the worst link is made as good as can be, and among such rings the sum of all links.
#pragma once

#include <cstddef>
#include <vector>

namespace weft {

// What a link costs between each two of n members: n*n, symmetric; any unit.
struct PairCosts {
  int members = 0;
  std::vector<double> cost;
  double at(int a, int b) const { return cost[static_cast<size_t>(a * members + b)]; }
};

struct RingCost {
  double worst = 0, sum = 0;
  bool operator<(const RingCost& other) const {
    return worst < other.worst || (worst == other.worst && sum < other.sum);
  }
};
RingCost cost_of(const PairCosts& costs, const std::vector<int>& ring);

// Up to so many members the best ring is found; above, a good one.
inline constexpr int kExactRing = 12;
// Begins with member 0, and of the two directions takes the one with the lower second member; a function of the costs
// only.
std::vector<int> best_ring(const PairCosts& costs);

// The two ways of finding it.
std::vector<int> exact_ring(const PairCosts& costs);  // 2^n n^2 steps: up to 20 members
std::vector<int> heuristic_ring(const PairCosts& costs);

}  // namespace weft
