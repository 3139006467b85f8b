// The ranks of a job as processes: started, watched, ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "lines.hpp"
#include "options.hpp"
#include "status/deadline.hpp"
#include "status/status.hpp"

namespace weft::run {

// A private directory that goes with its owner.
class TemporaryDirectory {
 public:
  static Result<TemporaryDirectory> create();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

class Job {
 public:
  Job(const Options& options, TemporaryDirectory directory);
  ~Job();  // nothing that we started is left

  // Starts all ranks, or none.
  Status start();
  // Until all ranks have ended; the exit code of the job.
  int run();
  // Of the first failure.
  std::optional<int> exit_code() const { return exit_code_; }

 private:
  struct Rank {
    pid_t pid = 0;
    bool alive = false;
  };

  Status start_rank(int number);
  // In the new process, up to exec; never returns. A failure's errno goes to `report`.
  [[noreturn]] void become_rank(int number, int out, int err, int report);
  void set_environment(int number);
  void handle_signal(int signal);
  void reap();
  void ended(int number, int status);
  // SIGTERM now, SIGKILL after the grace.
  void end();
  void send(int signal);
  void stop_and_continue();
  void poll_once();
  size_t alive() const;
  void kill_leftovers();

  Options options_;
  TemporaryDirectory directory_;
  std::string id_, secret_;
  Fd signals_;
  std::vector<Rank> ranks_;
  std::deque<Lines> lines_;
  std::optional<int> exit_code_;
  bool ending_ = false;
  int interrupts_ = 0;
  Deadline timeout_ = Deadline::never();
  Deadline kill_at_ = Deadline::never();
};

}  // namespace weft::run
