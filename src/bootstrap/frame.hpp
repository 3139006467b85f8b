// Length-prefixed messages over a non-blocking stream socket, and the handshake that comes before them.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/handshake.hpp"
#include "status/fd.hpp"
#include "status/status.hpp"

namespace weft {

enum class FrameType : uint8_t {
  join = 'J',        // member -> root: rank, size, host, pid
  welcome = 'W',     // root -> member: all are here; the root's rank, session
  refuse = 'R',      // root -> member: code, text
  contribute = 'C',  // member -> root: round, bytes
  gathered = 'G',    // root -> member: round, all ranks' bytes
  failed = 'F',      // root -> member: round, code, text
  alert = 'A',       // from, text
  lost = 'L',        // root -> member: from
  left = 'Q',        // from
};

struct Frame {
  FrameType type{};
  std::string body;
};

using SharedBytes = std::shared_ptr<const std::string>;
SharedBytes encode_frame(FrameType type, std::string_view body);

class FrameSocket {
 public:
  static constexpr size_t kMaxFrame = size_t{1} << 30;

  explicit FrameSocket(Fd fd, size_t max_frame = kMaxFrame) : fd_(std::move(fd)), max_frame_(max_frame) {}

  int fd() const { return fd_.get(); }
  bool open() const { return bool(fd_); }
  void close() { fd_.reset(); }
  void set_max_frame(size_t bytes) { max_frame_ = bytes; }

  void queue(SharedBytes frame);
  size_t queued() const { return queued_; }
  // Writes what goes now. False: the connection is broken.
  bool flush();
  // Reads what is here now, a bounded amount. False: end of stream or broken; complete frames read before are still in
  // next().
  bool fill();
  std::optional<Frame> next();
  // Bytes sent that the peer's kernel has not acknowledged.
  int unacknowledged() const;

 private:
  Fd fd_;
  size_t max_frame_;
  std::deque<SharedBytes> out_;
  size_t out_offset_ = 0, queued_ = 0;
  std::string in_;
  size_t in_offset_ = 0;
};

// Drives a handshake over a non-blocking socket.
class HandshakeSocket {
 public:
  enum class Step : uint8_t {
    again,   // waits for the peer
    done,    // authenticated, and all is written
    closed,  // the peer closed the connection
    failed,  // `why` says what is wrong with the peer
  };
  HandshakeSocket(Fd fd, Handshake handshake) : fd_(std::move(fd)), handshake_(std::move(handshake)) {}

  int fd() const { return fd_.get(); }
  Step advance(Status* why);
  bool writing() const { return !out_.empty(); }
  bool heard() const { return heard_; }  // whether anything came from the peer at all
  const Hello& hello() const { return handshake_.hello(); }
  Fd release() { return std::move(fd_); }

 private:
  bool write_out();

  Fd fd_;
  Handshake handshake_;
  std::string out_, in_;
  bool heard_ = false;
};

}  // namespace weft
