#include "ranks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "config/config.hpp"
#include "status/fd.hpp"

namespace weft::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Ends the program when a test hangs: nothing else gets threads out of a library that is stuck.
class Watchdog {
 public:
  Watchdog() : thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::seconds(patience()), [this] { return over_; })) return;
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "watchdog: %s.%s hangs\n", info == nullptr ? "?" : info->test_suite_name(),
                 info == nullptr ? "?" : info->name());
    std::fflush(nullptr);
    ::_exit(70);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

// What a child's assertions said, beyond the first `before` results, which are the parent's.
std::string failures_since(int before) {
  std::string text;
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  if (info == nullptr) return text;
  const auto* result = info->result();
  for (int i = before; i < result->total_part_count(); ++i) {
    const auto& part = result->GetTestPartResult(i);
    if (!part.failed()) continue;
    text += fmt::format("{}:{}: {}\n", part.file_name() == nullptr ? "?" : part.file_name(), part.line_number(),
                        part.message());
    if (text.size() > 4000) return text.substr(0, 4000) + "...\n";
  }
  return text;
}

int parts_now() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return info == nullptr ? 0 : info->result()->total_part_count();
}

struct Child {
  pid_t pid = -1;
  Fd output;  // what failed
};

[[noreturn]] void be_child(int rank, int ranks, const std::string& meeting, int output,
                           const std::function<void(int)>& body) {
  const int before = parts_now();
  if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(3);
  ::setenv("WEFT_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WEFT_WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  ::setenv("WEFT_ROOT", ("file:" + meeting).c_str(), 1);
  ::setenv("WEFT_JOB_ID", fmt::format("test-{}", ::getppid()).c_str(), 1);
  ::setenv("WEFT_SECRET", "of the tests", 1);
  std::string text;
  try {
    if (const auto& config = reread_config(); !config.ok()) {
      text = config.status().message() + "\n";
    } else {
      body(rank);
    }
  } catch (const std::exception& problem) {
    text = fmt::format("exception: {}\n", problem.what());
  }
  text += failures_since(before);
  for (size_t at = 0; at < text.size();) {
    const ssize_t wrote = ::write(output, text.data() + at, text.size() - at);
    if (wrote <= 0) break;
    at += static_cast<size_t>(wrote);
  }
  ::_exit(text.empty() ? 0 : 1);
}

std::string read_all(int fd) {
  std::string text;
  char bytes[4096];
  for (;;) {
    const ssize_t got = ::read(fd, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(bytes, static_cast<size_t>(got));
  }
}

// Waits for all, at most until the watchdog's time; then kills them.
std::vector<std::optional<int>> wait_for(const std::vector<Child>& children) {
  std::vector<std::optional<int>> status(children.size());
  const auto end = Clock::now() + std::chrono::seconds(patience());
  bool killed = false;
  for (size_t left = children.size(); left > 0;) {
    for (size_t i = 0; i < children.size(); ++i) {
      int code = 0;
      if (status[i].has_value() || ::waitpid(children[i].pid, &code, WNOHANG) != children[i].pid) continue;
      status[i] = code;
      --left;
    }
    if (left == 0) break;
    if (!killed && Clock::now() > end) {
      killed = true;
      for (size_t i = 0; i < children.size(); ++i) {
        if (status[i].has_value()) continue;
        ADD_FAILURE() << "rank " << i << " hangs: killed by the watchdog";
        ::kill(children[i].pid, SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return status;
}

}  // namespace

int patience() { return (sanitized() ? 240 : 90) * (test_full() ? 10 : 1); }

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("WEFT_TEST_SEED");
    const uint64_t value = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("seed %llu (repeat with WEFT_TEST_SEED=%llu)\n", static_cast<unsigned long long>(value),
                static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

// ---- Environment

Environment::Environment(const Variables& variables) {
  set("WEFT_TIMEOUT", "30");
  set("WEFT_INIT_TIMEOUT", "30");
  for (const auto& [name, value] : variables) set(name, value);
  const auto& config = reread_config();
  EXPECT_TRUE(config.ok()) << config.status().message();
}

Environment::~Environment() {
  for (const std::string& name : unset_) ::unsetenv(name.c_str());
  for (auto at = before_.rbegin(); at != before_.rend(); ++at) ::setenv(at->first.c_str(), at->second.c_str(), 1);
  (void)reread_config();
}

void Environment::set(const std::string& name, const std::string& value) {
  if (const char* old = std::getenv(name.c_str())) {
    before_.emplace_back(name, old);
  } else {
    unset_.push_back(name);
  }
  ::setenv(name.c_str(), value.c_str(), 1);
}

// ---- Ranks

void run_threads(int ranks, const RankBody& body, const Variables& variables) {
  const Environment environment(variables);
  const Watchdog watchdog;
  std::vector<weftComm_t> comms(static_cast<size_t>(ranks));
  WEFT_ASSERT_OK(weftCommInitAll(comms.data(), ranks, nullptr), nullptr);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      weftComm_t comm = comms[static_cast<size_t>(rank)];
      try {
        body(rank, comm);
      } catch (const std::exception& problem) {
        ADD_FAILURE() << "rank " << rank << ": exception: " << problem.what();
      }
      WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_launched(int ranks, const std::function<void(int)>& body, const Variables& variables,
                  const std::set<int>& killed) {
  const Environment environment(variables);
  static int meetings = 0;
  const std::string meeting =
      std::filesystem::temp_directory_path() / fmt::format("weft-test-{}-{}", ::getpid(), meetings++);
  std::fflush(nullptr);
  std::vector<Child> children(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) be_child(rank, ranks, meeting, ends[1], body);
    children[static_cast<size_t>(rank)].pid = pid;
    children[static_cast<size_t>(rank)].output = Fd(ends[0]);
    ::close(ends[1]);
  }
  const auto status = wait_for(children);
  for (int rank = 0; rank < ranks; ++rank) {
    const int code = status[static_cast<size_t>(rank)].value_or(-1);
    const std::string text = read_all(children[static_cast<size_t>(rank)].output.get());
    if (killed.contains(rank)) {
      EXPECT_TRUE(WIFSIGNALED(code)) << "rank " << rank << " was to die; " << text;
    } else {
      EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 0 && text.empty())
          << "rank " << rank << (WIFSIGNALED(code) ? fmt::format(" died of signal {}\n", WTERMSIG(code)) : ":\n")
          << text;
    }
  }
  std::error_code ignored;
  std::filesystem::remove_all(meeting, ignored);
}

void run_processes(int ranks, const RankBody& body, const Variables& variables, const std::set<int>& killed) {
  run_launched(
      ranks,
      [&body](int rank) {
        weftComm_t comm = nullptr;
        WEFT_ASSERT_OK(weftCommInitEnv(&comm, nullptr), nullptr);
        body(rank, comm);
        WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr);
      },
      variables, killed);
}

void run_ranks(Mode mode, int ranks, const RankBody& body, const Variables& variables) {
  if (mode == Mode::threads) {
    run_threads(ranks, body, variables);
  } else {
    run_processes(ranks, body, variables);
  }
}

std::string why(weftResult_t result, weftComm_t comm) {
  if (result == weftSuccess) return "";
  return fmt::format("{}: {}", weftGetErrorString(result), weftGetLastError(comm));
}

// ---- Guarded buffers

GuardedBuffer::GuardedBuffer(size_t bytes, size_t shift, Against against) : bytes_(bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t inside = std::max(page, (bytes + shift + page - 1) / page * page);
  mapped_ = inside + 2 * page;
  void* map = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<std::byte*>(map);
  std::memset(map_ + page, std::to_integer<int>(kPaint), inside);
  ::mprotect(map_, page, PROT_NONE);
  ::mprotect(map_ + page + inside, page, PROT_NONE);
  data_ = against == Against::begin ? map_ + page + shift : map_ + page + inside - shift - bytes;
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept
    : map_(std::exchange(other.map_, nullptr)), mapped_(other.mapped_), bytes_(other.bytes_), data_(other.data_) {}

GuardedBuffer::~GuardedBuffer() {
  if (map_ != nullptr) ::munmap(map_, mapped_);
}

::testing::AssertionResult GuardedBuffer::whole() const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto painted = [](const std::byte* from, const std::byte* to) {
    return std::all_of(from, to, [](std::byte byte) { return byte == kPaint; });
  };
  if (!painted(map_ + page, data_)) return ::testing::AssertionFailure() << "bytes before the buffer were written";
  if (!painted(data_ + bytes_, map_ + mapped_ - page)) {
    return ::testing::AssertionFailure() << "bytes behind the buffer were written";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace weft::testing
