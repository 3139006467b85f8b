#include "topology/ring.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>

namespace weft {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int kMostStarts = 32;

size_t at(int index) { return static_cast<size_t>(index); }

// Paths from member 0 through sets of the others (Held and Karp, 1962): of the paths to `last` through all of a set,
// only the best matters. `join` makes the cost of a longer path from that of a shorter one and a link.
template <typename Join>
std::vector<int> best_cycle(const PairCosts& costs, Join join) {
  const int others = costs.members - 1;
  const uint32_t all = (1U << others) - 1;
  const auto place = [&](uint32_t set, int last) { return size_t{set} * at(others) + at(last); };
  std::vector<double> best(place(all, others - 1) + 1, kNever);
  for (int last = 0; last < others; ++last) best[place(1U << last, last)] = join(0.0, costs.at(0, last + 1));
  for (uint32_t set = 1; set <= all; ++set) {
    for (int last = 0; last < others; ++last) {
      const double path = best[place(set, last)];
      if ((set >> last & 1) == 0 || path == kNever) continue;
      for (int next = 0; next < others; ++next) {
        if ((set >> next & 1) != 0) continue;
        double& known = best[place(set | 1U << next, next)];
        known = std::min(known, join(path, costs.at(last + 1, next + 1)));
      }
    }
  }
  // Backwards along the paths whose costs add up to the best.
  std::vector<int> ring;
  double rest = kNever;
  int last = 0;
  for (int end = 0; end < others; ++end) {
    const double cycle = join(best[place(all, end)], costs.at(0, end + 1));
    if (end == 0 || cycle < rest) last = end, rest = cycle;
  }
  for (uint32_t set = all;;) {
    ring.push_back(last + 1);
    const uint32_t before = set & ~(1U << last);
    if (before == 0) break;
    int previous = -1;
    for (int end = 0; end < others && previous < 0; ++end) {
      if ((before >> end & 1) != 0 &&
          join(best[place(before, end)], costs.at(end + 1, last + 1)) == best[place(set, last)])
        previous = end;
    }
    set = before;
    last = previous;
  }
  ring.push_back(0);
  std::reverse(ring.begin(), ring.end());
  return ring;
}

// From member 0 on, and the way around that the second member tells.
std::vector<int> normal(std::vector<int> ring) {
  std::rotate(ring.begin(), std::find(ring.begin(), ring.end(), 0), ring.end());
  if (ring.size() > 2 && ring.back() < ring[1]) std::reverse(ring.begin() + 1, ring.end());
  return ring;
}

// Improves a ring move by move. A move takes some links out and puts as many others in. First those whose new links are
// better, the worst of them compared first, then the second; then those that lower the sum and make no link worse than
// the worst of all. Neither can go on forever.
class Improver {
 public:
  Improver(const PairCosts& costs, std::vector<int> ring) : costs_(costs), ring_(std::move(ring)) {}

  std::vector<int> run() {
    for (std::vector<int> best = ring_;; best = ring_) {
      by_sum_ = false;
      while (reversals() || shifts()) {
      }
      by_sum_ = true;
      worst_ = cost_of(costs_, ring_).worst;
      while (reversals() || shifts()) {
      }
      if (!(cost_of(costs_, ring_) < cost_of(costs_, best))) return best;
    }
  }

