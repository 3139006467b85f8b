#include "transports/note_stream.hpp"

#include <sys/socket.h>

#include <cerrno>

#include "bootstrap/bytes.hpp"

namespace weft {
namespace {

constexpr uint32_t kLongest = 1 << 20;  // bytes of a note; its length goes before it

}  // namespace

// Edge-triggered: a wire that nobody uses leaves its notes unread, and they must not keep waking a waiter.
Status NoteStream::open(Fd fd, Poller* poller) {
  if (poller != nullptr) WEFT_RETURN_IF_ERROR(poller->add(fd.get(), EPOLLIN | EPOLLRDHUP | EPOLLET));
  poller_ = poller;
  fd_ = std::move(fd);
  flush();
  return {};
}

void NoteStream::send(std::string_view note) {
  put_text(out_, note);
  flush();
}

bool NoteStream::flush() {
  while (fd_ && !out_.empty()) {
    const ssize_t put = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EAGAIN) return false;
    if (put < 0) out_.clear();  // reading tells why
    if (put > 0) out_.erase(0, static_cast<size_t>(put));
  }
  return true;
}

void NoteStream::read() {
  char bytes[4096];
  while (fd_ && !ended_ && in_.size() < 2 * kLongest) {
    const ssize_t got = ::recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    ended_ = got <= 0;
    if (!ended_) in_.append(bytes, static_cast<size_t>(got));
  }
}

std::optional<std::string> NoteStream::next() {
  flush();
  read();
  ByteReader reader(in_);
  const auto bytes = reader.get<uint32_t>();
  if (!reader.ok()) return std::nullopt;
  if (bytes == 0 || bytes > kLongest) {
    in_.clear();
    ended_ = true;
    return std::nullopt;
  }
  std::string note(reader.take(bytes));
  if (!reader.ok()) return std::nullopt;
  in_.erase(0, sizeof bytes + bytes);
  return note;
}

void NoteStream::close() {
  if (!fd_) return;
  if (poller_ != nullptr) poller_->remove(fd_.get());
  // What the kernel still holds for the peer would be lost if there were unread bytes when the socket closes.
  ::shutdown(fd_.get(), SHUT_WR);
  char unread[4096];
  while (::recv(fd_.get(), unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
  fd_.reset();
}

}  // namespace weft
