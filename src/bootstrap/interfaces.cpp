#include "bootstrap/interfaces.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <set>

#include "log/log.hpp"

namespace weft {
namespace {

// Interfaces that exist on one host only, or that lead elsewhere than to the other ranks.
bool is_virtual(const std::string& name) {
  static constexpr std::string_view kPrefixes[] = {"docker", "veth",  "br-",  "virbr",  "tun",  "tap", "cni", "flannel",
                                                   "cali",   "vmnet", "vbox", "podman", "kube", "wg",  "lxc", "lxd"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&name](std::string_view prefix) { return name.starts_with(prefix); });
}

struct Selector {
  std::string text;
  bool exact = false;
  bool matches(const std::string& name) const { return exact ? name == text : name.starts_with(text); }
};

struct Selection {
  bool exclude = false;
  std::vector<Selector> selectors;
};

Selection parse_selection(std::string_view text) {
  Selection selection;
  if (text.starts_with('^')) {
    selection.exclude = true;
    text.remove_prefix(1);
  }
  // "=eth0,eth1": as in NCCL the mark stands before the whole list; before a single name it holds for that one.
  const bool all_exact = text.starts_with('=');
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    const bool exact = item.starts_with('=');
    if (exact) item.remove_prefix(1);
    if (!item.empty()) selection.selectors.push_back({std::string(item), exact || all_exact});
  }
  return selection;
}

std::string describe(std::span<const Interface> interfaces) {
  std::string out;
  for (const Interface& entry : interfaces) {
    out += fmt::format("{}{} {}{}", out.empty() ? "" : ", ", entry.name, entry.address.format_host(),
                       entry.up ? "" : " (down)");
  }
  return out.empty() ? "none with an address" : out;
}

// Lower is better: what is real, then what is virtual, then loopback. Among equals IPv4 first, then the kernel's order.
// Link-local addresses come last of their class: they need a scope that only this host can name.
int cost_of(const Interface& entry) {
  int cost = entry.loopback ? 4 : is_virtual(entry.name) ? 2 : 0;
  if (entry.address.is_link_local()) cost += 8;
  return cost * 2 + (entry.address.family() == AF_INET6 ? 1 : 0);
}

std::string passed_over(std::span<const Interface* const> candidates, const Interface* chosen) {
  std::set<std::string> reasons;
  for (const Interface* entry : candidates) {
    if (entry == chosen || cost_of(*entry) <= cost_of(*chosen)) continue;
    if (entry->address.is_link_local()) {
      reasons.insert(fmt::format("{} {} is link-local", entry->name, entry->address.format_host()));
    } else if (entry->loopback) {
      reasons.insert(entry->name + " is loopback");
    } else if (is_virtual(entry->name)) {
      reasons.insert(entry->name + " is a container's, bridge's or tunnel's");
    }
  }
  std::string out;
  for (const std::string& reason : reasons) out += "; " + reason;
  return out;
}

InterfaceChoice best_of(std::span<const Interface* const> candidates, const std::string& why) {
  const Interface* best = *std::min_element(candidates.begin(), candidates.end(),
                                            [](auto* a, auto* b) { return cost_of(*a) < cost_of(*b); });
  return {best->name, best->address, why + passed_over(candidates, best)};
}

}  // namespace

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return system_error(errno, "cannot list the network interfaces (getifaddrs)");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<Interface> out;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    out.push_back({entry->ifa_name, SocketAddress(entry->ifa_addr, bytes),
                   (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0,
                   (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return out;
}

Result<InterfaceChoice> choose_interface(std::span<const Interface> interfaces, std::string_view selection_text,
                                         int family) {
  std::vector<const Interface*> usable;
  for (const Interface& entry : interfaces) {
    if (entry.up && (family == AF_UNSPEC || entry.address.family() == family)) usable.push_back(&entry);
  }
  const Selection selection = parse_selection(selection_text);
  if (selection.selectors.empty()) {
    // Default. A link-local address is of no use to ranks on other hosts; when all else fails loopback is, on one host.
    std::vector<const Interface*> candidates;
    for (const Interface* entry : usable) {
      if (!entry->address.is_link_local()) candidates.push_back(entry);
    }
    if (!candidates.empty()) {
      InterfaceChoice choice = best_of(usable, "first that is up");
      if (choice.address.is_loopback())
        choice.reason =
            "only loopback is usable, so all ranks must be on this host" + passed_over(usable, candidates.front());
      return choice;
    }
  } else if (selection.exclude) {
    std::vector<const Interface*> candidates;
    for (const Interface* entry : usable) {
      const bool excluded = std::any_of(selection.selectors.begin(), selection.selectors.end(),
                                        [entry](const Selector& s) { return s.matches(entry->name); });
      if (!excluded && !entry->address.is_link_local()) candidates.push_back(entry);
    }
    if (!candidates.empty()) return best_of(candidates, fmt::format("first not excluded by \"{}\"", selection_text));
  } else {
    for (const Selector& selector : selection.selectors) {
      std::vector<const Interface*> candidates;
      for (const Interface* entry : usable) {
        if (selector.matches(entry->name)) candidates.push_back(entry);
      }
      if (!candidates.empty()) return best_of(candidates, fmt::format("selected by \"{}\"", selection_text));
    }
  }
  if (selection_text.empty()) {
    return error(weftSystemError, "no network interface is up with a usable {} address; there are: {}",
                 family == AF_UNSPEC ? "IPv4 or IPv6" : family_name(family), describe(interfaces));
  }
  return error(weftInvalidArgument,
               "WEFT_SOCKET_IFNAME=\"{}\" matches no interface that is up{}; there are: {}. Legal: eth (prefix), =eth0 "
               "(exact), ^docker,lo (all but), a,b (list)",
               selection_text, family == AF_UNSPEC ? "" : fmt::format(" with an {} address", family_name(family)),
               describe(interfaces));
}

Result<InterfaceChoice> choose_interface(const Config& config) {
  auto interfaces = list_interfaces();
  if (!interfaces.ok()) return interfaces.status();
  auto choice = choose_interface(*interfaces, config.socket_ifname, family_of(config.socket_family));
  if (choice.ok()) {
    static std::mutex mutex;
    static std::set<std::string> logged;
    std::string line =
        fmt::format("interface {} ({}): {}", choice->name, choice->address.format_host(), choice->reason);
    const std::lock_guard lock(mutex);
    if (logged.insert(line).second) log(LogLevel::info, "{}", line);
  }
  return choice;
}

}  // namespace weft
