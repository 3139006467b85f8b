// Connects the ranks of one communicator for one transport: a listening socket, dials, and handshakes on both sides, all
// non-blocking. What comes out is an authenticated descriptor. Strangers (wrong secret, silent, garbage) are dropped
// within seconds, a bounded number at a time, and disturb nobody.
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

  // Starts to connect to rank `peer` at a socket address; retries refused connections until the deadline.
  void dial(int peer, uint32_t channel, const sockaddr_storage& address, uint32_t address_bytes, Deadline deadline);
  // Carries everything on; true when anything moved. Callbacks run inside.
  bool progress();

 private:
  struct Pending;
  TransportContext context_;
  char purpose_;
  Fd listener_;
  Ready ready_;
  Failed failed_;
  std::list<Pending> pending_;
};

}  // namespace weft
