// What two ranks say to each other over queue pairs: frames, each one send, received into a buffer of the shared
// receive queue. The bytes of large messages do not travel in frames: they are written where a clear says.
//
//   eager     a whole small message
//   clear     receiver -> sender: the receive for a large message is posted; write it to `Clear::address`
//   announce  sender -> receiver: a large message has long waited for its clear. Finds out the peer that expects a
//   small
//             one under the same id
//   credit    nothing but its `taken`
//
// Frames are numbered on each wire and in each direction. `taken` says up to which number the frames of the other
// direction have come; until then their sender keeps them, and at most kCredits of them. So a rail that dies loses none
// of them, and what is sent again over another one is taken once.
//
// A fragment of a large message is an RDMA write with immediate data: the clear's slot and the number of the fragment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transports/tables.hpp"

namespace weft::verbs {

inline constexpr int kMostRails = 8;
// Messages up to this size go as one frame. Both ends must agree on it, as on kCredits.
inline constexpr size_t kEagerBytes = 8 << 10;
inline constexpr uint32_t kCredits = 32;

enum class Kind : uint8_t { eager = 1, clear, announce, credit };

struct Frame {
  static constexpr uint32_t kMagic = 0x31564657;  // "WFV1"

  uint32_t magic = kMagic;
  uint32_t number = 0;  // 0: a credit, which is not counted
  uint32_t taken = 0;
  Kind kind = Kind::credit;
  uint8_t zero[3] = {};
  uint32_t sequence = 0, index = 0, signature = 0;
  uint32_t length = 0;  // of the payload
  uint64_t total = 0;   // of the message

  uint64_t key() const { return uint64_t{sequence} << 32 | index; }
  MessageId id() const { return {sequence, index, signature}; }
};
static_assert(sizeof(Frame) == 40, "the header has no padding");
inline constexpr size_t kFrameBytes = sizeof(Frame) + kEagerBytes;

inline Frame frame_of(Kind kind, const MessageId& id, uint64_t total) {
  return {.kind = kind, .sequence = id.sequence, .index = id.index, .signature = id.signature, .total = total};
}

// The payload of a clear. Only pairs of rails whose epoch is the one named may be used: what came up later has other
// keys, and is told in another clear of the same slot.
struct Clear {
  uint64_t address = 0;
  uint32_t slot = 0;
  uint32_t generation = 0;  // of the slot
  uint32_t unit = 0;        // bytes of a fragment
  uint32_t reserved = 0;
  struct {
    uint32_t rkey = 0;
    uint32_t epoch = 0;  // 0: not to be used
  } pair[kMostRails];
};

// Slot and fragment in 32 bits.
inline constexpr uint32_t kSlots = 1 << 12;
inline constexpr uint32_t kMostFragments = 1 << 20;
constexpr uint32_t immediate(uint32_t slot, uint32_t fragment) { return slot << 20 | fragment; }

// What is wrong with a frame of `bytes` by itself; nullptr when nothing is.
const char* fault(const Frame& frame, size_t bytes);

// Which frames of a direction have come: all up to `upto`, and of the next 32 those whose bits are set.
struct Taken {
  uint32_t upto = 0;
  uint32_t beyond = 0;

  bool has(uint32_t number) const {
    const uint32_t ahead = number - upto;  // numbers wrap
    return ahead == 0 || ahead > kCredits || (beyond >> (ahead - 1) & 1) != 0;
  }
  void add(uint32_t number) {
    beyond |= 1u << (number - upto - 1);
    while (beyond & 1) {
      beyond >>= 1;
      ++upto;
    }
  }
};

using Early = ::weft::Early<Frame>;
using EarlyStore = ::weft::EarlyStore<Frame, kEagerBytes>;

}  // namespace weft::verbs
