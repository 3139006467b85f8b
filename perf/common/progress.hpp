// A line on a terminal's standard error while a run takes long; nothing elsewhere.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace weft::perf {

class Progress {
 public:
  explicit Progress(bool wanted);
  ~Progress();
  // What goes on now; shown once it has taken a second or so.
  void at(std::string what);
  // Takes the line away, before something is printed to standard output.
  void clear();

 private:
  void loop();

  bool active_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  bool shown_ = false;
  std::string what_;
  std::chrono::steady_clock::time_point since_;
  std::thread thread_;
};

}  // namespace weft::perf
