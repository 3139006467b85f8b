#include "simulate/events.hpp"

namespace weft::simulation {

// Takes about the first quarter, by a sample; where there are few, all.
void EventQueue::refill() {
  constexpr size_t kFew = 256, kSample = 64;
  at_ = 0;
  next_.clear();
  std::vector<double> times;
  const size_t stride = std::max<size_t>(1, far_.size() / kSample);
  for (size_t i = 0; i < far_.size(); i += far_.size() < kFew ? 1 : stride) times.push_back(far_[i].time);
  const auto limit =
      far_.size() < kFew ? times.end() - 1 : times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
  std::nth_element(times.begin(), limit, times.end());
  limit_ = *limit;
  size_t kept = 0;
  for (const Event& event : far_) {
    if (event.time > limit_) {
      far_[kept++] = event;
    } else {
      next_.push_back(event);
    }
  }
  far_.resize(kept);
  std::sort(next_.begin(), next_.end());
}

}  // namespace weft::simulation
