#include "topology/hierarchy.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace weft {
namespace {

constexpr int64_t kMostPieces = int64_t{1} << 40;  // no program has as many chunks

}  // namespace

Hierarchy Hierarchy::flat(int ranks) { return create(ranks, {}); }

Hierarchy Hierarchy::create(int ranks, const std::vector<Level>& levels, const std::vector<int>& order) {
  Hierarchy tree;
  tree.ranks_ = ranks;
  tree.ordered_ = !order.empty();
  std::vector<int> met = order;
  if (order.empty()) {
    met.resize(static_cast<size_t>(ranks));
    std::iota(met.begin(), met.end(), 0);
  }
  tree.levels_ = cut_groups(static_cast<size_t>(ranks), levels);
  for (size_t k = 0; k < tree.levels_.size(); ++k) {
    number_parts(tree.levels_[k], k > 0 ? &tree.levels_[k - 1] : nullptr, met);
  }
  tree.tails_.assign(tree.levels_.size() + 1, 1);
  for (size_t k = tree.levels_.size(); k-- > 0;) {
    const int64_t above = tree.tails_[k + 1], span = tree.levels_[k].span;
    tree.tails_[k] = above > kMostPieces / span ? kMostPieces : above * span;
  }
  tree.place_.resize(static_cast<size_t>(ranks));
  tree.go_around(tree.levels() - 1, 0);
  return tree;
}

void Hierarchy::go_around(int level, int group) {
  for (const int part : levels_[static_cast<size_t>(level)].parts[static_cast<size_t>(group)]) {
    if (level > 0) {
      go_around(level - 1, part);
      continue;
    }
    place_[static_cast<size_t>(part)] = static_cast<int>(ring_.size());
    ring_.push_back(part);
  }
}

std::vector<Hierarchy::Built> Hierarchy::cut_groups(size_t count, const std::vector<Level>& levels) {
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
  return cut;
}

// Parts in the order in which ranks are met.
void Hierarchy::number_parts(Built& level, const Built* below, const std::vector<int>& met) {
  level.parts.resize(static_cast<size_t>(*std::max_element(level.group_of.begin(), level.group_of.end())) + 1);
  level.position.resize(met.size());
  std::vector<int> place;  // by part: its position, once it is known
  if (below != nullptr) place.assign(below->parts.size(), -1);
  for (const int rank : met) {
    const auto mine = static_cast<size_t>(rank);
    auto& parts = level.parts[static_cast<size_t>(level.group_of[mine])];
    const int part = below == nullptr ? rank : below->group_of[mine];
    int position = below == nullptr ? -1 : place[static_cast<size_t>(part)];
    if (position < 0) {
      position = static_cast<int>(parts.size());
      parts.push_back(part);
      if (below != nullptr) place[static_cast<size_t>(part)] = position;
    }
    level.position[mine] = position;
  }
  for (const auto& parts : level.parts) level.sizes.push_back(static_cast<int>(parts.size()));
  std::sort(level.sizes.begin(), level.sizes.end());
  level.sizes.erase(std::unique(level.sizes.begin(), level.sizes.end()), level.sizes.end());
  level.span = level.sizes.back();
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
