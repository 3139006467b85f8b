#include "simulate/refine.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace weft::simulation {
namespace {

class Refinement {
 public:
  Refinement(const Hierarchy& tree, std::span<const uint64_t> initial, std::span<const uint32_t> begin,
             std::span<const int> peers);
  std::vector<uint32_t> run(size_t most);

 private:
  struct Signature {
    uint32_t colour = 0;
    uint64_t value = 0;
    uint32_t rank = 0;
    bool operator<(const Signature& other) const {
      return std::tie(colour, value, rank) < std::tie(other.colour, other.value, other.rank);
    }
  };
  size_t group(size_t level, size_t rank) const {
    return static_cast<size_t>(tree_.group(static_cast<int>(level), static_cast<int>(rank)));
  }
  uint64_t signature(size_t rank) const;
  void split(std::span<const Signature> same_colour);
  void recolour();
  void touch(size_t rank) {
    if (!std::exchange(dirty_[rank], 1)) list_.push_back(static_cast<uint32_t>(rank));
  }

  const Hierarchy& tree_;
  std::span<const uint32_t> begin_;
  std::span<const int> peers_;
  std::vector<uint32_t> colour_, size_;
  std::vector<std::vector<uint64_t>> sums_;                  // by level and group: of what its ranks' colours mix to
  std::vector<std::vector<std::vector<uint32_t>>> members_;  // by level and group
  std::vector<char> dirty_;
  std::vector<uint32_t> list_;                          // those dirty
  std::vector<std::pair<uint32_t, uint32_t>> changes_;  // rank, its next colour
};

Refinement::Refinement(const Hierarchy& tree, std::span<const uint64_t> initial, std::span<const uint32_t> begin,
                       std::span<const int> peers)
    : tree_(tree), begin_(begin), peers_(peers), colour_(initial.size()), dirty_(initial.size()) {
  std::unordered_map<uint64_t, uint32_t> numbers;
  for (size_t rank = 0; rank < initial.size(); ++rank) {
    colour_[rank] = numbers.try_emplace(initial[rank], static_cast<uint32_t>(numbers.size())).first->second;
    if (colour_[rank] == size_.size()) size_.push_back(0);
    ++size_[colour_[rank]];
    touch(rank);
  }
  for (size_t level = 0; level + 1 < static_cast<size_t>(tree.levels()); ++level) {
    const auto groups = static_cast<size_t>(tree.groups(static_cast<int>(level)));
    sums_.emplace_back(groups);
    members_.emplace_back(groups);
    for (size_t rank = 0; rank < initial.size(); ++rank) {
      sums_[level][group(level, rank)] += mix(colour_[rank]);
      members_[level][group(level, rank)].push_back(static_cast<uint32_t>(rank));
    }
  }
}

uint64_t Refinement::signature(size_t rank) const {
  uint64_t value = 0;
  for (uint32_t i = begin_[rank]; i < begin_[rank + 1]; ++i)
    value = mix(value ^ colour_[static_cast<size_t>(peers_[i])]);
  for (size_t level = 0; level < sums_.size(); ++level) value = mix(value ^ sums_[level][group(level, rank)]);
  return value;
}

// Of one colour, those with a neighbour of a new colour: what they see now is not what the others of their colour see,
// who keep it. Where there are no others the largest part does, since each change makes work.
void Refinement::split(std::span<const Signature> same) {
  const uint32_t colour = same.front().colour;
  std::vector<size_t> starts;
  for (size_t i = 0; i < same.size(); ++i) {
    if (i == 0 || same[i].value != same[i - 1].value) starts.push_back(i);
  }
  starts.push_back(same.size());
  size_t keeps = same.size(), largest = 0;
  for (size_t i = 0; i + 1 < starts.size() && size_[colour] == same.size(); ++i) {
    if (starts[i + 1] - starts[i] <= largest) continue;
    largest = starts[i + 1] - starts[i];
    keeps = starts[i];
  }
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    if (starts[i] == keeps) continue;
    const auto part = static_cast<uint32_t>(starts[i + 1] - starts[i]);
    for (size_t k = starts[i]; k < starts[i + 1]; ++k)
      changes_.emplace_back(same[k].rank, static_cast<uint32_t>(size_.size()));
    size_.push_back(part);
    size_[colour] -= part;
  }
}

void Refinement::recolour() {
  for (const auto& [rank, next] : changes_) {
    for (size_t level = 0; level < sums_.size(); ++level)
      sums_[level][group(level, rank)] += mix(next) - mix(colour_[rank]);
    colour_[rank] = next;
  }
  for (const auto& [rank, next] : changes_) {
    for (uint32_t i = begin_[rank]; i < begin_[rank + 1]; ++i) touch(static_cast<size_t>(peers_[i]));
  }
  for (size_t level = 0; level < sums_.size(); ++level) {
    std::vector<size_t> groups;
    for (const auto& [rank, next] : changes_) groups.push_back(group(level, rank));
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    for (const size_t changed : groups) {
      for (const uint32_t other : members_[level][changed]) touch(other);
    }
  }
  changes_.clear();
}

std::vector<uint32_t> Refinement::run(size_t most) {
  std::vector<Signature> signatures;
  while (!list_.empty()) {
    if (size_.size() > most) return {};
    signatures.clear();
    for (const uint32_t rank : list_) {
      signatures.push_back({colour_[rank], signature(rank), rank});
      dirty_[rank] = 0;
    }
    list_.clear();
    std::sort(signatures.begin(), signatures.end());
    for (size_t first = 0; first < signatures.size();) {
      size_t end = first;
      while (end < signatures.size() && signatures[end].colour == signatures[first].colour) ++end;
      split(std::span(signatures).subspan(first, end - first));
      first = end;
    }
    recolour();
  }
  return std::move(colour_);
}

}  // namespace

std::vector<uint32_t> refine(const Hierarchy& tree, std::span<const uint64_t> initial, std::span<const uint32_t> begin,
                             std::span<const int> peers, size_t most) {
  return Refinement(tree, initial, begin, peers).run(most);
}

}  // namespace weft::simulation
