// What a ucx wire sends: messages, as UCX's active messages with a header each, and notes, over a connection of the
// wire's own.
//
//   hello    the first note of either end. `value` is a random token; messages to that end carry it, and UCX's
//            connections, which prove nothing, are believed no other message
//   refuse   a message of the peer does not match ours: `signature` and `value` (length) are ours, `theirs` its
//            signature
//   credit   so much of what came eagerly, since the beginning, is no longer kept here
//   bye      the peer leaves in order, after having sent `value` messages
//   farewell to one who has said bye: all of it has come
//
// All integers are in the byte order of the host; the magic refuses a host of another order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace weft::ucx {

struct Header {
  uint64_t token = 0;
  int32_t from = -1;
  uint32_t sequence = 0, index = 0, signature = 0;

  uint64_t key() const { return uint64_t{sequence} << 32 | index; }
};
static_assert(sizeof(Header) == 24, "the header has no padding");

struct Note {
  static constexpr uint32_t kMagic = 0x31554657;  // "WFU1"
  enum class Kind : uint8_t { hello = 1, refuse, credit, bye, farewell };

  uint32_t magic = kMagic;
  Kind kind = Kind::bye;
  uint8_t zero[3] = {};
  uint32_t sequence = 0, index = 0, signature = 0, theirs = 0;
  uint64_t value = 0;
};
static_assert(sizeof(Note) == 32, "a note has no padding");

inline std::string_view pack(const Note& note) { return {reinterpret_cast<const char*>(&note), sizeof note}; }
// False: it is none.
inline bool unpack(std::string_view bytes, Note* note) {
  if (bytes.size() != sizeof *note) return false;
  std::memcpy(note, bytes.data(), sizeof *note);
  return note->magic == Note::kMagic;
}

// What an eager message costs its receiver beyond its bytes, for the credits.
inline constexpr size_t kMessageCost = 128;
// Bytes that may be kept at a receiver that has not asked for them; beyond that messages go by rendezvous, of which
// only a descriptor waits there.
inline constexpr uint64_t kWindow = 4 << 20;

}  // namespace weft::ucx
