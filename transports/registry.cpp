// The table of transports, in order of preference. Adding one is a line here.
#include "transports/loop/loop.hpp"
#include "transports/shm/shm.hpp"
#include "transports/tcp/tcp.hpp"

namespace weft {

std::span<const TransportEntry> transports() {
  static constexpr TransportEntry table[] = {
      {"loop", create_loop},
      {"shm", create_shm},
      {"tcp", create_tcp},
  };
  return table;
}

}  // namespace weft
