// Which lane takes the next fragment: a pure function of how much each has to do, so that a slow rail holds up no more
// than what it has.
#pragma once

#include <cstddef>
#include <span>

namespace weft::verbs {

struct LaneLoad {
  bool usable = false;
  size_t bytes = 0;  // posted and not done
};

// A lane with less than `most` bytes, and of these the one with the least; -1: none. Of equals the first from `start`
// on.
inline int least_loaded(std::span<const LaneLoad> lanes, size_t most, size_t start = 0) {
  int best = -1;
  for (size_t i = 0; i < lanes.size(); ++i) {
    const size_t at = (start + i) % lanes.size();
    if (!lanes[at].usable || lanes[at].bytes >= most) continue;
    if (best < 0 || lanes[at].bytes < lanes[static_cast<size_t>(best)].bytes) best = static_cast<int>(at);
  }
  return best;
}

}  // namespace weft::verbs
