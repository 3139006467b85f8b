// Hierarchies to test with: even, uneven, interleaved, deep.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "topology/hierarchy.hpp"

namespace weft {

// By what each rank's node (and rack, and site) is.
inline Hierarchy hierarchy_of(std::vector<std::vector<int>> groups) {
  const std::vector<std::string> names = {"node", "rack", "site", "region"};
  std::vector<Hierarchy::Level> levels;
  for (size_t i = 0; i < groups.size(); ++i) levels.push_back({names[i], std::move(groups[i])});
  const int ranks = static_cast<int>(levels.front().group_of.size());
  return Hierarchy::create(ranks, levels);
}

inline std::vector<std::pair<std::string, Hierarchy>> some_hierarchies() {
  std::vector<std::pair<std::string, Hierarchy>> all = {
      {"2 nodes of 2", hierarchy_of({{0, 0, 1, 1}})},
      {"2 nodes of 2, interleaved", hierarchy_of({{0, 1, 0, 1}})},
      {"3+1", hierarchy_of({{0, 0, 0, 1}})},
      {"1+3", hierarchy_of({{0, 1, 1, 1}})},
      {"1+1+2", hierarchy_of({{0, 1, 2, 2}})},
      {"1+1+2, interleaved", hierarchy_of({{0, 1, 0, 2}})},
      {"3 nodes of 3, interleaved", hierarchy_of({{0, 1, 2, 0, 1, 2, 0, 1, 2}})},
      {"4+3+1+2", hierarchy_of({{0, 0, 0, 0, 1, 1, 1, 2, 3, 3}})},
      {"5 nodes of 2", hierarchy_of({{0, 0, 1, 1, 2, 2, 3, 3, 4, 4}})},
      {"2 sites of 2 nodes of 2", hierarchy_of({{0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}})},
      {"sites of 3 and 1 nodes", hierarchy_of({{0, 0, 1, 2, 2, 2, 3}, {0, 0, 0, 0, 0, 0, 1}})},
      {"three levels, interleaved", hierarchy_of({{0, 1, 2, 3, 0, 1, 2, 3, 4}, {0, 1, 0, 1, 0, 1, 0, 1, 1}})},
      {"four levels", hierarchy_of({{0, 0, 1, 1, 2, 2, 3, 4, 5, 5, 5, 6},
                                    {0, 0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 3},
                                    {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1}})},
  };
  // Ranks anywhere.
  std::mt19937 random(7);
  for (int i = 0; i < 24; ++i) {
    const auto ranks = 3 + random() % 14;
    std::vector<std::vector<int>> groups(1 + random() % 3);
    for (size_t k = 0; k < groups.size(); ++k) {
      for (size_t rank = 0; rank < ranks; ++rank) {
        groups[k].push_back(static_cast<int>(random() % std::max<size_t>(2, (ranks / 2) >> k)));
      }
    }
    all.emplace_back("random " + std::to_string(i), hierarchy_of(groups));
  }
  std::erase_if(all, [](const auto& named) { return named.second.levels() < 2; });
  return all;
}

}  // namespace weft
