// The connection on which two wires exchange notes. It is authenticated, it closes with the process at the other end,
// and what is written to it before it is closed still arrives.
#pragma once

#include <string>

#include "status/fd.hpp"
#include "transports/poller.hpp"
#include "transports/ucx/frame.hpp"

namespace weft::ucx {

class Control {
 public:
  Control() = default;
  Control(Control&& other) noexcept;
  Control& operator=(Control&&) = delete;
  ~Control() { close(); }

  Status open(Fd fd, Poller* poller);
  void close();
  // In a child of the process that it belongs to: whatever is known of it to others stays.
  void abandon();
  bool is_open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }

  void send(const Note& note);
  // The next note; false when there is none yet.
  bool read(Note* note);
  // The other end is gone, and all it wrote is read; or what it wrote is not ours.
  bool ended() const { return ended_; }

 private:
  void flush();

  Fd fd_;
  Poller* poller_ = nullptr;
  std::string out_;  // what the socket has not taken
  size_t have_ = 0;  // bytes of the note that is coming in
  Note in_;
  bool ended_ = false;
};

}  // namespace weft::ucx
