// Connects the ranks of one communicator for one transport: a listening socket, dials, and handshakes on both sides,
// all non-blocking. What comes out is an authenticated descriptor. Strangers (wrong secret, silent, garbage) are
// dropped within seconds, a bounded number at a time, and disturb nobody.
#pragma once

#include <functional>
#include <list>
#include <string>

#include "transports/transport.hpp"

struct sockaddr_storage;

namespace weft {

class Connector {
 public:
  // An authenticated connection; hello tells peer (hello.from as acceptor, hello.to as dialler) and channel.
  using Ready = std::function<void(const Hello& hello, bool accepted, Fd fd)>;
  // A dial that failed for good: its deadline passed, or the other end is not ours.
  using Failed = std::function<void(const Hello& hello, const Status& why)>;

  // listener: non-blocking and listening; may be empty for a connector that only dials.
  Connector(const TransportContext& context, char purpose, Fd listener, Ready ready, Failed failed);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Starts to connect to rank `peer` at a socket address; the next progress() makes the first try. Retries refused and
  // dropped connections until the deadline.
  void dial(int peer, uint32_t channel, const sockaddr_storage& address, uint32_t address_bytes, Deadline deadline);
  // The same for all of `channels` at an address as a Listener gives it; an error when that cannot be resolved.
  Status dial(int peer, uint32_t channels, const std::string& address, Deadline deadline);
  // Carries everything on; true when anything moved. Callbacks run inside.
  bool progress();
  // An error once somebody has been waiting for half a second whom this process has no descriptors to let in.
  Status starving() const;

 private:
  struct Pending;
  using At = std::list<Pending>::iterator;

  bool accept();
  bool make_room();
  void rest();
  bool advance(At at);
  void retry(Pending& pending);
  void finish(At at);
  void give_up(At at);
  void watch(int fd, uint32_t events);
  void unwatch(int fd);
  void set_timer();

  TransportContext context_;
  char purpose_;
  Fd listener_;
  Ready ready_;
  Failed failed_;
  std::list<Pending> pending_;
  size_t strangers_ = 0;  // accepted ones among them
  uint32_t calls_ = 0;
  bool resting_ = false;  // the listener is not looked at until rest_until_
  Clock::time_point rest_until_{};
  int starved_by_ = 0;  // the error of accept, since starved_since_; 0: none
  Clock::time_point starved_since_{};
  Fd timer_;  // wakes a waiter for the next try or deadline
  Clock::time_point timer_at_ = Clock::time_point::max();
};

}  // namespace weft
