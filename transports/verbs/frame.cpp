#include "transports/verbs/frame.hpp"

namespace weft::verbs {

const char* fault(const Frame& frame, size_t bytes) {
  if (bytes < sizeof(Frame) || frame.magic != Frame::kMagic) return "it does not begin like one";
  if (bytes != sizeof(Frame) + frame.length) return "its length is not what it says";
  switch (frame.kind) {
    case Kind::eager:
      return frame.length > kEagerBytes || frame.length != frame.total ? "a small message is too long" : nullptr;
    case Kind::clear:
      return frame.length != sizeof(Clear) || frame.total <= kEagerBytes ? "a clear is malformed" : nullptr;
    case Kind::announce:
      return frame.length != 0 || frame.total <= kEagerBytes ? "an announce is malformed" : nullptr;
    case Kind::credit:
      return frame.length != 0 ? "it should carry nothing" : nullptr;
  }
  return "its kind is unknown";
}

}  // namespace weft::verbs
