// The ranks of this process and how they find the others: threads here, processes by a launcher, or both.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/options.hpp"
#include "common/report.hpp"
#include "weft/weft.hpp"

namespace weft::perf {

// A rank's end of the job. `world` spans all ranks and carries barriers, times and error counts; `group` is what is
// measured: the same communicator, or a part of it under NCCL_TESTS_SPLIT.
struct Member {
  int world_rank = 0;
  int world_size = 1;
  int group_rank = 0;
  int group_size = 1;
  weftComm_t world = nullptr;
  weftComm_t group = nullptr;
};

// Ends what a rank waits in once its time is over. One thread watches all ranks of the process; it exists only with -T.
class Watchdog {
 public:
  Watchdog(int ranks, int seconds);
  ~Watchdog();

  // Only communicators that are watched are aborted.
  void watch(int local_rank, const Member& member);
  void start(int local_rank);
  void stop(int local_rank);
  bool fired() const { return fired_; }
  // True when the rank's time is over, or so nearly that another rank's watchdog, which started a little earlier, may
  // have ended the run.
  bool expired(int local_rank);

 private:
  void loop();

  struct Slot {
    Member member;
    bool running = false;
    std::chrono::steady_clock::time_point deadline;
  };
  int seconds_;
  std::atomic<bool> fired_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::vector<Slot> slots_;
  std::thread thread_;
};

class Session {
 public:
  // Joins the job's processes. Throws weft::Error.
  Session(const Options& options, const Environment& environment, const char* program);

  int process() const { return process_; }
  int processes() const { return processes_; }
  int ranks() const { return processes_ * options_.local_ranks(); }
  // Ranks of the group that this process belongs to.
  int group_ranks() const { return group_processes_ * options_.local_ranks(); }
  int color() const { return color_; }

  // Collective over all ranks of all processes, each from its own thread.
  Member join(int local_rank);
  // The ranks as all see them, in order. Collective.
  std::vector<RankInfo> exchange(const Member& member, int local_rank) const;
  Watchdog& watchdog() { return watchdog_; }
  // Tells the other ranks that this one has failed.
  void abandon(int local_rank);
  // Releases the rank's communicators. From the rank's own thread, because ranks wait for each other in it.
  void leave(int local_rank);

 private:
  void share_id();

  const Options& options_;
  int first_device_;
  Config config_;
  Communicator processes_comm_;
  int process_ = 0;
  int processes_ = 1;
  int color_ = 0;
  int group_processes_ = 1;
  weftUniqueId id_{};
  // Of each local rank.
  std::vector<Communicator> worlds_;
  std::vector<Communicator> groups_;
  std::vector<Member> members_;
  Watchdog watchdog_;
};

}  // namespace weft::perf
