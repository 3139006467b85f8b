#include "transports/tcp/wire.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace weft::tcp {
namespace {

// Progress calls of a waiter (about one a millisecond) after which a large send asks for its clear.
constexpr uint64_t kPatience = 3;
// Fragments that one stream takes in a row before the others and the reader get their turn.
constexpr int kBurst = 4;
// What a wire without requests keeps of messages that come anyway.
constexpr size_t kIdleBytes = 64 << 10;
constexpr auto kFlushTime = std::chrono::milliseconds(1000);

Frame frame_of(Kind kind, const MessageId& id, uint64_t total) {
  Frame frame;
  frame.kind = kind;
  frame.sequence = id.sequence;
  frame.index = id.index;
  frame.signature = id.signature;
  frame.total = total;
  return frame;
}

// What a wire keeps in a send request while it holds it.
uint64_t& cut(SendRequest& request) { return request.scratch[0]; }       // bytes given to streams
uint64_t& unsent(SendRequest& request) { return request.scratch[1]; }    // bytes that the sockets have not taken
uint64_t& unit(SendRequest& request) { return request.scratch[2]; }      // of fragments, once cleared
uint64_t& patience(SendRequest& request) { return request.scratch[2]; }  // ticks waited, until cleared

}  // namespace

TcpWire::TcpWire(int peer, Poller* poller, std::function<void()> on_gone)
    : Wire(peer), poller_(poller), on_gone_(std::move(on_gone)) {}

TcpWire::~TcpWire() {
  drop_streams();
  gone();
}

void TcpWire::gone() {
  if (on_gone_) std::exchange(on_gone_, nullptr)();
}

void TcpWire::adopt(uint32_t channel, Fd fd) {
  if (dead_) return;
  if (streams_.size() <= channel) streams_.resize(channel + 1);
  if (streams_[channel]) return;
  // Edge-triggered, because the wire leaves bytes unread while it holds no request: they must not keep waking a waiter.
  // Before every sleep arm() has read until nothing was left, so that no edge is missed.
  const uint32_t events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  if (poller_ != nullptr) {
    if (const Status added = poller_->add(fd.get(), events); !added.ok()) {
      return fail(WireError::Kind::broken, added.message());
    }
  }
  streams_[channel] = std::make_unique<Stream>(std::move(fd), channel == 0);
  streams_[channel]->watched = events;
  if (channel != 0) return;
  for (; !unconnected_.empty(); unconnected_.pop()) streams_[0]->queue.push(unconnected_.front());
}

void TcpWire::connection_failed(const std::string& why) { fail(WireError::Kind::closed, why); }

size_t TcpWire::streams() const {
  return static_cast<size_t>(std::count_if(streams_.begin(), streams_.end(), [](auto& stream) { return !!stream; }));
}

void TcpWire::send(SendRequest& request) {
  request.done = false;
  if (dead_) return;
  const size_t bytes = request.source.bytes;
  cut(request) = 0;
  unsent(request) = bytes;
  patience(request) = 0;
  ++requests_;
  Early* clear = early_clears_.count() > 0 ? early_clears_.find(request.id.key()) : nullptr;
  size_t fragment_unit = 0;
  if (clear != nullptr) {
    if (!matches(request.id, bytes, clear->frame)) return;
    fragment_unit = clear->frame.offset;
    early_clears_.release(*clear);
  }
  if (bytes <= kEagerBytes) {
    OutFrame out{frame_of(Kind::eager, request.id, bytes), &request};
    out.frame.length = static_cast<uint32_t>(bytes);
    push(out);
    if (Stream* stream = small()) write(*stream);
  } else if (fragment_unit > 0) {
    cleared(request, fragment_unit);
    write_all();
  } else {
    waiting_.insert(request.id.key(), request);
  }
}

void TcpWire::push(const OutFrame& out) { (small() != nullptr ? small()->queue : unconnected_).push(out); }

void TcpWire::cleared(SendRequest& request, size_t fragment_unit) {
  unit(request) = fragment_unit;
  request.next = nullptr;
  for (Flow& flow : flows_) {
    if (flow.sequence != request.id.sequence) continue;
    flow.tail->next = &request;
    flow.tail = &request;
    return;
  }
  flows_.push_back({request.id.sequence, &request, &request});
}

// Gives an idle stream the next fragment. Operations take turns, so that a small one overtakes a large one; within an
// operation the older message goes first, so that the receiver can forward it early.
bool TcpWire::next_fragment(Stream& stream) {
  if (flows_.empty()) return false;
  if (next_flow_ >= flows_.size()) next_flow_ = 0;
  Flow& flow = flows_[next_flow_];
  SendRequest& request = *flow.head;
  const size_t step = kFragmentBytes - kFragmentBytes % unit(request);
  const size_t length = std::min<size_t>(step, request.source.bytes - cut(request));
  OutFrame out{frame_of(Kind::data, request.id, request.source.bytes), &request};
  out.frame.offset = cut(request);
  out.frame.length = static_cast<uint32_t>(length);
  cut(request) += length;
  stream.queue.push(out);
  if (cut(request) == request.source.bytes) {
    flow.head = request.next;
    if (flow.head == nullptr) {
      flows_.erase(flows_.begin() + static_cast<std::ptrdiff_t>(next_flow_));
      return true;
    }
  }
  ++next_flow_;
  return true;
}

