// Small calls are compiled: a plan whose every message is one eager piece becomes a straight-line record, kept under
// (collective, count, type, op, root), and a repeated call is one look-up and a walk over it in key order: what was
// checked when the record was made need not be checked again.
// Its sends are done when they are issued, so nothing but the order of the record needs to be kept. Where nothing after
// a send writes to its source, the peer may also read that in place: then the record is over when all have been read.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bind/call.hpp"
#include "bind/geometry.hpp"
#include "trace/recorder.hpp"
#include "transports/ring_wire.hpp"

namespace weft {

struct SmallPlace {
  uint32_t buffer = 0;  // 0 in, 1 out, 2 scratch
  uint32_t offset = 0;  // bytes
};

struct SmallOp {
  enum class Kind : uint8_t { send, recv, recv_reduce, copy, combine };
  Kind kind = Kind::copy;
  uint16_t sources = 1;
  uint32_t index = 0;  // of the message
  uint32_t bytes = 0;
  SmallPlace dst, src;        // src: of send and copy; recv_reduce's accumulator
  bool viewed = false;        // a send: the peer reads it where it lies
  uint32_t first_source = 0;  // of combine, in SmallRecord::sources
  Wire* wire = nullptr;
  RingWire* ring = nullptr;
};

struct SmallRecord {
  static constexpr size_t kMostViewed = 8;
  uint32_t signature = 0;
  uint32_t element = 1;
  ReduceFn reduce = nullptr;
  std::vector<SmallOp> ops;
  std::vector<SmallPlace> sources;
  size_t scratch_bytes = 0;
  OpShape shape;
};

// A send that the peer reads in place, under way.
struct SmallView {
  const SmallOp* op = nullptr;
  Piece piece;
  SendRequest request;
};

// Compiles; null when the plan with this geometry has anything that is not small. The geometry's buffers are replaced.
// distance: in place, of the output from the input, in bytes. wire_to: as in Flow.
std::unique_ptr<SmallRecord> compile_small(const Plan& plan, Geometry& geometry, std::optional<ptrdiff_t> distance,
                                           Wire* (*wire_to)(void*, int), void* owner);

class SmallCache {
 public:
  struct Key {
    uint64_t count = 0;
    uint32_t shape = 0;  // collective, type, op
    int32_t root = 0;
    bool operator==(const Key&) const = default;
  };
  static Key key_of(const CallHead& call) {
    return {call.count,
            static_cast<uint32_t>(call.collective) | static_cast<uint32_t>(call.type) << 8 |
                static_cast<uint32_t>(call.op) << 16,
            call.root};
  }

  struct Entry {
    // In place out stands so many bytes behind in.
    bool can_be_in_place = false;
    ptrdiff_t distance = 0;
    size_t in_bytes = 0, out_bytes = 0;  // of this rank's buffers
    // By in place; null where that is not known to be small.
    std::unique_ptr<SmallRecord> record[2];
    bool known[2] = {};

    // The record for these buffers; null where they are not legal, or are not known to be small.
    const SmallRecord* quick(const CallHead& call) const {
      const auto in = reinterpret_cast<uintptr_t>(call.in), out = reinterpret_cast<uintptr_t>(call.out);
      const bool on_spot = can_be_in_place && out - in == static_cast<uintptr_t>(distance);
      const bool apart = in_bytes == 0 || out_bytes == 0 || in + in_bytes <= out || out + out_bytes <= in;
      const bool there = (in != 0 || in_bytes == 0) && (out != 0 || out_bytes == 0);
      return there && (apart || on_spot) ? record[on_spot].get() : nullptr;
    }
  };

  Entry* find(const Key& key) { return key == last_key_ && last_ != nullptr ? last_ : find_slow(key); }
  Entry* put(const Key& key, Entry entry);

 private:
  static constexpr size_t kMost = 1024;
  struct Hash {
    size_t operator()(const Key& key) const {
      return (key.count * 0x9e3779b97f4a7c15u) ^ (uint64_t{key.shape} << 32 | static_cast<uint32_t>(key.root));
    }
  };
  Entry* find_slow(const Key& key);

  Key last_key_;
  Entry* last_ = nullptr;
  std::unordered_map<Key, Entry, Hash> entries_;
};

}  // namespace weft
