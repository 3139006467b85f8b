#include "transports/tcp/stream.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace weft::tcp {
namespace {

// Reductions pass through this much memory at a time: enough for a system call to be worth it, and little enough to be
// still in the second-level cache when it is combined.
constexpr size_t kBounceBytes = 128 << 10;

Stream::Io failure() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Stream::Io::again : Stream::Io::failed;
}

}  // namespace

size_t IoList::add(const Piece* pieces, uint32_t piece_count, size_t offset, size_t size) {
  size_t added = 0, at = 0;
  for (uint32_t i = 0; i < piece_count && added < size && !full(); ++i) {
    const size_t end = at + pieces[i].bytes;
    if (offset < end) {
      const size_t take = std::min(size - added, end - offset);
      add(pieces[i].data + (offset - at), take);
      added += take;
      offset += take;
    }
    at = end;
  }
  return added;
}

Stream::Io Stream::write() {
  IoList list;
  size_t skip = sent_;
  for (size_t i = 0; i < queue.size() && list.count + 2 <= IoList::kMost; ++i) {
    OutFrame& out = queue[i];
    const size_t header = std::min(skip, kHeaderBytes);
    list.add(reinterpret_cast<std::byte*>(&out.frame) + header, kHeaderBytes - header);
    if (out.request != nullptr && out.frame.length > 0) {
      const size_t done = skip - header, left = out.frame.length - done;
      const Source& source = out.request->source;
      if (list.add(source.pieces, source.count, out.frame.offset + done, left) < left) break;
    }
    skip = 0;
  }
  msghdr message{};
  message.msg_iov = list.entries;
  message.msg_iovlen = static_cast<size_t>(list.count);
  const ssize_t put = ::sendmsg(fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (put < 0) {
    blocked = true;
    return failure();
  }
  sent_ += static_cast<size_t>(put);
  blocked = static_cast<size_t>(put) < list.bytes;
  return Io::moved;
}

bool Stream::pop_written(OutFrame* frame) {
  if (queue.empty()) return false;
  const size_t bytes = kHeaderBytes + queue.front().frame.length;
  if (sent_ < bytes) return false;
  sent_ -= bytes;
  *frame = queue.front();
  queue.pop();
  return true;
}

void Stream::add_target(IoList& list) {
  const size_t left = frame_.length - placed_;
  if (early_ != nullptr) {
    list.add(early_->data.get() + placed_, left);
  } else if (request_->sink.reduce != nullptr) {
    list.add(bounce_.get() + residue_, std::min(left, kBounceBytes - residue_));
  } else {
    list.add(request_->sink.dst, request_->sink.count, frame_.offset + placed_, left);
  }
}

// Behind a payload of which we read the rest, the same call reads the next header. After a fragment it reads no more
// than that, because what follows is likely another fragment, and that is to be read to where it belongs.
Stream::Io Stream::read() {
  IoList list;
  bool tail = true;
  size_t payload = 0;
  if (open_) {
    add_target(list);
    payload = list.bytes;
    tail = placed_ + payload == frame_.length && !list.full();
  }
  if (tail) {
    if (begin_ > 0) {
      std::memmove(input_.get(), input_.get() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    const size_t most = frame_.kind == Kind::data ? kHeaderBytes : capacity();
    if (most > end_) list.add(input_.get() + end_, most - end_);
  }
  ssize_t got;
  if (list.count == 1) {
    got = ::recv(fd.get(), list.entries[0].iov_base, list.entries[0].iov_len, MSG_DONTWAIT);
  } else {
    msghdr message{};
    message.msg_iov = list.entries;
    message.msg_iovlen = static_cast<size_t>(list.count);
    got = ::recvmsg(fd.get(), &message, MSG_DONTWAIT);
  }
  short_read = got < static_cast<ssize_t>(list.bytes);
  if (got < 0) return failure();
  if (got == 0) return Io::ended;
  const size_t direct = std::min(payload, static_cast<size_t>(got));
  if (direct > 0) arrived(direct);
  end_ += static_cast<size_t>(got) - direct;
  return Io::moved;
}

bool Stream::next_header(Frame* frame) {
  if (end_ - begin_ < kHeaderBytes) return false;
  std::memcpy(frame, input_.get() + begin_, kHeaderBytes);
  begin_ += kHeaderBytes;
  if (begin_ == end_) begin_ = end_ = 0;
  frame_ = *frame;
  return true;
}

void Stream::open(const Frame& frame, RecvRequest* request, Early* early) {
  frame_ = frame;
  request_ = request;
  early_ = early;
  placed_ = residue_ = 0;
  open_ = true;
  if (request != nullptr && request->sink.reduce != nullptr && !bounce_) bounce_.reset(new std::byte[kBounceBytes]);
}

bool Stream::take_payload() {
  const size_t here = std::min(end_ - begin_, frame_.length - placed_);
  if (here > 0) {
    deliver(input_.get() + begin_, here);
    begin_ += here;
    if (begin_ == end_) begin_ = end_ = 0;
  }
  if (placed_ < frame_.length) return false;
  open_ = false;
  return true;
}

// `bytes` more of the payload stand where add_target said. A reduction combines the whole elements among them.
void Stream::arrived(size_t bytes) {
  placed_ += bytes;
  if (early_ != nullptr || request_->sink.reduce == nullptr) return;
  const size_t from = placed_ - bytes - residue_;
  const size_t held = residue_ + bytes;
  residue_ = held % request_->sink.element;
  request_->sink.consume(frame_.offset + from, bounce_.get(), held - residue_);
  if (residue_ > 0) std::memmove(bounce_.get(), bounce_.get() + held - residue_, residue_);
}

// `bytes` of the payload are in the input buffer.
void Stream::deliver(const std::byte* data, size_t bytes) {
  if (early_ != nullptr) {
    std::memcpy(early_->data.get() + placed_, data, bytes);
    placed_ += bytes;
    return;
  }
  const Sink& sink = request_->sink;
  if (sink.reduce == nullptr) {
    sink.consume(frame_.offset + placed_, data, bytes);
    placed_ += bytes;
    return;
  }
  const size_t whole = residue_ == 0 ? bytes - bytes % sink.element : 0;
  sink.consume(frame_.offset + placed_, data, whole);
  placed_ += whole;
  while (bytes > whole) {
    const size_t part = std::min(bytes - whole, kBounceBytes - residue_);
    std::memcpy(bounce_.get() + residue_, data + whole, part);
    arrived(part);
    data += part;
    bytes -= part;
  }
}

}  // namespace weft::tcp
