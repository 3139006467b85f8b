// A run of the plans of all ranks with fingerprints for contents, step by step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plan/shape.hpp"
#include "status/status.hpp"

namespace weft::symbolic {

using Plans = std::vector<std::shared_ptr<const Plan>>;

// What a chunk holds. `low` and `high` are the sum of the fingerprints of all contributions (in a barrier: a set of
// ranks), `term` is a hash of how they were combined, 0 for "nothing yet".
struct Value {
  uint64_t low = 0, high = 0, term = 0;
  bool defined() const { return term != 0; }
};

// What went over the wires in one run, in an order that is the same in all, and what lay in `out` at its end.
struct Heard {
  struct Entry {
    uint64_t digest = 0;  // of lane, values and sizes
    uint32_t step = 0, line = 0;
    int32_t from = -1, to = -1;
  };
  std::vector<Entry> messages;
  std::vector<uint64_t> results;  // of rank 0, how each chunk was combined
};

// The plans of all ranks, run once on fingerprints.
class Run {
 public:
  // For a barrier: only ranks [first_rank, first_rank + 128) are tracked. `heard` may be null.
  Run(const Plans& plans, int first_rank, Heard* heard)
      : plans_(plans),
        heard_(heard),
        ranks_(static_cast<int>(plans.size())),
        collective_(plans[0]->collective),
        barrier_(collective_ == Collective::barrier),
        first_rank_(first_rank) {}

  Status run();
  // Where in the program the failure of run() is; 0: nowhere in particular.
  uint32_t line() const { return line_; }

 private:
  struct Message {
    int from = 0, to = 0;
    const Op* op = nullptr;
    uint64_t channel() const { return (static_cast<uint64_t>(from) << 32) | static_cast<uint32_t>(to); }
  };
  struct Write {
    uint32_t slot;
    Value value;
  };
  // What this step did to a slot. One operation may read what it writes, at the same position.
  struct Use {
    uint32_t read_step = UINT32_MAX, written_step = UINT32_MAX;
    const Op* reader = nullptr;
    uint32_t position = 0;
    bool several = false;
    uint16_t writer_line = 0;  // of the last write
  };

  static Value contribution(int rank, uint32_t chunk);
  Status check_uniform() const;
  void prepare();
  Status run_step(uint32_t step);
  Status run_local(int rank, const Op& op);
  Status match();
  Status deliver(const Message& sent, const Message& received);
  void hear(const Message& sent);
  Status note_read(int rank, const Op& op, uint32_t slot, uint32_t position);
  Status note_write(int rank, const Op& op, uint32_t slot, uint32_t position, Value value);
  Status check_results();
  Status check_same_bits();
  Value expected(int rank, uint32_t chunk) const;
  std::string difference(const Value& have, const Value& want, int rank, uint32_t chunk) const;
  uint32_t contributed_chunk(int rank, uint32_t chunk) const;

  uint32_t slot_of(int rank, Buffer buffer, uint32_t chunk) const;
  std::string describe(int rank, uint32_t slot) const;
  // Calls body(slot, position) for each chunk of a list of regions; the first error ends it.
  template <typename Body>
  Status each(int rank, std::span<const Region> regions, Body body) const;
  Status each_class(int rank, std::span<const Region> regions, std::vector<uint64_t>& classes) const;
  uint64_t size_class(int rank, Buffer buffer, uint32_t chunk) const;
  Value combine(const Value& a, const Value& b) const;
  Value combine(const std::vector<Value>& values) const;

  const Plans& plans_;
  Heard* const heard_;
  const int ranks_;
  const Collective collective_;
  const bool barrier_;
  const int first_rank_;

  std::vector<Shape> shapes_;
  std::vector<uint32_t> base_;  // first slot of each rank
  std::vector<Value> values_;
  std::vector<Use> uses_;
  std::vector<uint32_t> next_op_;
  std::vector<Write> writes_;
  std::vector<Message> sends_, receives_;
  uint32_t step_ = 0, line_ = 0;
  // Of one operation; kept for their memory.
  std::vector<uint64_t> classes_, other_classes_;
  std::vector<Value> arriving_, kept_;
};

}  // namespace weft::symbolic
