// A point in time by which something must have happened. All waiting in Weft is against a Deadline.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace weft {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  static Deadline after(std::chrono::milliseconds wait) { return Deadline(Clock::now() + wait); }
  static Deadline never() { return Deadline(Clock::time_point::max()); }
  // The same; but it has passed, too, once *flag is set. Those that are made from it keep the flag.
  Deadline unless(const std::atomic<bool>* flag) const { return Deadline(at_, flag); }
  // `wait` from now, or this one if that is earlier.
  Deadline within(std::chrono::milliseconds wait) const {
    return Deadline(std::min(at_, Clock::now() + wait), cancel_);
  }
  Deadline later_by(std::chrono::milliseconds wait) const {
    return at_ == Clock::time_point::max() ? *this : Deadline(at_ + wait, cancel_);
  }

  bool passed() const { return cancelled() || (at_ != Clock::time_point::max() && Clock::now() >= at_); }
  bool cancelled() const { return cancel_ != nullptr && cancel_->load(std::memory_order_relaxed); }
  // Milliseconds left, rounded up, for poll() and epoll_wait(); at most `most`, never negative, and short enough to see
  // the flag in time.
  int left_ms(int most = 1 << 30) const {
    if (cancel_ != nullptr) most = cancelled() ? 0 : std::min(most, kLookMs);
    if (at_ == Clock::time_point::max()) return most;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, most));
  }
  Clock::time_point at() const { return at_; }

 private:
  static constexpr int kLookMs = 100;
  explicit Deadline(Clock::time_point at, const std::atomic<bool>* cancel = nullptr) : at_(at), cancel_(cancel) {}
  Clock::time_point at_;
  const std::atomic<bool>* cancel_ = nullptr;
};

}  // namespace weft
