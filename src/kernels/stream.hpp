// From which sizes on a kernel stores past the caches. A non-temporal store spares reading the line that is about to be
// overwritten: of two reads and one write in memory a quarter of the traffic. It costs when the line would have stayed
// in the cache for its next reader. Measured on a Xeon with 2 MiB of L2 per core: while the three buffers fit into L2 a
// plain store is twice as fast, from 1 MiB per buffer on the non-temporal one is 1.4 to 1.6 times as fast, and is no
// slower even if the same core reads the result next.
#pragma once

#include <cstddef>

namespace weft {

// Bytes of one call's output.
inline constexpr size_t kStreamReduceBytes = size_t{1} << 20;
// The same for a caller who says that the calls are tiles of something large: below this the fence costs too much.
inline constexpr size_t kStreamTileBytes = size_t{4} << 10;
inline constexpr size_t kStreamCopyBytes = size_t{8} << 20;

}  // namespace weft
