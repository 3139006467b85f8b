#include "status/process.hpp"

#include <pthread.h>

#include <atomic>

namespace weft {
namespace {

std::atomic<uint32_t> count{0};
const int registered = ::pthread_atfork(nullptr, nullptr, [] { count.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint32_t forks() {
  (void)registered;
  return count.load(std::memory_order_relaxed);
}

}  // namespace weft
