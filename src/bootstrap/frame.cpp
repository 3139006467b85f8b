#include "bootstrap/frame.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "bootstrap/bytes.hpp"

namespace weft {
namespace {

constexpr size_t kFrameHeaderBytes = 5;
constexpr size_t kReadBytes = 64 << 10;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

SharedBytes encode_frame(FrameType type, std::string_view body) {
  std::string out;
  out.reserve(kFrameHeaderBytes + body.size());
  put(out, static_cast<uint32_t>(body.size()));
  out.push_back(static_cast<char>(type));
  out += body;
  return std::make_shared<const std::string>(std::move(out));
}

void FrameSocket::queue(SharedBytes frame) {
  queued_ += frame->size();
  out_.push_back(std::move(frame));
}

bool FrameSocket::flush() {
  while (open() && !out_.empty()) {
    const std::string& front = *out_.front();
    const ssize_t sent =
        ::send(fd_.get(), front.data() + out_offset_, front.size() - out_offset_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return would_block();
    queued_ -= static_cast<size_t>(sent);
    out_offset_ += static_cast<size_t>(sent);
    if (out_offset_ == front.size()) {
      out_.pop_front();
      out_offset_ = 0;
    }
  }
  return open();
}

bool FrameSocket::fill() {
  if (!open()) return false;
  if (in_offset_ > 0) {
    in_.erase(0, in_offset_);
    in_offset_ = 0;
  }
  const size_t had = in_.size();
  in_.resize(had + kReadBytes);
  ssize_t got;
  do {
    got = ::recv(fd_.get(), in_.data() + had, kReadBytes, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  const bool alive = got > 0 || (got < 0 && would_block());
  in_.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (in_.size() >= kFrameHeaderBytes && ByteReader(in_).get<uint32_t>() > max_frame_) {
    in_.clear();  // a length that no Weft sends: nothing behind it can be trusted
    return false;
  }
  return alive;
}

std::optional<Frame> FrameSocket::next() {
  const std::string_view bytes = std::string_view(in_).substr(in_offset_);
  if (bytes.size() < kFrameHeaderBytes) return std::nullopt;
  const size_t size = ByteReader(bytes).get<uint32_t>();
  if (size > max_frame_ || bytes.size() - kFrameHeaderBytes < size) return std::nullopt;
  Frame frame{static_cast<FrameType>(bytes[4]), std::string(bytes.substr(kFrameHeaderBytes, size))};
  in_offset_ += kFrameHeaderBytes + size;
  return frame;
}

int FrameSocket::unacknowledged() const {
  int bytes = 0;
  return open() && ::ioctl(fd_.get(), SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

bool HandshakeSocket::write_out() {
  out_ += handshake_.take_output();
  while (!out_.empty()) {
    const ssize_t sent = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return would_block();
    out_.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

HandshakeSocket::Step HandshakeSocket::advance(Status* why) {
  while (true) {
    if (!write_out()) return Step::closed;
    if (!out_.empty()) return Step::again;
    if (handshake_.done()) return Step::done;
    const size_t had = in_.size();
    in_.resize(std::max(handshake_.wants(), had));
    const ssize_t got = ::recv(fd_.get(), in_.data() + had, in_.size() - had, MSG_DONTWAIT);
    const int number = errno;
    in_.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return Step::closed;
    if (got < 0 && number == EINTR) continue;
    if (got < 0) return number == EAGAIN || number == EWOULDBLOCK ? Step::again : Step::closed;
    heard_ = true;
    if (in_.size() < handshake_.wants()) continue;
    *why = handshake_.feed({reinterpret_cast<const uint8_t*>(in_.data()), in_.size()});
    in_.clear();
    if (!why->ok()) {
      write_out();  // an acceptor's refusal, so that the peer can say why
      return Step::failed;
    }
  }
}

}  // namespace weft
