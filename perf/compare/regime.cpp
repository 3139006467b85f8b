// Prints the one-way latency of a cache line between the first two cores, in nanoseconds. On a virtual machine whose
// cores are moved about it tells in which regime a measurement was made.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

void pin(unsigned core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

}  // namespace

int main() {
  alignas(64) static std::atomic<int> ping{0}, pong{0};
  constexpr int kRounds = 2000, kBatches = 15;
  std::thread other([] {
    pin(1);
    for (int i = 1; i <= kRounds * kBatches; ++i) {
      while (ping.load(std::memory_order_acquire) != i) {
      }
      pong.store(i, std::memory_order_release);
    }
  });
  pin(0);
  std::vector<double> times;
  int i = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto begin = std::chrono::steady_clock::now();
    for (int round = 0; round < kRounds; ++round) {
      ping.store(++i, std::memory_order_release);
      while (pong.load(std::memory_order_acquire) != i) {
      }
    }
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
                    (2 * kRounds));
  }
  other.join();
  std::sort(times.begin(), times.end());
  std::printf("%.0f\n", times[kBatches / 2]);
}
