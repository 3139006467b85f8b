// The log: silent unless WEFT_DEBUG (WARN, INFO, DEBUG) asks, to stderr or to WEFT_DEBUG_FILE (%h host, %p pid, %r
// rank). Never to stdout.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <string>
#include <utility>

namespace weft {

enum class LogLevel : int { none = 0, warn = 1, info = 2, debug = 3 };

namespace detail {
extern std::atomic<int> log_level;  // -1: WEFT_DEBUG has not been read yet
int read_log_level();
}  // namespace detail

// One relaxed load.
inline bool log_enabled(LogLevel level) {
  const int now = detail::log_level.load(std::memory_order_relaxed);
  return static_cast<int>(level) <= (now >= 0 ? now : detail::read_log_level());
}
// Writes one line, whole, with time, host, process and rank before it, whatever the level. Lines for a file with %r in
// its name wait in memory until the rank is known.
void log_line(LogLevel level, const std::string& text);
// Names this process in its lines ("rank 3") from now on.
void log_set_rank(int rank);
// Where the lines go: a module's copy of this code hands them to the library's.
struct LogTarget {
  int (*level)() = nullptr;
  void (*line)(LogLevel level, const std::string& text) = nullptr;
};
LogTarget log_target();
void log_redirect(const LogTarget& target);
// Takes up a changed configuration (reread_config); for tests.
void log_reset();
// A path with %h (host), %p (pid), %r (rank, "x" while unknown) and %% filled in. `rank` -1: not known.
std::string expand_path(const std::string& pattern, int rank);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace weft
