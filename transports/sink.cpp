#include <algorithm>

#include "kernels/reduce.hpp"
#include "transports/transport.hpp"

namespace weft {

namespace {

// to = also = acc op data, block by block, so that what is used twice is still in the caches. to may be acc, and also
// may be data.
void reduce_twice(const Sink& sink, std::byte* to, std::byte* also, const std::byte* acc, const std::byte* data,
                  size_t bytes) {
  constexpr size_t kBlock = 64 << 10;
  for (size_t at = 0; at < bytes; at += kBlock) {
    const size_t part = std::min(kBlock, bytes - at), count = part / sink.element;
    if (sink.streaming != nullptr && to != acc) {
      sink.streaming(to + at, acc + at, data + at, count);
      sink.streaming(also + at, acc + at, data + at, count);
    } else {
      sink.reduce(to + at, acc + at, data + at, count);
      copy(also + at, to + at, part, sink.streaming != nullptr);
    }
  }
}

}  // namespace

void Sink::consume(size_t offset, const std::byte* data, size_t size) const {
  // Walks the pieces that [offset, offset + size) touches; `at` is where the current piece begins in the message.
  size_t at = 0;
  for (uint32_t i = 0; i < count && size > 0; ++i) {
    const size_t end = at + dst[i].bytes;
    if (offset < end) {
      const size_t inside = offset - at;
      const size_t take = std::min(size, end - offset);
      std::byte* to = dst[i].data + inside;
      if (also != nullptr) {
        reduce_twice(*this, to, also + offset, acc[i].data + inside, data, take);
      } else if (reduce != nullptr) {
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
