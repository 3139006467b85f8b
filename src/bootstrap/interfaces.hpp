// Which of this host's addresses the other ranks are told to connect to. Pure over a table, so that tests can mock it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/address.hpp"
#include "config/config.hpp"
#include "status/status.hpp"

namespace weft {

struct Interface {
  std::string name;
  SocketAddress address;  // port 0
  bool up = true;
  bool loopback = false;
};
// One entry per address of the host, in the kernel's order.
Result<std::vector<Interface>> list_interfaces();

struct InterfaceChoice {
  std::string name;
  SocketAddress address;
  std::string reason;  // why this one, and why others were passed over
};
// Selection forms: "eth" prefix, "=eth0" exact, "^docker,lo" all but these prefixes (^=eth0: exact), "a,b" a list,
// where the first that exists here is used, so that ranks may differ. Empty: the first that is up, neither loopback nor
// a container's, bridge's or tunnel's interface; those only when there is nothing else, loopback last. Link-local IPv6
// addresses are used only when selected by name, with their scope. No match is an error that lists the interfaces.
Result<InterfaceChoice> choose_interface(std::span<const Interface> interfaces, std::string_view selection, int family);
// The same on this host, by the configuration. Logged at info, once per process and choice.
Result<InterfaceChoice> choose_interface(const Config& config);

}  // namespace weft
