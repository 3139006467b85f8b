// dst = from[0] op from[1] op ..., in that order.
#pragma once

#include <algorithm>
#include <span>

#include "transports/transport.hpp"

namespace weft {

// Block by block through a small buffer: dst may be any one of the sources, so a block of it is written only after that
// block of every source was read.
inline void combine(ReduceFn reduce, size_t element, const Piece& dst, std::span<const std::byte* const> from) {
  if (from.size() == 2) {
    reduce(dst.data, from[0], from[1], dst.bytes / element);
    return;
  }
  alignas(64) std::byte partial[8192];
  for (size_t at = 0; at < dst.bytes; at += sizeof partial) {
    const size_t count = std::min(sizeof partial, dst.bytes - at) / element;
    reduce(partial, from[0] + at, from[1] + at, count);
    for (size_t i = 2; i + 1 < from.size(); ++i) reduce(partial, partial, from[i] + at, count);
    reduce(dst.data + at, partial, from.back() + at, count);
  }
}

}  // namespace weft
