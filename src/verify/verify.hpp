// Proves a program right for one number of ranks, by running the plans of all ranks with symbolic contents.
#pragma once

#include <vector>

#include "program/program.hpp"
#include "status/status.hpp"

namespace weft {

struct VerifyOptions {
  // Roots to try; empty: all up to 8 ranks, else the first, the last, and some in between. One where there is no root.
  std::vector<int> roots;
  const Hierarchy* hierarchy = nullptr;  // of as many ranks; null: flat
};

// weftInvalidArgument names rank, step and chunk of what is wrong. Checked for every root, with all ranks in place and
// with none:
// - matching sends and receives stand in the same step, in the same order on both sides, with chunks of the same sizes;
// - no step reads and writes, or writes twice, the same bytes; nothing undefined is read; `in` is never written;
// - all ranks count the same steps, chunks and lanes;
// - at the end every rank has the right result: each contribution exactly once (128-bit fingerprints);
// - where several ranks hold the same reduced value, it was combined in the same way, so that the bits are the same;
// - every message is the same in both, from which it follows that every mixture of such ranks is right.
// A program that does not support the ranks or their hierarchy is fine.
Status verify(const Program& program, int ranks, const VerifyOptions& options = {});

// The same, for given plans: one for each rank.
Status verify_plans(const std::vector<std::shared_ptr<const Plan>>& plans);

}  // namespace weft
