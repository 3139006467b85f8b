// What a collective's buffers look like at one rank: how many blocks they have, which rank has which buffer, and which
// blocks of `out` begin as blocks of `in`. The expander, the verifier and the binding read it from here.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "plan/plan.hpp"

namespace weft {

std::optional<Collective> collective_of(std::string_view name);

struct Shape {
  // Of the collective, also where this rank has no such buffer.
  uint32_t in_blocks = 1, out_blocks = 1;
  bool has_in = true, has_out = true;

  // Out blocks [out_first, out_first + shared) are the same bytes as in blocks [in_first, ...) when in place.
  uint32_t out_first = 0, in_first = 0, shared = 0;
  // Those blocks of `out` also have the value of their `in` blocks before anything is written (not so in an
  // all-to-all, whose two buffers share bytes but no value).
  bool aliases = true;

  bool reduces = false;          // results combine contributions of several ranks
  bool per_block_sizes = false;  // a v-variant: every block has a size of its own

  uint32_t blocks() const { return in_blocks > out_blocks ? in_blocks : out_blocks; }
  bool can_be_in_place() const { return has_in && has_out && shared > 0; }
};
Shape shape_of(Collective collective, int ranks, int rank, int root);

// Whether the collective has a root.
bool is_rooted(Collective collective);

}  // namespace weft
