// The flight recorder: the last operations of a communicator, kept at a cost of some ten nanoseconds each and always
// on. One thread writes at a time; any other thread, or another process that maps the memory, reads at any time.
//
// Each slot is one cache line of atomic words. A writer makes the slot's version odd, stores the words with release
// (plain moves on x86) and makes the version even; a reader that saw the same even version before and after has a
// consistent slot. Names are numbers into a small table next to the slots, interned once per call shape, so that a
// reader needs no other knowledge.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trace/ticks.hpp"

namespace weft {

enum class OpState : uint8_t { none, enqueued, running, done, failed };
const char* name_of(OpState state);

// The shape of a call: made once, when the call is bound. Names come from FlightRecorder::name().
struct OpShape {
  uint8_t collective = 0, type = 0, op = 0, algorithm = 0, transport = 0;
  int32_t root = -1;  // or the peer of a point-to-point call; -1: none
  uint64_t count = 0;
  uint64_t bytes = 0;
};

// Plain memory, all zero at first; may lie in a file that other processes map.
struct RecorderMemory {
  static constexpr uint32_t kSlots = 64;
  static constexpr uint32_t kNames = 256;  // number 0 is ""
  static constexpr uint32_t kNameBytes = 24;

  struct alignas(64) Slot {
    std::atomic<uint64_t> version;  // 2 * (ticket + 1), or one more while it is written
    std::atomic<uint64_t> count, bytes, start, end;
    std::atomic<uint64_t> sequence_root;  // sequence << 32 | root
    std::atomic<uint64_t> names;          // collective, type, op, algorithm, transport from the low byte up
    std::atomic<uint64_t> progress;       // state << 32 | peer waited for
  };
  struct Name {
    std::array<std::atomic<char>, kNameBytes> text;
  };

  std::atomic<uint64_t> begun;  // operations begun since the start
  std::atomic<uint64_t> first_ticks, first_ns;
  std::atomic<uint32_t> name_count;
  std::array<Slot, kSlots> slots;
  std::array<Name, kNames> names;
};
static_assert(sizeof(RecorderMemory::Slot) == 64);

// One operation as a reader sees it.
struct OpSnapshot {
  uint64_t ticket = 0;    // counts the communicator's operations from 0
  uint32_t sequence = 0;  // as in MessageId: the top bit marks point-to-point calls
  OpState state = OpState::none;
  std::string collective, type, op, algorithm, transport;
  int32_t root = -1;
  int32_t waiting_for = -1;  // the peer that a running operation waits for, where that is known
  uint64_t count = 0, bytes = 0;
  // CLOCK_MONOTONIC; start is 0 where begin() was given none, end while it runs, and after done()
  uint64_t start_ns = 0, end_ns = 0;
};

class FlightRecorder {
 public:
  static constexpr uint32_t kPointToPoint = 1u << 31;

  FlightRecorder();                                 // with memory of its own
  explicit FlightRecorder(RecorderMemory* memory);  // zeroed memory of the caller's, which outlives it

  // The number of a name, made when it is new. Not for the data path. Cut to 23 characters; the table full: 0.
  uint8_t name(std::string_view text);

  // Starts an operation; the ticket names it in the calls below, all of which ignore one that has left the ring.
  // start: ticks_now(), or 0 where reading the clock would cost too much, and the first waiting() tells about when.
  uint64_t begin(const OpShape& shape, uint32_t sequence, OpState state = OpState::running,
                 uint64_t start = ticks_now()) {
    const uint64_t ticket = begun_++;
    RecorderMemory::Slot& slot = memory_->slots[ticket % RecorderMemory::kSlots];
    const uint64_t version = 2 * (ticket + 1);
    constexpr auto release = std::memory_order_release;
    slot.version.store(version - 1, std::memory_order_relaxed);
    slot.count.store(shape.count, release);
    slot.bytes.store(shape.bytes, release);
    slot.start.store(start, release);
    slot.end.store(0, release);
    slot.sequence_root.store(uint64_t{sequence} << 32 | uint32_t(shape.root), release);
    slot.names.store(uint64_t{shape.collective} | uint64_t{shape.type} << 8 | uint64_t{shape.op} << 16 |
                         uint64_t{shape.algorithm} << 24 | uint64_t{shape.transport} << 32,
                     release);
    slot.progress.store(progress(state, -1), release);
    slot.version.store(version, release);
    memory_->begun.store(begun_, std::memory_order_relaxed);
    return ticket;
  }
  void run(uint64_t ticket) { set_progress(ticket, OpState::running, -1); }
  // The peer that the operation waits for now; -1: for none in particular. For the slow path, before a sleep.
  void waiting(uint64_t ticket, int peer) {
    RecorderMemory::Slot* slot = find(ticket);
    if (slot == nullptr) return;
    if (slot->start.load(std::memory_order_relaxed) == 0) slot->start.store(ticks_now(), std::memory_order_release);
    slot->progress.store(progress(OpState::running, peer), std::memory_order_release);
  }
  void end(uint64_t ticket, bool ok = true) {
    RecorderMemory::Slot* slot = find(ticket);
    if (slot == nullptr) return;
    slot->end.store(ticks_now(), std::memory_order_release);
    const auto peer = ok ? -1 : int32_t(uint32_t(slot->progress.load(std::memory_order_relaxed)));
    slot->progress.store(progress(ok ? OpState::done : OpState::failed, peer), std::memory_order_release);
  }
  // As end(), without reading the clock, which is half the cost: for operations of less than a microsecond.
  void done(uint64_t ticket) { set_progress(ticket, OpState::done, -1); }

  uint64_t begun() const { return memory_->begun.load(std::memory_order_relaxed); }
  // Oldest first. A slot that is being written at that moment is left out.
  std::vector<OpSnapshot> snapshot() const { return snapshot(*memory_); }
  static std::vector<OpSnapshot> snapshot(const RecorderMemory& memory);

  // A table with one line per operation, of the newest `last`.
  std::string to_text(size_t last = RecorderMemory::kSlots) const;

 private:
  static uint64_t progress(OpState state, int32_t peer) { return uint64_t(state) << 32 | uint32_t(peer); }
  RecorderMemory::Slot* find(uint64_t ticket) {
    RecorderMemory::Slot& slot = memory_->slots[ticket % RecorderMemory::kSlots];
    return slot.version.load(std::memory_order_relaxed) == 2 * (ticket + 1) ? &slot : nullptr;
  }
  void set_progress(uint64_t ticket, OpState state, int32_t peer) {
    if (auto* slot = find(ticket)) slot->progress.store(progress(state, peer), std::memory_order_release);
  }

  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::unique_ptr<RecorderMemory> own_;
  RecorderMemory* memory_;
  uint64_t begun_ = 0;
  std::unordered_map<std::string, uint8_t, TextHash, std::equal_to<>> numbers_;  // of names
};

// One line: "#12 allreduce float32 sum count 1024 (4.0 KiB) ring/shm running 1.2 ms, waits for rank 3".
std::string describe(const OpSnapshot& op, uint64_t now_ns);
// An array of objects.
std::string snapshots_json(const std::vector<OpSnapshot>& ops);

}  // namespace weft