 private:
  int member(int index) const { return ring_[at(index % costs_.members)]; }
  double link(int a, int b) const { return costs_.at(a, b); }
  template <size_t n>
  bool is_better(std::array<double, n> gone, std::array<double, n> made) const {
    if (by_sum_) {
      const double sum = std::accumulate(gone.begin(), gone.end(), 0.0);
      return std::accumulate(made.begin(), made.end(), 0.0) < sum * (1 - 1e-12) &&
             *std::max_element(made.begin(), made.end()) <= worst_;
    }
    std::sort(gone.begin(), gone.end(), std::greater<>());
    std::sort(made.begin(), made.end(), std::greater<>());
    return made < gone;
  }
  // A stretch of the ring, the other way around (2-opt).
  bool reversals() {
    bool moved = false;
    const int n = costs_.members;
    for (int i = 0; i + 1 < n; ++i) {
      for (int j = i + 2; j < n - (i == 0 ? 1 : 0); ++j) {
        const int a = member(i), b = member(i + 1), c = member(j), d = member(j + 1);
        if (!is_better<2>({link(a, b), link(c, d)}, {link(a, c), link(b, d)})) continue;
        std::reverse(ring_.begin() + i + 1, ring_.begin() + j + 1);
        moved = true;
      }
    }
    return moved;
  }
  // Up to three members, put elsewhere as they are or the other way around (Or, 1976).
  bool shifts() {
    bool moved = false;
    const int n = costs_.members;
    for (int length = 1; length <= 3 && length + 3 <= n; ++length) {
      for (int begin = 0; begin < n; ++begin) moved = shift(begin, length) || moved;
    }
    return moved;
  }
  bool shift(int begin, int length) {
    const int n = costs_.members;
    std::rotate(ring_.begin(), ring_.begin() + begin, ring_.end());
    const int first = ring_[0], last = member(length - 1), before = member(n - 1), after = member(length);
    for (int i = length; i + 1 < n; ++i) {
      for (const bool turned : {false, true}) {
        const int a = member(i), b = member(i + 1), near = turned ? last : first, far = turned ? first : last;
        if (!is_better<3>({link(before, first), link(last, after), link(a, b)},
                          {link(before, after), link(a, near), link(far, b)}))
          continue;
        if (turned) std::reverse(ring_.begin(), ring_.begin() + length);
        std::rotate(ring_.begin(), ring_.begin() + length, ring_.begin() + i + 1);
        return true;
      }
    }
    return false;
  }

  const PairCosts& costs_;
  std::vector<int> ring_;
  bool by_sum_ = false;
  double worst_ = 0;
};

std::vector<int> nearest_neighbours(const PairCosts& costs, int start) {
  std::vector<int> ring{start};
  std::vector<bool> taken(at(costs.members));
  taken[at(start)] = true;
  while (static_cast<int>(ring.size()) < costs.members) {
    int nearest = -1;
    for (int next = 0; next < costs.members; ++next) {
      if (!taken[at(next)] && (nearest < 0 || costs.at(ring.back(), next) < costs.at(ring.back(), nearest)))
        nearest = next;
    }
    taken[at(nearest)] = true;
    ring.push_back(nearest);
  }
  return ring;
}

std::vector<int> in_order(int members) {
  std::vector<int> ring(at(members));
  std::iota(ring.begin(), ring.end(), 0);
  return ring;
}

}  // namespace

RingCost cost_of(const PairCosts& costs, const std::vector<int>& ring) {
  RingCost cost;
  for (size_t i = 0; i < ring.size(); ++i) {
    const double link = costs.at(ring[i], ring[(i + 1) % ring.size()]);
    cost.worst = std::max(cost.worst, link);
    cost.sum += link;
  }
  return cost;
}

std::vector<int> exact_ring(const PairCosts& costs) {
  if (costs.members <= 3) return in_order(costs.members);
  const std::vector<int> first = best_cycle(costs, [](double path, double link) { return std::max(path, link); });
  const double worst = cost_of(costs, first).worst;
  // With the worst link known, the sum over links that are no worse.
  return normal(best_cycle(costs, [worst](double path, double link) { return link > worst ? kNever : path + link; }));
}

std::vector<int> heuristic_ring(const PairCosts& costs) {
  if (costs.members <= 3) return in_order(costs.members);
  std::vector<int> best = normal(Improver(costs, in_order(costs.members)).run());
  const int starts = std::min(costs.members, kMostStarts);
  for (int i = 0; i < starts; ++i) {
    const int start = i * costs.members / starts;
    std::vector<int> ring = normal(Improver(costs, nearest_neighbours(costs, start)).run());
    if (cost_of(costs, ring) < cost_of(costs, best)) best = std::move(ring);
  }
  return best;
}

std::vector<int> best_ring(const PairCosts& costs) {
  return costs.members <= kExactRing ? exact_ring(costs) : heuristic_ring(costs);
}

}  // namespace weft
