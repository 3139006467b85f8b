// One epoll set: where a waiter sleeps until any of its descriptors has something.
#pragma once

#include <sys/epoll.h>

#include "status/fd.hpp"
#include "status/status.hpp"

namespace weft {

class Poller {
 public:
  static Result<Poller> create();

  Status add(int fd, uint32_t events);
  void modify(int fd, uint32_t events);
  void remove(int fd);
  // Sleeps until a descriptor is ready or `timeout_ms` is over, EINTR included. Level-triggered, tells nothing of
  // which.
  void wait(int timeout_ms);
  // Readable when any descriptor in the set is: poll sets nest.
  int fd() const { return epoll_.get(); }

 private:
  explicit Poller(Fd epoll) : epoll_(std::move(epoll)) {}
  Fd epoll_;
};

}  // namespace weft
