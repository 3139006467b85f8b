// What will happen, by time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

namespace weft::simulation {

// Of events at the same time those go first that are first by `kind`, `first`, `second` and `tile`, which are the same
// for ranks of one class: so one rank of a class waits in a queue where the others of its class do.
struct Event {
  enum class Kind : uint32_t { ended, done, arrived, start };
  double time = 0;
  Kind kind = Kind::done;
  uint32_t first = 0, second = 0, tile = 0;
  uint32_t who = 0;
  uint32_t item = 0;  // a message, a flow, or a span

  bool operator<(const Event& other) const {
    if (time != other.time) return time < other.time;
    return std::tie(kind, first, second, tile, who) <
           std::tie(other.kind, other.first, other.second, other.tile, other.who);
  }
};
static_assert(sizeof(Event) == 32);

// A heap with four children to a node: half as deep as one with two, and they share two cache lines.
class EventHeap {
 public:
  bool empty() const { return heap_.empty(); }
  const Event& top() const { return heap_.front(); }
  void push(const Event& event) {
    size_t at = heap_.size();
    heap_.push_back(event);
    while (at > 0) {
      const size_t parent = (at - 1) / 4;
      if (!(event < heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }
  void pop() {
    const Event last = heap_.back();
    heap_.pop_back();
    const size_t size = heap_.size();
    for (size_t at = 0; size > 0;) {
      const size_t begin = 4 * at + 1, end = std::min(begin + 4, size);
      size_t least = begin;
      for (size_t child = begin + 1; child < end; ++child) {
        if (heap_[child] < heap_[least]) least = child;
      }
      if (begin >= size || !(heap_[least] < last)) {
        heap_[at] = last;
        break;
      }
      heap_[at] = heap_[least];
      at = least;
    }
  }

 private:
  std::vector<Event> heap_;
};

// Three parts: what is far lies as it came; the next part of it is sorted at once, which memory likes better than a
// large heap; and what comes in between goes into a heap, which stays small.
class EventQueue {
 public:
  bool empty() const { return at_ == next_.size() && between_.empty() && far_.empty(); }
  void push(const Event& event) {
    if (event.time > limit_) {
      far_.push_back(event);
    } else {
      between_.push(event);
    }
  }
  const Event& top() {
    if (at_ == next_.size() && between_.empty()) refill();
    return from_heap() ? between_.top() : next_[at_];
  }
  Event pop() {
    const Event result = top();
    if (from_heap()) {
      between_.pop();
    } else {
      ++at_;
    }
    return result;
  }

 private:
  bool from_heap() const { return at_ == next_.size() || (!between_.empty() && between_.top() < next_[at_]); }
  void refill();

  std::vector<Event> far_, next_;
  size_t at_ = 0;
  double limit_ = -1;
  EventHeap between_;
};

}  // namespace weft::simulation
