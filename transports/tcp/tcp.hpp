// The tcp transport: one listening socket per communicator, wires of several streams.
#pragma once

#include <memory>

#include "transports/transport.hpp"

namespace weft {

Result<std::unique_ptr<Transport>> create_tcp(const TransportContext& context);

}  // namespace weft
