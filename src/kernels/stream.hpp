// From which sizes on a kernel stores past the caches.
#pragma once

#include <cstddef>

namespace weft {

// Bytes of one call's output.
inline constexpr size_t kStreamReduceBytes = size_t{8} << 20;
inline constexpr size_t kStreamCopyBytes = size_t{8} << 20;

}  // namespace weft
