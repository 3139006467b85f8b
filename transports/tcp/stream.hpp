// One connection of a wire: frames on their way out, and the reader's position in the bytes that come in. State only;
// what frames mean is the wire's business.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <vector>

#include "status/fd.hpp"
#include "transports/tables.hpp"
#include "transports/tcp/frame.hpp"

namespace weft::tcp {

using Early = ::weft::Early<Frame>;
using EarlyStore = ::weft::EarlyStore<Frame, kEagerBytes>;

// The buffers that one system call reads into or writes from.
struct IoList {
  static constexpr int kMost = 64;
  iovec entries[kMost];
  int count = 0;
  size_t bytes = 0;

  bool full() const { return count == kMost; }
  void add(void* data, size_t size) {
    if (size == 0) return;
    entries[count++] = {data, size};
    bytes += size;
  }
  // Adds bytes [offset, offset + size) of what `pieces` hold one after the other; returns how many fit.
  size_t add(const Piece* pieces, uint32_t piece_count, size_t offset, size_t size);
};

struct OutFrame {
  Frame frame;
  SendRequest* request = nullptr;  // whose source holds the payload, at frame.offset; nullptr: there is none
};

class Stream {
 public:
  // small: a stream for small frames reads ahead, one for fragments does not, so that payload lands where it belongs.
  Stream(Fd fd, bool small) : fd(std::move(fd)), small_(small) { input_.reset(new std::byte[capacity()]); }

  enum class Io { moved, again, failed, ended };

  // Writes queued frames. *written frames at the front are out entirely; the caller pops them with pop_written().
  // `failed`: errno says why.
  Io write();
  bool pop_written(OutFrame* frame);

  // Reads once: into the payload's place, and what follows into the input buffer.
  Io read();
  // The next whole header in the input buffer; only while no payload is open.
  bool next_header(Frame* frame);
  // The payload of the frame just read goes to a request's sink or to an early frame's memory.
  void open(const Frame& frame, RecvRequest* request, Early* early);
  // Takes payload from the input buffer. True when the payload is complete; then it is open no longer.
  bool take_payload();
  bool payload_open() const { return open_; }
  RecvRequest* request() const { return request_; }
  Early* early() const { return early_; }
  const Frame& frame() const { return frame_; }
  void forget() {
    queue.clear();
    open_ = false;
    request_ = nullptr;
    early_ = nullptr;
  }

  Fd fd;
  Queue<OutFrame> queue;
  bool blocked = false;  // the socket takes no more
  bool short_read = false;
  bool bye = false;      // the peer's last frame was here
  bool ended = false;    // and the end of the stream
  uint32_t watched = 0;  // events asked of the poller

 private:
  size_t capacity() const { return small_ ? 64 << 10 : kHeaderBytes; }
  void add_target(IoList& list);
  void arrived(size_t bytes);
  void deliver(const std::byte* data, size_t bytes);

  bool small_;
  size_t sent_ = 0;  // bytes of the front frame, header included

  std::unique_ptr<std::byte[]> input_;
  size_t begin_ = 0, end_ = 0;
  bool open_ = false;
  Frame frame_;
  RecvRequest* request_ = nullptr;
  Early* early_ = nullptr;
  size_t placed_ = 0;   // bytes of the payload that are read
  size_t residue_ = 0;  // of these, bytes at the front of bounce_ that wait for the rest of their element
  std::unique_ptr<std::byte[]> bounce_;
};

}  // namespace weft::tcp
