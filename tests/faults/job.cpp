#include "tests/faults/job.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace weft::faults {

using Steady = std::chrono::steady_clock;

double seconds_since(Steady::time_point since) { return std::chrono::duration<double>(Steady::now() - since).count(); }

void sleep_ms(int milliseconds) {
  // Signals must not shorten it.
  const auto until = Steady::now() + std::chrono::milliseconds(milliseconds);
  std::this_thread::sleep_until(until);
}

std::string slurp(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> entries(const std::string& directory) {
  std::error_code problem;
  std::set<std::string> names;
  for (std::filesystem::directory_iterator at(directory, problem), end; !problem && at != end; at.increment(problem)) {
    names.insert(at->path().filename());
  }
  return names;
}

size_t count_entries(const std::string& directory) { return entries(directory).size(); }

std::set<std::string> abstract_sockets() {
  std::ifstream file("/proc/net/unix");
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (const size_t at = line.find("@weft-"); at != std::string::npos) names.insert(line.substr(at));
  }
  return names;
}

long resident_kb(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::atol(line.c_str() + 6);
  }
  return -1;
}

void set_environment(const Environment& environment) {
  for (const auto& [name, value] : environment) {
    if (value.empty()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
}

// ---- Rank

weftResult_t Rank::join(weftConfig_t* config) {
  begin();
  return keep(weftCommInitEnv(&comm, config));
}

double Rank::elapsed() const { return seconds_since(begun_); }

weftResult_t Rank::keep(weftResult_t code) {
  report.seconds = elapsed();
  report.code = code;
  if (code != weftSuccess) {
    std::string text = weftGetLastError(comm);
    if (text.empty()) text = weftGetLastError(nullptr);
    std::strncpy(report.message, text.c_str(), sizeof report.message - 1);
  }
  return code;
}

void Rank::wait(int word, int value) const {
  while (board.word[word].load() < value) sleep_ms(2);
}

void Rank::meet(int word) const {
  raise(word);
  wait(word, size);
}

// ---- Job

Job::Job(JobOptions options, const Body& body) : options_(std::move(options)) {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || options_.size > kMostRanks) throw std::runtime_error("no memory for the ranks' reports");
  shared_ = new (memory) Shared;
  directory_ = ::testing::TempDir() + "weft-faults-XXXXXX";
  if (::mkdtemp(directory_.data()) == nullptr) throw std::runtime_error("mkdtemp");
  const auto count = static_cast<size_t>(options_.size);
  pids_.resize(count);
  statuses_.assign(count, -1);
  ended_.assign(count, false);
  const std::string secret = fmt::format("{:x}", std::random_device{}());
  for (int rank = 0; rank < options_.size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      set_environment({{"WEFT_RANK", std::to_string(rank)},
                       {"WEFT_WORLD_SIZE", std::to_string(options_.size)},
                       {"WEFT_ROOT", "file:" + directory_ + "/root"},
                       {"WEFT_JOB_ID", "faults" + secret},
                       {"WEFT_SECRET", secret},
                       {"WEFT_TIMEOUT", std::to_string(kTimeout)},
                       {"WEFT_INIT_TIMEOUT", "15"},
                       {"WEFT_STATUS_DIR", directory_ + "/status"}});
      run(rank, body);
    }
    pids_[static_cast<size_t>(rank)] = pid;
  }
}

void Job::run(int rank, const Body& body) {
  set_environment(options_.environment);
  if (auto own = options_.of_rank.find(rank); own != options_.of_rank.end()) set_environment(own->second);
  if (options_.prepare) options_.prepare(rank);
  Rank self(rank, options_.size, shared_->reports[rank], shared_->board);
  if (options_.join && self.join() != weftSuccess) ::_exit(3);
  body(self);
  self.leave();
  ::_exit(0);
}

