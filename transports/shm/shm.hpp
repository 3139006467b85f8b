// Processes of one host: rings in a memfd that one side makes and hands over a unix socket. The socket stays: it is how
// a sleeping peer is woken, how descriptors of shared memory travel, and its end of file is how a death is noticed.
//
// Large messages are read in place: from memory of weftMemAlloc through a mapping, from private memory with
// process_vm_readv. Where a container forbids that (found out by trying, at connection), they go through the ring.
#pragma once

#include "transports/transport.hpp"

namespace weft {

Result<std::unique_ptr<Transport>> create_shm(const TransportContext& context);

}  // namespace weft
