#include "topology/ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace weft {
namespace {

std::vector<int> by_brute_force(const PairCosts& costs) {
  std::vector<int> ring(static_cast<size_t>(costs.members));
  std::iota(ring.begin(), ring.end(), 0);
  std::vector<int> best = ring;
  while (std::next_permutation(ring.begin() + 1, ring.end())) {
    if (cost_of(costs, ring) < cost_of(costs, best)) best = ring;
  }
  return best;
}

// Three kinds: any costs, few different ones (many ties), and distances in the plane.
PairCosts random_costs(int members, int kind, std::mt19937& random) {
  PairCosts costs{members, std::vector<double>(static_cast<size_t>(members * members))};
  std::uniform_real_distribution<double> uniform(0.1, 10);
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < members; ++i) points.emplace_back(uniform(random), uniform(random));
  for (int a = 0; a < members; ++a) {
    for (int b = 0; b < a; ++b) {
      const auto [ax, ay] = points[static_cast<size_t>(a)];
      const auto [bx, by] = points[static_cast<size_t>(b)];
      const double cost = kind == 0   ? uniform(random)
                          : kind == 1 ? static_cast<double>(1 + random() % 3)
                                      : std::hypot(ax - bx, ay - by);
      costs.cost[static_cast<size_t>(a * members + b)] = costs.cost[static_cast<size_t>(b * members + a)] = cost;
    }
  }
  return costs;
}

void expect_is_ring(const std::vector<int>& ring, int members) {
  ASSERT_EQ(static_cast<int>(ring.size()), members);
  EXPECT_EQ(ring[0], 0);
  std::vector<int> sorted = ring;
  std::sort(sorted.begin(), sorted.end());
  for (int i = 0; i < members; ++i) EXPECT_EQ(sorted[static_cast<size_t>(i)], i);
  if (members > 2) {
    EXPECT_LT(ring[1], ring.back());
  }
}

TEST(Ring, ExactIsAsGoodAsBruteForce) {
  std::mt19937 random(11);
  for (int members = 1; members <= 8; ++members) {
    for (int i = 0; i < (members < 8 ? 120 : 45); ++i) {
      const PairCosts costs = random_costs(members, i % 3, random);
      const std::vector<int> ring = best_ring(costs);
      expect_is_ring(ring, members);
      const RingCost found = cost_of(costs, ring), best = cost_of(costs, by_brute_force(costs));
      EXPECT_DOUBLE_EQ(found.worst, best.worst) << members << " members, matrix " << i;
      EXPECT_NEAR(found.sum, best.sum, 1e-9) << members << " members, matrix " << i;
    }
  }
}

// How much worse than the best the heuristic's worst link is, on average and at most.
TEST(Ring, HeuristicIsNearTheBest) {
  std::mt19937 random(12);
  for (const int members : {9, 10, 14}) {
    double total = 0, most = 0;
    int equal = 0;
    const int tries = members < 12 ? 300 : 60;
    for (int i = 0; i < tries; ++i) {
      const PairCosts costs = random_costs(members, i % 3, random);
      const std::vector<int> ring = heuristic_ring(costs);
      expect_is_ring(ring, members);
      const double gap = cost_of(costs, ring).worst / cost_of(costs, exact_ring(costs)).worst - 1;
      EXPECT_GE(gap, -1e-12);
      total += gap;
      most = std::max(most, gap);
      equal += gap < 1e-12 ? 1 : 0;
    }
    RecordProperty("mean_gap_" + std::to_string(members), std::to_string(total / tries));
    printf("%d members: the worst link is %.2f %% above the best on average, %.0f %% at most; the best in %d of %d\n",
           members, 100 * total / tries, 100 * most, equal, tries);
    EXPECT_LT(total / tries, members > 10 ? 0.05 : 0.02) << members;
  }
}

TEST(Ring, LargeOnesAreRings) {
  std::mt19937 random(13);
  for (const int members : {13, 33, 90}) {
    const PairCosts costs = random_costs(members, 2, random);
    const std::vector<int> ring = best_ring(costs);
    expect_is_ring(ring, members);
    std::vector<int> order(static_cast<size_t>(members));
    std::iota(order.begin(), order.end(), 0);
    EXPECT_LT(cost_of(costs, ring).worst, cost_of(costs, order).worst / 2);
    EXPECT_EQ(ring, best_ring(costs));
  }
}

// Sites on two continents with one thin link: the ring leaves it out.
TEST(Ring, GoesAroundAThinLink) {
  const PairCosts costs{4, {0, 9, 1, 2, 9, 0, 2, 1, 1, 2, 0, 9, 2, 1, 9, 0}};
  EXPECT_EQ(best_ring(costs), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(cost_of(costs, {0, 2, 1, 3}).worst, 2);
}

}  // namespace
}  // namespace weft
