#include "common/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace weft::perf {

using Clock = std::chrono::steady_clock;

Progress::Progress(bool wanted) : active_(wanted && isatty(STDERR_FILENO) == 1) {
  if (active_) thread_ = std::thread([this] { loop(); });
}

Progress::~Progress() {
  if (!active_) return;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  clear();
}

void Progress::at(std::string what) {
  if (!active_) return;
  std::lock_guard lock(mutex_);
  what_ = std::move(what);
  since_ = Clock::now();
}

void Progress::clear() {
  if (!active_) return;
  std::lock_guard lock(mutex_);
  if (std::exchange(shown_, false)) fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  what_.clear();
}

void Progress::loop() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait_for(lock, std::chrono::milliseconds(500));
    double seconds = std::chrono::duration<double>(Clock::now() - since_).count();
    if (ending_ || what_.empty() || seconds < 1) continue;
    fmt::print(stderr, "\r\x1b[K{} ... {:.0f} s", what_, seconds);
    std::fflush(stderr);
    shown_ = true;
  }
}

}  // namespace weft::perf
