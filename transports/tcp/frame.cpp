#include "transports/tcp/frame.hpp"

namespace weft::tcp {

const char* fault(const Frame& frame) {
  if (frame.magic != Frame::kMagic) return "no frame begins there (wrong magic)";
  if (frame.zero[0] != 0 || frame.zero[1] != 0 || frame.zero[2] != 0) return "reserved bytes are set";
  switch (frame.kind) {
    case Kind::eager:
      if (frame.total > kEagerBytes) return "a small message is too long";
      if (frame.offset != 0 || frame.length != frame.total) return "a small message is not whole";
      return nullptr;
    case Kind::data:
      if (frame.total <= kEagerBytes) return "a fragment of a small message";
      if (frame.length == 0 || frame.offset > frame.total || frame.length > frame.total - frame.offset) {
        return "a fragment lies outside its message";
      }
      return nullptr;
    case Kind::clear:
      if (frame.length != 0) return "payload where none belongs";
      if (frame.offset == 0 || frame.offset > kFragmentBytes) return "an impossible unit of fragments";
      return nullptr;
    case Kind::announce:
    case Kind::refuse:
    case Kind::bye:
      return frame.length == 0 ? nullptr : "payload where none belongs";
  }
  return "an unknown kind of frame";
}

}  // namespace weft::tcp
