#include "topology/hierarchy.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace weft {
namespace {

constexpr int64_t kMostPieces = int64_t{1} << 40;  // no program has as many chunks

}  // namespace

Hierarchy Hierarchy::flat(int ranks) { return create(ranks, {}); }

Hierarchy Hierarchy::create(int ranks, const std::vector<Level>& levels) {
  const auto count = static_cast<size_t>(ranks);
  Hierarchy tree;
  tree.ranks_ = ranks;
  // From the top: the groups of a level, cut at the borders of those above, numbered by their lowest ranks.
  std::vector<Built> cut;
  cut.emplace_back().name = "world";
  cut.back().group_of.assign(count, 0);
  for (auto level = levels.rbegin(); level != levels.rend(); ++level) {
    const std::vector<int>& above = cut.back().group_of;
    std::map<std::pair<int, int>, int> numbers;
    Built built;
    built.name = level->name;
    for (size_t rank = 0; rank < count; ++rank) {
      const std::pair key(above[rank], level->group_of[rank]);
      built.group_of.push_back(numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second);
    }
    if (built.group_of == above && cut.size() > 1) cut.back().name = level->name;
    if (built.group_of == above || numbers.size() == count) continue;
    cut.push_back(std::move(built));
  }
  std::reverse(cut.begin(), cut.end());

  for (size_t k = 0; k < cut.size(); ++k) {
    Built& level = cut[k];
    level.parts.resize(static_cast<size_t>(*std::max_element(level.group_of.begin(), level.group_of.end())) + 1);
    level.position.resize(count);
    std::vector<int> place;  // by part: its position, once it is known
    if (k > 0) place.assign(cut[k - 1].parts.size(), -1);
    for (size_t rank = 0; rank < count; ++rank) {
      auto& parts = level.parts[static_cast<size_t>(level.group_of[rank])];
      const int part = k == 0 ? static_cast<int>(rank) : cut[k - 1].group_of[rank];
      int position = k == 0 ? -1 : place[static_cast<size_t>(part)];
      if (position < 0) {
        position = static_cast<int>(parts.size());
        parts.push_back(part);
        if (k > 0) place[static_cast<size_t>(part)] = position;
      }
      level.position[rank] = position;
    }
    for (const auto& parts : level.parts) level.sizes.push_back(static_cast<int>(parts.size()));
    std::sort(level.sizes.begin(), level.sizes.end());
    level.sizes.erase(std::unique(level.sizes.begin(), level.sizes.end()), level.sizes.end());
    level.span = level.sizes.back();
  }
  tree.levels_ = std::move(cut);
  tree.tails_.assign(tree.levels_.size() + 1, 1);
  for (size_t k = tree.levels_.size(); k-- > 0;) {
    const int64_t above = tree.tails_[k + 1], span = tree.levels_[k].span;
    tree.tails_[k] = above > kMostPieces / span ? kMostPieces : above * span;
  }
  return tree;
}

int Hierarchy::parts(int level, int rank) const {
  const Built& built = levels_[static_cast<size_t>(level)];
  return static_cast<int>(built.parts[static_cast<size_t>(built.group_of[static_cast<size_t>(rank)])].size());
}

int Hierarchy::position(int level, int rank, int root) const {
  const Built& built = levels_[static_cast<size_t>(level)];
  const auto mine = static_cast<size_t>(rank), first = static_cast<size_t>(root);
  const int position = built.position[mine];
  if (built.group_of[mine] != built.group_of[first]) return position;
  const int size = parts(level, rank), shift = built.position[first];
  return position >= shift ? position - shift : position - shift + size;
}

int Hierarchy::part_at(int level, int group, int position, int root) const {
  const Built& built = levels_[static_cast<size_t>(level)];
  const auto& parts = built.parts[static_cast<size_t>(group)];
  if (built.group_of[static_cast<size_t>(root)] == group) position += built.position[static_cast<size_t>(root)];
  const auto index = static_cast<size_t>(position);
  return parts[index < parts.size() ? index : index - parts.size()];
}

int Hierarchy::owner(int level, int rank, int part, int64_t prefix, int root) const {
  int group = part_at(level, this->group(level, rank), part, root);
  for (int k = level - 1; k >= 0; --k) {
    const auto& built = levels_[static_cast<size_t>(k)];
    const auto size = static_cast<int64_t>(built.parts[static_cast<size_t>(group)].size());
    group = part_at(k, group, static_cast<int>(prefix % built.span % size), root);
    prefix /= built.span;
  }
  return group;  // below level 0, groups are ranks
}

int Hierarchy::at(int64_t piece, int root) const {
  int group = 0;
  for (int k = levels() - 1; k >= 0; --k) {
    const auto& built = levels_[static_cast<size_t>(k)];
    const int64_t digit = piece % built.span;
    piece /= built.span;
    if (digit >= static_cast<int64_t>(built.parts[static_cast<size_t>(group)].size())) return -1;
    group = part_at(k, group, static_cast<int>(digit), root);
  }
  return group;
}

int Hierarchy::level_between(int a, int b) const {
  int level = 0;
  while (group(level, a) != group(level, b)) ++level;
  return level;
}

}  // namespace weft
