// A clock for recording: a few nanoseconds per reading where the processor's counter is steady, else clock_gettime.
// Ticks mean something only through TickScale, which any process of the same host can make afterwards.
#pragma once

#include <time.h>

#include <cstdint>

namespace weft {

namespace detail {
extern const bool steady_counter;  // the processor has an invariant time stamp counter
}

inline uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

inline uint64_t ticks_now() {
#if defined(__x86_64__)
  if (detail::steady_counter) return __builtin_ia32_rdtsc();  // <x86intrin.h> would double the time to compile this
#endif
  return monotonic_ns();
}

// The same moment on both clocks.
struct TickPoint {
  uint64_t ticks = 0;
  uint64_t ns = 0;
  static TickPoint now() { return {ticks_now(), monotonic_ns()}; }
};

// Translates ticks to CLOCK_MONOTONIC nanoseconds by two points, the later one usually being now.
class TickScale {
 public:
  explicit TickScale(TickPoint first, TickPoint last = TickPoint::now()) : first_(first) {
    if (last.ticks > first.ticks) ns_per_tick_ = double(last.ns - first.ns) / double(last.ticks - first.ticks);
  }
  uint64_t ns(uint64_t ticks) const {
    return uint64_t(int64_t(first_.ns) + int64_t(double(int64_t(ticks - first_.ticks)) * ns_per_tick_));
  }

 private:
  TickPoint first_;
  double ns_per_tick_ = 1;
};

}  // namespace weft
