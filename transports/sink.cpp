#include <algorithm>

#include "kernels/reduce.hpp"
#include "transports/transport.hpp"

namespace weft {

void Sink::consume(size_t offset, const std::byte* data, size_t size) const {
  // Walks the pieces that [offset, offset + size) touches; `at` is where the current piece begins in the message.
  size_t at = 0;
  for (uint32_t i = 0; i < count && size > 0; ++i) {
    const size_t end = at + dst[i].bytes;
    if (offset < end) {
      const size_t inside = offset - at;
      const size_t take = std::min(size, end - offset);
      std::byte* to = dst[i].data + inside;
      if (reduce != nullptr) {
        reduce(to, acc[i].data + inside, data, take / element);
      } else {
        copy(to, data, take, stream);
      }
      offset += take;
      data += take;
      size -= take;
    }
    at = end;
  }
}

}  // namespace weft
