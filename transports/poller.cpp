#include "transports/poller.hpp"

#include <cerrno>

namespace weft {

Result<Poller> Poller::create() {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return system_error(errno, "epoll_create1");
  return Poller(std::move(epoll));
}

Status Poller::add(int fd, uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return system_error(errno, "epoll_ctl");
  return {};
}

void Poller::modify(int fd, uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Poller::wait(int timeout_ms) {
  epoll_event event;
  ::epoll_wait(epoll_.get(), &event, 1, timeout_ms);
}

}  // namespace weft
