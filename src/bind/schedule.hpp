// The order in which the messages of a plan go over each wire, for one window. Derived once per plan and kept with it.
#pragma once

#include <memory>
#include <vector>

#include "plan/plan.hpp"

namespace weft {

// In which order the tiles of a block of `window` tiles go over a wire that several steps use. Both ends know it.
enum class Order : uint8_t {
  waves,  // a step of a tile with the next step of the tile before it: what was received is sent on while it is in
          // cache
  steps,  // all tiles of a step first: as many as the window are under way at once, however long they take
};

struct Schedule {
  // One op on tile `tile` of a block of `window` tiles; in block b its key is b * stride + place.
  struct Entry {
    uint32_t place = 0;  // in waves tile + step, else step
    uint32_t tile = 0;
    uint32_t op = 0;
  };
  struct Queue {
    int peer = -1;
    Verb verb = Verb::send;
    std::vector<Entry> entries;  // of one block, by (place, tile, op)
  };
  uint32_t window = 1;
  uint32_t stride = 1;  // in waves max(S, W), else S
  std::vector<Queue> queues;

  Schedule(const Plan& plan, uint32_t window, Order order);
};

// Walks a queue over all blocks in key order. In waves two neighbouring blocks overlap: the keys of block b end at
// b * stride + S + W - 2, and b + 1 begins at (b + 1) * stride; more than two never do, since S + W - 2 < 2 * stride.
class Cursor {
 public:
  Cursor(const Schedule& schedule, const Schedule::Queue& queue, uint32_t tiles)
      : queue_(&queue), window_(schedule.window), stride_(schedule.stride), tiles_(tiles) {
    settle();
  }

  bool at_end() const { return uint64_t{block_} * window_ >= tiles_; }
  uint32_t op() const { return entry().op; }
  uint32_t tile() const { return (block_ + (upper_is_next_ ? 1 : 0)) * window_ + entry().tile; }
  void next() {
    ++(upper_is_next_ ? upper_ : lower_);
    settle();
  }

 private:
  const Schedule::Entry& entry() const { return queue_->entries[upper_is_next_ ? upper_ : lower_]; }
  // Entries of tiles past the end do not exist.
  size_t skip(uint32_t block, size_t position) const {
    while (position < queue_->entries.size() && uint64_t{block} * window_ + queue_->entries[position].tile >= tiles_) {
      ++position;
    }
    return position;
  }
  void settle() {
    while (!at_end()) {
      lower_ = skip(block_, lower_);
      upper_ = skip(block_ + 1, upper_);
      const size_t size = queue_->entries.size();
      if (lower_ == size) {
        ++block_;
        lower_ = upper_;
        upper_ = 0;
        continue;
      }
      upper_is_next_ = upper_ < size && queue_->entries[upper_].place + stride_ < queue_->entries[lower_].place;
      return;
    }
  }

  const Schedule::Queue* queue_;
  uint32_t window_, stride_, tiles_;
  uint32_t block_ = 0;
  size_t lower_ = 0, upper_ = 0;  // positions in block_ and block_ + 1
  bool upper_is_next_ = false;
};

}  // namespace weft