Job::~Job() {
  for (size_t i = 0; i < pids_.size(); ++i) {
    if (ended_[i]) continue;
    ::kill(pids_[i], SIGKILL);
    ::waitpid(pids_[i], nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
  ::munmap(shared_, sizeof(Shared));
}

bool Job::reap() {
  bool all = true;
  for (size_t i = 0; i < pids_.size(); ++i) {
    if (!ended_[i] && ::waitpid(pids_[i], &statuses_[i], WNOHANG) == pids_[i]) ended_[i] = true;
    all = all && ended_[i];
  }
  return all;
}

bool Job::finish() {
  const auto begun = Steady::now();
  while (!reap()) {
    if (seconds_since(begun) > options_.seconds * (sanitized() ? 4 : 1)) {
      for (int rank = 0; rank < options_.size; ++rank) {
        const Report& report = shared_->reports[rank];
        if (!ended_[static_cast<size_t>(rank)]) {
          ADD_FAILURE() << "rank " << rank << " hangs at stage " << report.stage << " (" << report.value[0]
                        << "); its last result: " << report.code << " " << report.message;
        }
      }
      return false;
    }
    sleep_ms(2);
  }
  return true;
}

void Job::signal(int rank, int number) const { ::kill(pid(rank), number); }

bool Job::reached(int rank, int stage, double seconds) const {
  const auto begun = Steady::now();
  while (shared_->reports[rank].stage.load() < stage) {
    if (seconds_since(begun) > seconds) {
      ADD_FAILURE() << "rank " << rank << " did not come to stage " << stage << ": " << shared_->reports[rank].message;
      return false;
    }
    sleep_ms(1);
  }
  return true;
}

// ---- Expectations

void expect_error(const Report& report, weftResult_t code, const std::vector<std::string>& named, double seconds) {
  EXPECT_EQ(report.code, code) << report.message;
  for (const std::string& what : named) {
    EXPECT_NE(std::string(report.message).find(what), std::string::npos)
        << "\"" << report.message << "\" does not name \"" << what << "\"";
  }
  EXPECT_LT(report.seconds, seconds) << report.message;
}

void expect_success(const Report& report) { EXPECT_EQ(report.code, weftSuccess) << report.message; }

bool all_reduce_is_right(weftComm_t comm, int rank, int size, size_t count, weftResult_t* code) {
  std::vector<float> in(count), out(count);
  for (size_t i = 0; i < count; ++i) in[i] = static_cast<float>(rank + 1 + static_cast<int>(i % 3));
  *code = weftAllReduce(in.data(), out.data(), count, weftFloat32, weftSum, comm, nullptr);
  if (*code != weftSuccess) return false;
  for (size_t i = 0; i < count; ++i) {
    if (out[i] != static_cast<float>(size * (size + 1) / 2 + size * static_cast<int>(i % 3))) return false;
  }
  return true;
}

bool sum_is_right(weftComm_t comm, int rank, int size, size_t count) {
  weftResult_t code;
  return all_reduce_is_right(comm, rank, size, count, &code) && code == weftSuccess;
}

// ---- Exercise

namespace {

// The transport of every wire that was used, as "1:shm 2:tcp".
std::string wires(weftComm_t comm) {
  std::string text(1 << 20, ' ');
  size_t length = text.size();
  if (weftCommDump(comm, weftDumpJson, text.data(), &length) != weftSuccess) return weftGetLastError(comm);
  text.resize(length - 1);
  std::string list;
  const auto dump = nlohmann::json::parse(text);
  for (const auto& wire : dump["wires"]) {
    list +=
        fmt::format("{}{}:{}", list.empty() ? "" : " ", wire["peer"].get<int>(), wire["transport"].get<std::string>());
  }
  return list;
}

}  // namespace

void exercise(Rank& rank) {
  for (const size_t count : {size_t{8}, size_t{5000}, size_t{400'000}}) {
    rank.report.value[0] += sum_is_right(rank.comm, rank.rank, rank.size, count);
  }
  std::vector<int> in(static_cast<size_t>(rank.size) * 100, rank.rank), out(in.size());
  rank.keep(weftAlltoAll(in.data(), out.data(), 100, weftInt32, rank.comm, nullptr));
  rank.report.value[0] += out.back() == rank.size - 1;
  if (rank.report.code == weftSuccess) std::strncpy(rank.report.message, wires(rank.comm).c_str(), 1000);
}
void expect_exercised(const Job& job, int size) {
  for (int rank = 0; rank < size; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], 4) << "rank " << rank;
  }
}

}  // namespace weft::faults
