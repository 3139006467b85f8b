// Second half of expansion: from the program's names to memory.
#pragma once

#include <vector>

#include "expand/walk.hpp"

namespace weft {

// Where a chunk of the program's naming is at last.
struct Place {
  Buffer buffer = Buffer::in;
  uint32_t index = 0;
};
struct Resolved {
  RawOps raw;
  std::vector<Place> places;  // by ChunkId
  uint32_t scratch = 0;       // chunks, those lent included
  // Chunks that are the same bytes have the same number below `storages`.
  std::vector<uint32_t> storage;  // by ChunkId
  uint32_t storages = 0;
};

// Four things happen here:
// - A read of a chunk of `out` (or `work`) that nothing has written yet becomes a read of the chunk of `in` that it
//   aliases.
// - Chunks of `work`, and of a buffer that the collective does not give this rank, are lent scratch, for as long as
// they
//   live.
// - In an in-place all-to-all, what arrives before the block under it has left is kept in scratch, and copied when it
// has.
// - Chunks of `out` that were never written and alias `in` get a copy at the end, unless they are the same bytes.
// Fails through the evaluator, with the place in the program.
Resolved resolve(RawOps raw, Collective collective, const Shape& shape, bool in_place, Evaluator& evaluator);

}  // namespace weft
