// What travels on a tcp stream: frames, each a fixed header and `length` bytes of payload.
//
//   eager     a whole small message
//   clear     receiver -> sender: the receive for a large message is posted, send it. `total` is the length that the
//             receive has and `signature` its call's; `offset` is the unit that fragments are cut at
//   data      a fragment of a large message, [offset, offset + length) of `total`
//   announce  sender -> receiver: a large message has long waited for its clear. Finds out the peer that expects a
//   small
//             one under the same id
//   refuse    a message of the peer does not match ours: `signature` and `total` are ours, `offset` its signature
//   bye       the last frame of a stream whose owner leaves in order
//
// All integers are in the byte order of the host; the magic refuses a host of another order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::tcp {

// Messages up to this size go without a clear. Both ends must agree on it.
inline constexpr size_t kEagerBytes = 32 << 10;
// Fragments are about this long: long enough for few system calls, short enough for nothing to wait long behind one.
inline constexpr size_t kFragmentBytes = 256 << 10;

enum class Kind : uint8_t { eager = 1, clear, data, announce, refuse, bye };

struct Frame {
  static constexpr uint32_t kMagic = 0x31544657;  // "WFT1"

  uint32_t magic = kMagic;
  Kind kind = Kind::bye;
  uint8_t zero[3] = {};
  uint32_t sequence = 0, index = 0, signature = 0;
  uint32_t length = 0;
  uint64_t offset = 0;
  uint64_t total = 0;

  uint64_t key() const { return uint64_t{sequence} << 32 | index; }
};
static_assert(sizeof(Frame) == 40, "the header has no padding");
inline constexpr size_t kHeaderBytes = sizeof(Frame);

// What is wrong with a header by itself, before it is compared with any request; nullptr when nothing is.
const char* fault(const Frame& frame);

}  // namespace weft::tcp
