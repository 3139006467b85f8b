// The receiving side of the wire, and what goes wrong.
#include <cerrno>
#include <cstring>

#include "transports/clash.hpp"
#include "transports/tcp/wire.hpp"

namespace weft::tcp {
namespace {

// Reads of one stream before the others get their turn.
constexpr int kReads = 8;
constexpr size_t kCacheLine = 64;

// What a wire keeps in a receive request while it holds it.
uint64_t& received(RecvRequest& request) { return request.scratch[0]; }  // payload bytes that are here
uint64_t& begun(RecvRequest& request) { return request.scratch[1]; }     // payload bytes whose header is here

MessageId id_of(const Frame& frame) { return {frame.sequence, frame.index, frame.signature}; }

}  // namespace

void TcpWire::recv(RecvRequest& request) {
  request.done = false;
  if (dead_) return;
  received(request) = begun(request) = 0;
  ++requests_;
  const size_t bytes = request.sink.bytes;
  const bool large = bytes > kEagerBytes;
  if (Early* early = early_.count() > 0 ? early_.find(request.id.key()) : nullptr) {
    if (!matches(request.id, bytes, early->frame)) return;
    if (early->frame.kind == Kind::eager) {
      early->claimed = &request;
      if (early->complete) deliver(*early);
      return;
    }
    early_.release(*early);  // an announce
  }
  posted_.insert(request.id.key(), request);
  if (!large) return;
  ++large_;
  OutFrame out;
  out.frame.kind = Kind::clear;
  out.frame.sequence = request.id.sequence;
  out.frame.index = request.id.index;
  out.frame.signature = request.id.signature;
  out.frame.total = bytes;
  // Fragments are cut at whole cache lines, and at whole elements where those are to be combined.
  const uint32_t element = request.sink.reduce != nullptr ? request.sink.element : 1;
  out.frame.offset = kCacheLine % element == 0 ? kCacheLine : element;
  push(out);
}

// Once: a single read, with or without requests.
bool TcpWire::read(Stream& stream, bool once) {
  bool moved = false;
  for (int reads = 0; reads < (once ? 1 : kReads) && (once || requests_ > 0) && !dead_ && !stream.ended; ++reads) {
    switch (stream.read()) {
      case Stream::Io::again:
        return moved;
      case Stream::Io::failed:
        lost(stream, errno);
        return true;
      case Stream::Io::ended:
        stream.ended = true;
        if (!stream.bye) lost(stream, 0);
        return true;
      case Stream::Io::moved:
        break;
    }
    moved = true;
    const bool drained = stream.short_read;
    parse(stream);
    if (drained) break;
  }
  return moved;
}

void TcpWire::parse(Stream& stream) {
  while (!dead_) {
    if (stream.payload_open()) {
      if (!stream.take_payload()) return;
      finish(stream);
      continue;
    }
    Frame frame;
    if (!stream.next_header(&frame)) return;
    begin(stream, frame);
  }
}

void TcpWire::begin(Stream& stream, const Frame& frame) {
  if (const char* what = fault(frame)) {
    return fail(WireError::Kind::broken, fmt::format("rank {} sent what is no frame of ours: {}", peer(), what));
  }
  switch (frame.kind) {
    case Kind::eager:
      return begin_eager(stream, frame);
    case Kind::data:
      return begin_data(stream, frame);
    case Kind::clear:
      return on_clear(frame);
    case Kind::announce:
      return on_announce(frame);
    case Kind::refuse:
      return on_refuse(frame);
    case Kind::bye:
      stream.bye = true;
      left_ = true;
      return;
  }
}

void TcpWire::begin_eager(Stream& stream, const Frame& frame) {
  if (RecvRequest* request = posted_.find(frame.key())) {
    if (!matches(request->id, request->sink.bytes, frame)) return;
    posted_.take(frame.key());
    return stream.open(frame, request, nullptr);
  }
  if (early_.find(frame.key()) != nullptr) {
    return fail(WireError::Kind::broken,
                fmt::format("rank {} sent message {}.{} twice", peer(), frame.sequence, frame.index));
  }
  stream.open(frame, nullptr, &early_.add(frame));
}

// The length was agreed on before the clear went out; nothing is written unless it still holds.
void TcpWire::begin_data(Stream& stream, const Frame& frame) {
  RecvRequest* request = posted_.find(frame.key());
  if (request == nullptr) {
    return fail(WireError::Kind::broken,
                fmt::format("rank {} sent a fragment of message {}.{}, which is not being received", peer(),
                            frame.sequence, frame.index));
  }
  const Sink& sink = request->sink;
  if (!matches(request->id, sink.bytes, frame)) return;
  begun(*request) += frame.length;
  const bool whole = sink.reduce == nullptr || (frame.offset % sink.element == 0 && frame.length % sink.element == 0);
  if (begun(*request) > sink.bytes || !whole) {
    return fail(WireError::Kind::broken, fmt::format("rank {} sent fragments of message {}.{} that do not make it up",
                                                     peer(), frame.sequence, frame.index));
  }
  stream.open(frame, request, nullptr);
}

void TcpWire::finish(Stream& stream) {
  if (Early* early = stream.early()) {
    early->complete = true;
    if (early->claimed != nullptr) deliver(*early);
    return;
  }
  RecvRequest& request = *stream.request();
  received(request) += stream.frame().length;
  if (received(request) < request.sink.bytes) return;
  if (request.sink.bytes > kEagerBytes) {
    posted_.take(request.id.key());
    --large_;
  }
  arrived(request);
}

void TcpWire::deliver(Early& early) {
  RecvRequest& request = *early.claimed;
  request.sink.consume(0, early.data.get(), early.frame.length);
  early_.release(early);
  arrived(request);
}

void TcpWire::arrived(RecvRequest& request) {
  --requests_;
  ++stats_.messages_received;
  stats_.bytes_received += request.sink.bytes;
  request.done = true;
}

void TcpWire::on_clear(const Frame& frame) {
  SendRequest* request = waiting_.find(frame.key());
  if (request == nullptr) {
    if (early_clears_.find(frame.key()) == nullptr) early_clears_.add(frame);
    return;
  }
  if (!matches(request->id, request->source.bytes, frame)) return;
  waiting_.take(frame.key());
  cleared(*request, frame.offset);
}

// A large message waits over there. If we expect it we have said so already; else this is for our recv() to find.
void TcpWire::on_announce(const Frame& frame) {
  if (RecvRequest* request = posted_.find(frame.key())) {
    matches(request->id, request->sink.bytes, frame);
  } else if (early_.find(frame.key()) == nullptr) {
    early_.add(frame);
  }
}

void TcpWire::on_refuse(const Frame& frame) {
  const MessageId theirs = id_of(frame);
  MessageId ours = theirs;
  ours.signature = static_cast<uint32_t>(frame.offset);
  fail(refusal(peer(), ours, theirs, frame.total));
}

bool TcpWire::matches(const MessageId& ours, size_t bytes, const Frame& theirs) {
  std::optional<WireError> error = clash(peer(), ours, bytes, id_of(theirs), theirs.total);
  if (!error.has_value()) return true;
  OutFrame out;
  out.frame.kind = Kind::refuse;
  out.frame.sequence = ours.sequence;
  out.frame.index = ours.index;
  out.frame.signature = ours.signature;
  out.frame.offset = theirs.signature;
  out.frame.total = bytes;
  push(out);
  fail(std::move(*error));
  if (Stream* stream = small()) write(*stream);
  return false;
}

// The peer may have told us why on the first stream before it went.
void TcpWire::lost(const Stream& stream, int number) {
  if (dead_ || losing_) return;
  losing_ = true;
  if (Stream* first = small(); first != nullptr && !(&stream == first && number == 0)) {
    while (read(*first, true) && !dead_ && !first->ended && !first->short_read) continue;
  }
  losing_ = false;
  fail(WireError::Kind::closed, number == 0 ? fmt::format("rank {} closed its connection without a goodbye", peer())
                                            : fmt::format("connection to rank {}: {}", peer(), std::strerror(number)));
}

// After a goodbye nothing new comes; what the peer sent before may still be in the other streams.
void TcpWire::check_left() {
  if (requests_ == 0) return;
  for (auto& stream : streams_) {
    if (stream && !stream->bye && (large_ > 0 || stream == streams_[0])) return;
  }
  fail(WireError::Kind::closed, fmt::format("rank {} has left, with messages to or from it outstanding", peer()));
}

void TcpWire::fail(WireError why) {
  dead_ = true;
  if (error_.kind == WireError::Kind::none) error_ = std::move(why);
}

}  // namespace weft::tcp
