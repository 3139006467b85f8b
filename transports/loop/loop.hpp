// Ranks that are threads of one process: rings in ordinary memory, and every view is a plain pointer.
#pragma once

#include "transports/transport.hpp"

namespace weft {

Result<std::unique_ptr<Transport>> create_loop(const TransportContext& context);

}  // namespace weft
