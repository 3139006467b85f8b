// The log: silent unless WEFT_DEBUG (WARN, INFO, DEBUG) asks, to stderr or to WEFT_DEBUG_FILE (%h host, %p pid, %r rank).
// Never to stdout.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace weft {

enum class LogLevel : int { none = 0, warn = 1, info = 2, debug = 3 };

bool log_enabled(LogLevel level);
void log_line(LogLevel level, const std::string& text);
// Names this process in its lines ("rank 3") from now on.
void log_set_rank(int rank);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace weft
