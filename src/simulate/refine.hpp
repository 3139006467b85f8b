// The coarsest stable colouring of ranks that refines a given one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topology/hierarchy.hpp"

namespace weft::simulation {

inline uint64_t mix(uint64_t value) {  // the finaliser of splitmix64
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// Ranks with the same `initial` value begin with the same colour. They keep it where their k-th peers are of one
// colour, for each k, and where their groups, on each level below the highest, have as many ranks of each colour.
// `peers` of rank r are those from begin[r] to begin[r + 1]. Colours are numbered from 0. Where there are more than
// `most` it stops, with an empty result.
std::vector<uint32_t> refine(const Hierarchy& tree, std::span<const uint64_t> initial, std::span<const uint32_t> begin,
                             std::span<const int> peers, size_t most);

}  // namespace weft::simulation
