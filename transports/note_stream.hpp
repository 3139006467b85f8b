// The connection beside a wire's own way of moving messages (verbs, ucx): the two ends tell each other notes over it.
// It is authenticated, it closes with the process at the other end, and what is written to it before it is closed still
// arrives. Nothing blocks; what cannot be sent at once waits for the next call.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "status/fd.hpp"
#include "transports/poller.hpp"

namespace weft {

class NoteStream {
 public:
  NoteStream() = default;
  NoteStream(NoteStream&& other) noexcept = default;
  NoteStream& operator=(NoteStream&&) = delete;
  ~NoteStream() { close(); }

  // Takes over a connection, and sends what was told before. The poller may be null.
  Status open(Fd fd, Poller* poller);
  bool is_open() const { return static_cast<bool>(fd_); }
  // 1 byte to 1 MiB.
  void send(std::string_view note);
  // True: all is out, or never will be.
  bool flush();
  // The next note, once it is here.
  std::optional<std::string> next();
  // The other end is gone, or what it sent is no note; those that came before may still be there.
  bool ended() const { return ended_; }
  void close();
  // In a child of the process that it belongs to: whatever is known of it to others stays.
  void abandon() { fd_.reset(); }

 private:
  void read();

  Fd fd_;
  Poller* poller_ = nullptr;
  std::string in_, out_;
  bool ended_ = false;
};

}  // namespace weft
