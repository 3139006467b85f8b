// A point in time by which something must have happened. All waiting in Weft is against a Deadline.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace weft {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  static Deadline after(std::chrono::milliseconds wait) { return Deadline(Clock::now() + wait); }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }
  // Milliseconds left, rounded up, for poll() and epoll_wait(); at most `most`, never negative.
  int left_ms(int most = 1 << 30) const {
    if (at_ == Clock::time_point::max()) return most;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, most));
  }
  Clock::time_point at() const { return at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace weft
