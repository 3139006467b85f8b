#include "lines.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace weft::run {

void Lines::pump() {
  char buffer[1 << 16];
  // Bounded, so that a rank that writes without pause leaves us time for signals.
  for (int i = 0; i < 16 && open(); ++i) {
    const ssize_t size = ::read(from_.get(), buffer, sizeof buffer);
    if (size > 0) {
      take({buffer, size_t(size)});
      continue;
    }
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    close();
  }
}

void Lines::finish() {
  // A pipe holds no more than this at once; what a left-over process goes on to write is not waited for.
  for (int i = 0; i < 4 && open(); ++i) pump();
  close();
}

void Lines::take(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end == std::string_view::npos ? end : end + 1);
    held_ += line;
    text.remove_prefix(line.size());
    if (held_.back() != '\n') {
      if (held_.size() < kMostHeld) break;
      held_ += '\n';
    }
    (out += prefix_) += held_;
    held_.clear();
  }
  write(out);
}

void Lines::close() {
  if (!held_.empty()) {
    const std::string last = prefix_ + held_ + "\n";
    held_.clear();
    write(last);
  }
  from_.reset();
}

// Where nobody reads our output any more, we stop reading the rank's, so that it is told the same way as we were.
void Lines::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(to_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(size_t(written));
    } else if (errno == EAGAIN) {
      pollfd wait{to_, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      held_.clear();
      from_.reset();
      return;
    }
  }
}

}  // namespace weft::run
