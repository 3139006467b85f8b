// The table of transports, in order of preference. Adding one is a line here.
#include "transports/loop/loop.hpp"
#include "transports/module.hpp"
#include "transports/shm/shm.hpp"
#include "transports/tcp/tcp.hpp"

namespace weft {
namespace {

struct Name {
  char text[8];
};

template <Name name>
Result<std::unique_ptr<Transport>> create_from_module(const TransportContext& context) {
  auto module = transport_module(name.text);
  if (!module.ok()) return module.status();
  return (*module)->create(context);
}

template <Name name>
std::vector<DeviceReport> devices_of_module(const Config& config) {
  auto module = transport_module(name.text);
  return module.ok() ? (*module)->devices(config) : std::vector<DeviceReport>();
}

}  // namespace

std::span<const TransportEntry> transports() {
  static constexpr TransportEntry table[] = {
      {.name = "loop", .create = create_loop},
      {.name = "shm", .create = create_shm},
      {.name = "verbs",
       .create = create_from_module<Name{"verbs"}>,
       .devices = devices_of_module<Name{"verbs"}>,
       .optional = true},
      {.name = "tcp", .create = create_tcp},
      {.name = "ucx",
       .create = create_from_module<Name{"ucx"}>,
       .devices = devices_of_module<Name{"ucx"}>,
       .optional = true,
       .on_request = true},
  };
  return table;
}

}  // namespace weft
