#include "transports/ucx/control.hpp"

#include <sys/socket.h>

#include <cerrno>

namespace weft::ucx {

Control::Control(Control&& other) noexcept
    : fd_(std::move(other.fd_)),
      poller_(other.poller_),
      out_(std::move(other.out_)),
      have_(other.have_),
      in_(other.in_),
      ended_(other.ended_) {}

// Edge-triggered: a wire that nobody uses leaves its notes unread, and they must not keep waking a waiter.
Status Control::open(Fd fd, Poller* poller) {
  if (poller != nullptr) WEFT_RETURN_IF_ERROR(poller->add(fd.get(), EPOLLIN | EPOLLRDHUP | EPOLLET));
  poller_ = poller;
  fd_ = std::move(fd);
  return {};
}

void Control::close() {
  if (!fd_) return;
  if (poller_ != nullptr) poller_->remove(fd_.get());
  // What the kernel still holds for the peer would be lost if there were unread bytes when the socket closes.
  ::shutdown(fd_.get(), SHUT_WR);
  char unread[4096];
  while (::recv(fd_.get(), unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
  fd_.reset();
}

void Control::abandon() { fd_.reset(); }

void Control::send(const Note& note) {
  if (!fd_) return;
  out_.append(reinterpret_cast<const char*>(&note), sizeof note);
  flush();
}

void Control::flush() {
  if (out_.empty()) return;
  const ssize_t put = ::send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (put > 0) out_.erase(0, static_cast<size_t>(put));
}

bool Control::read(Note* note) {
  if (!fd_ || ended_) return false;
  flush();
  while (have_ < sizeof in_) {
    const ssize_t got = ::recv(fd_.get(), reinterpret_cast<char*>(&in_) + have_, sizeof in_ - have_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) {
      ended_ = true;
      return false;
    }
    have_ += static_cast<size_t>(got);
  }
  have_ = 0;
  ended_ = in_.magic != Note::kMagic;
  *note = in_;
  return !ended_;
}

}  // namespace weft::ucx