void TcpWire::written(const OutFrame& out) {
  if (out.request == nullptr) return;
  SendRequest& request = *out.request;
  unsent(request) -= out.frame.length;
  if (unsent(request) > 0) return;
  --requests_;
  ++stats_.messages_sent;
  stats_.bytes_sent += request.source.bytes;
  request.done = true;
}

bool TcpWire::write(Stream& stream) {
  bool moved = false;
  while (!stream.queue.empty()) {
    const Stream::Io io = stream.write();
    if (io == Stream::Io::failed) {
      lost(stream, errno);
      return true;
    }
    if (io == Stream::Io::again) break;
    moved = true;
    OutFrame out;
    while (stream.pop_written(&out)) written(out);
    if (stream.blocked) break;
  }
  return moved;
}

bool TcpWire::write_all() {
  bool moved = false;
  if (Stream* stream = small(); stream != nullptr && !stream->queue.empty()) moved |= write(*stream);
  // Fragments go over the streams behind the first; over the first only while it is alone.
  bool others = false;
  for (size_t i = streams_.size(); i-- > 0 && !dead_;) {
    if (!streams_[i] || (i == 0 && others)) continue;
    others = true;
    Stream& stream = *streams_[i];
    if (!stream.queue.empty()) moved |= write(stream);
    for (int burst = 0; burst < kBurst && !dead_ && stream.queue.empty() && next_fragment(stream); ++burst) {
      moved |= write(stream);
    }
  }
  return moved;
}

bool TcpWire::progress() {
  if (dead_) {
    if (Stream* stream = small(); stream != nullptr && !stream->queue.empty()) write(*stream);
    return false;
  }
  if (requests_ == 0) return false;
  bool moved = false;
  if (Stream* stream = small()) moved |= read(*stream);
  for (size_t i = 1; i < streams_.size() && large_ > 0 && !dead_; ++i) {
    if (streams_[i]) moved |= read(*streams_[i]);
  }
  if (!dead_) moved |= write_all();
  if (!dead_ && left_) check_left();
  return moved;
}

bool TcpWire::arm() {
  if (progress() || error_.kind != WireError::Kind::none) return false;
  if (poller_ == nullptr) return true;
  for (auto& stream : streams_) {
    if (!stream) continue;
    uint32_t events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    if (!stream->queue.empty()) events |= EPOLLOUT;
    if (events == stream->watched) continue;
    stream->watched = events;
    poller_->modify(stream->fd.get(), events);
  }
  return true;
}

// Nobody reads here now, so that a death would go unseen, and so would a message of a call that we do not expect. Takes
// a little of what is there; when it holds enough of that, only looks. (A goodbye is a frame, and would be there.)
void TcpWire::look(Stream& stream) {
  if (early_.bytes() < kIdleBytes) {
    read(stream, true);
    return;
  }
  char byte;
  const ssize_t got = ::recv(stream.fd.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0) lost(stream, 0);
  if (got < 0 && errno != EAGAIN && errno != EINTR) lost(stream, errno);
}

void TcpWire::tick() {
  Stream* stream = small();
  if (dead_ || stream == nullptr) return;
  if (requests_ == 0 && !left_) return look(*stream);
  if (waiting_.empty()) return;
  waiting_.for_each([&](SendRequest& request) {
    if (++patience(request) == kPatience) push({frame_of(Kind::announce, request.id, request.source.bytes), nullptr});
  });
  write(*stream);
}

void TcpWire::early(std::vector<MessageId>* ids) const {
  early_.for_each([ids](const Early& early) {
    ids->push_back({early.frame.sequence, early.frame.index, early.frame.signature});
  });
}

void TcpWire::drop_streams() {
  for (auto& stream : streams_) {
    if (!stream) continue;
    if (poller_ != nullptr) poller_->remove(stream->fd.get());
    ::shutdown(stream->fd.get(), SHUT_RDWR);
  }
  streams_.clear();
}

void TcpWire::cancel() {
  dead_ = true;
  drop_streams();
  unconnected_.clear();
  posted_.clear();
  waiting_.clear();
  early_.clear();
  early_clears_.clear();
  flows_.clear();
  requests_ = large_ = 0;
  gone();
}

void TcpWire::flush(Deadline deadline) {
  for (;;) {
    pollfd waits[64];
    nfds_t count = 0;
    for (auto& stream : streams_) {
      if (!stream || stream->queue.empty() || count == 64) continue;
      const Stream::Io io = stream->write();
      OutFrame out;
      while (stream->pop_written(&out)) written(out);
      if (io == Stream::Io::failed) stream->queue.clear();
      if (!stream->queue.empty()) waits[count++] = {stream->fd.get(), POLLOUT, 0};
    }
    if (count == 0 || deadline.passed()) return;
    ::poll(waits, count, deadline.left_ms(100));
  }
}

void TcpWire::close() {
  if (dead_) return cancel();
  dead_ = true;
  OutFrame bye;
  for (auto& stream : streams_) {
    if (stream) stream->queue.push(bye);
  }
  flush(Deadline::after(kFlushTime));
  for (auto& stream : streams_) {
    if (!stream) continue;
    // What the kernel still holds for the peer would be lost if there were unread bytes when the socket closes.
    ::shutdown(stream->fd.get(), SHUT_WR);
    char unread[4096];
    while (::recv(stream->fd.get(), unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
    if (poller_ != nullptr) poller_->remove(stream->fd.get());
  }
  streams_.clear();
  cancel();
}

}  // namespace weft::tcp
