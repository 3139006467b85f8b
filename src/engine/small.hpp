// Small calls are compiled: a plan whose every message is one eager piece becomes a straight-line record, kept under
// (collective, count, type, op, root, in place), and a repeated call is one look-up and a walk over it in key order.
// Its sends are done when they are issued, so nothing but the order of the record needs to be kept.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

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
  uint32_t first_source = 0;  // of combine, in SmallRecord::sources
  Wire* wire = nullptr;
  RingWire* ring = nullptr;
};

struct SmallRecord {
  uint32_t signature = 0;
  uint32_t element = 1;
  ReduceFn reduce = nullptr;
  std::vector<SmallOp> ops;
  std::vector<SmallPlace> sources;
  size_t scratch_bytes = 0;
  OpShape shape;
};

// Compiles; null when the plan with this geometry has anything that is not small. The geometry's buffers are replaced.
// wire_to: as in Flow.
std::unique_ptr<SmallRecord> compile_small(const Plan& plan, Geometry& geometry, Wire* (*wire_to)(void*, int),
                                           void* owner);

class SmallCache {
 public:
  struct Key {
    uint64_t count = 0;
    uint32_t shape = 0;  // collective, type, op, in place
    int32_t root = 0;
    bool operator==(const Key&) const = default;
  };
  // The record, nullptr for "known not to be small"; found tells whether the key is known.
  SmallRecord* find(const Key& key, bool* found) {
    if (key == last_key_ && last_ != nullptr) {
      *found = true;
      return last_;
    }
    return find_slow(key, found);
  }
  SmallRecord* put(const Key& key, std::unique_ptr<SmallRecord> record);

 private:
  static constexpr size_t kMost = 1024;
  struct Hash {
    size_t operator()(const Key& key) const {
      return (key.count * 0x9e3779b97f4a7c15u) ^ (uint64_t{key.shape} << 32 | static_cast<uint32_t>(key.root));
    }
  };
  SmallRecord* find_slow(const Key& key, bool* found);

  Key last_key_;
  SmallRecord* last_ = nullptr;
  std::unordered_map<Key, std::unique_ptr<SmallRecord>, Hash> records_;
};

}  // namespace weft
