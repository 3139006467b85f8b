#include "log/log.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <mutex>
#include <system_error>

#include "config/config.hpp"
#include "status/fd.hpp"

namespace weft {
namespace detail {
std::atomic<int> log_level{-1};
}

namespace {

constexpr size_t kMostWaiting = size_t{1} << 20;  // bytes of lines that wait for the rank

struct Sink {
  std::mutex mutex;
  bool opened = false;
  Fd file;  // empty: standard error
  int rank = -1;
  std::string waiting;
};

// Never destroyed: threads may log while the process ends. Its lines are flushed by `at_exit`.
Sink& sink() {
  static Sink* const only = new Sink;
  return *only;
}

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

// One write() for whole lines, so that lines of processes that share the file do not mix.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(size_t(written));
  }
}

const std::string& file_pattern() {
  static const std::string& none = *new std::string;
  return config().ok() ? config().value().debug_file : none;
}

// A file that cannot be opened is said once on standard error, and standard error takes the lines.
void open(Sink& to, int rank) {
  to.opened = true;
  if (!file_pattern().empty()) {
    const std::string path = expand_path(file_pattern(), rank);
    to.file = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!to.file) {
      const std::string why = std::generic_category().message(errno);
      write_all(STDERR_FILENO, fmt::format("weft: WEFT_DEBUG_FILE={}: {}; logging to standard error\n", path, why));
    }
  }
  write_all(to.file ? to.file.get() : STDERR_FILENO, to.waiting);
  to.waiting.clear();
}

int rank_known(const Sink& to) {
  if (to.rank >= 0) return to.rank;
  return config().ok() ? int(config().value().rank) : -1;
}

struct AtExit {
  ~AtExit() {
    Sink& to = sink();
    const std::lock_guard lock(to.mutex);
    if (!to.opened && !to.waiting.empty()) open(to, -1);
  }
} at_exit;

constexpr std::string_view kNames[] = {"", "WARN", "INFO", "DEBUG"};

}  // namespace

namespace {
LogTarget redirected;  // set once, before anything is logged
}

LogTarget log_target() { return {.level = detail::read_log_level, .line = log_line}; }
void log_redirect(const LogTarget& target) { redirected = target; }

int detail::read_log_level() {
  if (redirected.level != nullptr) return redirected.level();
  const auto& settings = config();
  // config() logs once it is read, and then the level is known already.
  int level = log_level.load(std::memory_order_relaxed);
  if (level >= 0) return level;
  const std::string& name = settings.ok() ? settings.value().debug : "none";
  level = name == "warn" ? 1 : name == "info" ? 2 : name == "debug" ? 3 : 0;
  log_level.store(level, std::memory_order_relaxed);
  return level;
}

void log_line(LogLevel level, const std::string& text) {
  if (redirected.line != nullptr) return redirected.line(level, text);
  const auto now = std::chrono::system_clock::now();
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  static const std::string& host = *new std::string(host_name());
  Sink& to = sink();
  const std::lock_guard lock(to.mutex);
  const int rank = rank_known(to);
  const std::string line = fmt::format(
      "{:%Y-%m-%d %H:%M:%S}.{:03} {}:{}{} weft {} {}\n", fmt::localtime(std::chrono::system_clock::to_time_t(now)),
      millis, host, ::getpid(), rank >= 0 ? fmt::format(" rank {}", rank) : "", kNames[int(level)], text);
  if (!to.opened) {
    const bool needs_rank = file_pattern().find("%r") != std::string::npos;
    if (needs_rank && rank < 0 && to.waiting.size() < kMostWaiting) {
      to.waiting += line;
      return;
    }
    open(to, rank);
  }
  write_all(to.file ? to.file.get() : STDERR_FILENO, line);
}

void log_set_rank(int rank) {
  Sink& to = sink();
  const std::lock_guard lock(to.mutex);
  to.rank = rank;
  if (!to.opened && !to.waiting.empty()) open(to, rank);
}

void log_reset() {
  Sink& to = sink();
  const std::lock_guard lock(to.mutex);
  to.opened = false;
  to.file.reset();
  to.rank = -1;
  to.waiting.clear();
  detail::log_level.store(-1, std::memory_order_relaxed);
}

std::string expand_path(const std::string& pattern, int rank) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      path += pattern[i];
      continue;
    }
    switch (pattern[++i]) {
      case 'h':
        path += host_name();
        break;
      case 'p':
        path += std::to_string(::getpid());
        break;
      case 'r':
        path += rank >= 0 ? std::to_string(rank) : "x";
        break;
      case '%':
        path += '%';
        break;
      default:
        (path += '%') += pattern[i];
    }
  }
  return path;
}

}  // namespace weft
