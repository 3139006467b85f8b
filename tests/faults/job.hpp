// Jobs of real rank processes that tests stop, kill and starve. The test's process forks them before it has made any
// use of the library, so that each reads its own environment; what they find out lies in memory that all share.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/harness/full.hpp"
#include "weft/weft.h"

namespace weft::faults {

using testing::sanitized;
using testing::test_full;

// T of the tests, and what counts as in time: T + 2 s, with room for a loaded machine on top where nothing else is
// said.
constexpr double kTimeout = 3, kInTime = kTimeout + 2;

// What a rank leaves for the test to look at.
struct Report {
  std::atomic<int> stage{0};  // how far it came
  int code = -1;              // of the call that mattered
  double seconds = 0;         // how long that took
  char message[4096] = {};
  int64_t value[16] = {};
};

// Words for ranks and test to wait for.
struct Board {
  std::atomic<int> word[16] = {};
};

using Environment = std::map<std::string, std::string>;

class Rank {
 public:
  Rank(int rank, int size, Report& report, Board& board) : rank(rank), size(size), report(report), board(board) {}

  const int rank, size;
  Report& report;
  Board& board;
  weftComm_t comm = nullptr;

  // weftCommInitEnv, with the error kept.
  weftResult_t join(weftConfig_t* config = nullptr);
  // Keeps the result of a call, its message, and how long it took since begin().
  weftResult_t keep(weftResult_t code);
  void begin() { begun_ = std::chrono::steady_clock::now(); }
  double elapsed() const;
  void stage(int number) { report.stage.store(number); }
  // Waits until a word of the board is at least `value`; the watchdog ends what never comes.
  void wait(int word, int value = 1) const;
  void raise(int word) const { ++board.word[word]; }
  // All ranks of the job come here, each `word` once.
  void meet(int word) const;
  void leave() {
    if (comm != nullptr) weftCommDestroy(comm);
    comm = nullptr;
  }

 private:
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

struct JobOptions {
  int size = 2;
  Environment environment;                          // on top of the job's own; "" unsets
  std::map<int, Environment> of_rank;               // and for one rank
  std::function<void(int rank)> prepare = nullptr;  // in the rank's process, before anything else
  bool join = true;                                 // and leave it when the body is over
  double seconds = 25;                              // of the watchdog; four times that with a sanitizer
};

class Job {
 public:
  using Body = std::function<void(Rank&)>;
  Job(JobOptions options, const Body& body);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Waits for all ranks; one that is still there when the watchdog's time is over is a failure of the test.
  bool finish();
  const Report& operator[](int rank) const { return shared_->reports[rank]; }
  Board& board() { return shared_->board; }
  pid_t pid(int rank) const { return pids_[static_cast<size_t>(rank)]; }
  // As waitpid gives it; after finish().
  int status(int rank) const { return statuses_[static_cast<size_t>(rank)]; }
  void signal(int rank, int number) const;
  // Waits until the rank has come to a stage; false when it does not within seconds.
  bool reached(int rank, int stage, double seconds = 15) const;
  const std::string& directory() const { return directory_; }

 private:
  static constexpr int kMostRanks = 32;
  struct Shared {
    Report reports[kMostRanks];
    Board board;
  };
  [[noreturn]] void run(int rank, const Body& body);
  bool reap();

  JobOptions options_;
  Shared* shared_;
  std::vector<pid_t> pids_;
  std::vector<int> statuses_;
  std::vector<bool> ended_;
  std::string directory_;
};

// A rank's error has this code and names all of these things, and came within `seconds`.
void expect_error(const Report& report, weftResult_t code, const std::vector<std::string>& named,
                  double seconds = kInTime);
void expect_success(const Report& report);

// Sum over ranks of (rank + 1) in every element, checked to the last; false when a value is wrong.
bool all_reduce_is_right(weftComm_t comm, int rank, int size, size_t count, weftResult_t* code);
bool sum_is_right(weftComm_t comm, int rank, int size, size_t count);

// Small and large all-reduces and an all-to-all: four right answers in value[0]. The message is the transport of every
// wire that was used, as "1:shm 2:tcp".
void exercise(Rank& rank);
void expect_exercised(const Job& job, int size);

void set_environment(const Environment& environment);
double seconds_since(std::chrono::steady_clock::time_point since);
void sleep_ms(int milliseconds);
std::string slurp(const std::string& path);
size_t count_entries(const std::string& directory);
// Names in the kernel's list of unix sockets that are of Weft, this user's other jobs included.
std::set<std::string> abstract_sockets();
std::set<std::string> entries(const std::string& directory);
// Resident kilobytes of a process.
long resident_kb(pid_t pid);

}  // namespace weft::faults
