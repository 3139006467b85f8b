// Passes a rank's output on, whole lines at a time.
#pragma once

#include <string>
#include <string_view>

#include "status/fd.hpp"

namespace weft::run {

class Lines {
 public:
  // from: the pipe's end, non-blocking; to: our stdout or stderr.
  Lines(Fd from, int to, std::string prefix) : from_(std::move(from)), to_(to), prefix_(std::move(prefix)) {}

  int fd() const { return from_.get(); }
  bool open() const { return static_cast<bool>(from_); }
  // Reads what is there. At the end of the stream an unfinished last line is completed.
  void pump();
  // Passes on the rest, then closes, even where a process that we do not know still holds the other end.
  void finish();

 private:
  static constexpr size_t kMostHeld = 1 << 16;  // a longer line is passed on in parts

  void take(std::string_view text);
  void close();
  void write(std::string_view text);

  Fd from_;
  int to_;
  std::string prefix_;
  std::string held_;  // the beginning of a line
};

}  // namespace weft::run
