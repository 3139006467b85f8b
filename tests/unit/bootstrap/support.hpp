// Ranks as threads or as forked processes, for the tests of bootstrap.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/listener.hpp"

namespace weft {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline Config loopback_config() {
  Config config;
  config.socket_ifname = "=lo";
  config.socket_family = "any";
  return config;
}

inline void on_threads(int n, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) threads.emplace_back(body, r);
  for (auto& thread : threads) thread.join();
}

inline JobId new_job(const Config& config) {
  auto id = make_unique_id(config);
  EXPECT_TRUE(id.ok()) << id.status().message();
  return JobId::unpack(*id).value();
}

inline Result<std::unique_ptr<Bootstrap>> join_as(const JobId& id, int rank, int size, milliseconds timeout,
                                                  std::shared_ptr<Listener> listener = nullptr) {
  static const Config config = loopback_config();
  return join({.id = id,
               .rank = rank,
               .size = size,
               .listener = std::move(listener),
               .deadline = Deadline::after(timeout),
               .config = &config});
}

// A forked rank: body's return value is its exit status. Killed when it outlives the object.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ == 0) {
      ::alarm(60);
      ::_exit(body());
    }
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  void kill() const { ::kill(pid_, SIGKILL); }
  int wait() {
    int status = -1;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// The next event, waited for on fd() where there is one.
inline std::optional<Control> next_event(Bootstrap& bootstrap, milliseconds timeout = seconds(5)) {
  const Deadline deadline = Deadline::after(timeout);
  while (!deadline.passed()) {
    if (auto event = bootstrap.poll()) return event;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return std::nullopt;
}

class Stopwatch {
 public:
  milliseconds elapsed() const { return std::chrono::duration_cast<milliseconds>(Clock::now() - start_); }

 private:
  Clock::time_point start_ = Clock::now();
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace weft
