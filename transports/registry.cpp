// The table of transports, in order of preference. Adding one is a line here.
#include "transports/loop/loop.hpp"
#include "transports/module.hpp"
#include "transports/shm/shm.hpp"
#include "transports/tcp/tcp.hpp"

namespace weft {
namespace {

Result<std::unique_ptr<Transport>> create(const char* module_name, const TransportContext& context) {
  auto module = transport_module(module_name);
  if (!module.ok()) return module.status();
  return (*module)->create(context);
}

std::vector<DeviceReport> devices(const char* module_name, const Config& config) {
  auto module = transport_module(module_name);
  return module.ok() ? (*module)->devices(config) : std::vector<DeviceReport>();
}

}  // namespace

std::span<const TransportEntry> transports() {
  static constexpr TransportEntry table[] = {
      {.name = "loop", .create = create_loop},
      {.name = "shm", .create = create_shm},
      {.name = "verbs",
       .create = [](const TransportContext& context) { return create("verbs", context); },
       .devices = [](const Config& config) { return devices("verbs", config); },
       .optional = true},
      {.name = "tcp", .create = create_tcp},
      {.name = "ucx",
       .create = [](const TransportContext& context) { return create("ucx", context); },
       .devices = [](const Config& config) { return devices("ucx", config); },
       .optional = true,
       .on_request = true},
  };
  return table;
}

}  // namespace weft
