#include "transports/verbs/device.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "log/log.hpp"
#include "status/process.hpp"

namespace weft::verbs {
namespace {

struct DeviceList {
  DeviceList() : list(::ibv_get_device_list(&count)) {}
  ~DeviceList() {
    if (list != nullptr) ::ibv_free_device_list(list);
  }
  int count = 0;
  ibv_device** list;
};

struct OpenContext {
  explicit OpenContext(ibv_device* device) : context(::ibv_open_device(device)) {}
  ~OpenContext() {
    if (context != nullptr) ::ibv_close_device(context);
  }
  ibv_context* context;
};

double gbits_of(const ibv_port_attr& port) {
  const double lane = [&] {
    switch (port.active_speed) {
      case 1:
        return 2.5;
      case 2:
        return 5.0;
      case 4:
      case 8:
        return 10.0;
      case 16:
        return 14.0;
      case 32:
        return 25.0;
      case 64:
        return 50.0;
      case 128:
        return 100.0;
      default:
        return 0.0;
    }
  }();
  const double lanes = port.active_width == 1 ? 1 : port.active_width == 2 ? 4 : port.active_width == 4 ? 8 : 12;
  return lane * (port.active_width == 16 ? 2 : lanes);
}

std::vector<Gid> gid_table(ibv_context* context, uint8_t port, int length) {
  std::vector<ibv_gid_entry> entries(static_cast<size_t>(std::max(length, 1)));
  const ssize_t count = ::ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  std::vector<Gid> table;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num != port) continue;
    Gid gid{.index = static_cast<int>(entry.gid_index)};
    std::copy(std::begin(entry.gid.raw), std::end(entry.gid.raw), gid.raw.begin());
    gid.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidType::roce_v2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidType::roce_v1
                                                        : GidType::infiniband;
    table.push_back(gid);
  }
  return table;
}

int numa_node(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/device/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

// A GID, or why there is none.
std::string pick_gid(ibv_context* context, const ibv_port_attr& attributes, const Config& config, Port* port) {
  const auto table = gid_table(context, port->number, attributes.gid_tbl_len);
  if (config.verbs_gid_index >= 0) {
    const auto found =
        std::find_if(table.begin(), table.end(), [&](const Gid& gid) { return gid.index == config.verbs_gid_index; });
    if (found == table.end())
      return fmt::format("it has no GID with index {} (WEFT_VERBS_GID_INDEX)", config.verbs_gid_index);
    port->gid = *found;
    return "";
  }
  int index = choose_gid(table, config.socket_family);
  if (index < 0 && !port->ethernet && !table.empty()) index = table.front().index;
  for (const Gid& gid : table) {
    if (gid.index == index) port->gid = gid;
  }
  return index >= 0 ? "" : "none of its GIDs can be routed: has its network interface an address?";
}

Result<Port> query(ibv_context* context, const std::string& device, uint8_t number, const Config& config) {
  ibv_port_attr attributes{};
  if (const int problem = ::ibv_query_port(context, number, &attributes); problem != 0) {
    return system_error(problem, fmt::format("ibv_query_port of {}:{}", device, number));
  }
  Port port;
  port.device = device;
  port.number = number;
  port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.active = attributes.state == IBV_PORT_ACTIVE;
  port.lid = attributes.lid;
  port.mtu = attributes.active_mtu;
  port.gbits = gbits_of(attributes);
  port.numa = numa_node(device);
  if (!port.active) {
    port.reason = fmt::format("its state is {}", ::ibv_port_state_str(attributes.state));
  } else {
    port.reason = pick_gid(context, attributes, config, &port);
  }
  port.used = port.reason.empty();
  if (port.used) port.reason = "active";
  return port;
}

// "mlx5_0,mlx5_1:2" or "^mlx5_0": whether a port is meant. Notes which items were matched.
class Filter {
 public:
  explicit Filter(std::string list) : text_(list) {
    if (list.starts_with('^')) {
      but_ = true;
      list.erase(0, 1);
    }
    for (size_t begin = 0; begin < list.size();) {
      const size_t end = std::min(list.find(',', begin), list.size());
      if (end > begin) items_[list.substr(begin, end - begin)] = false;
      begin = end + 1;
    }
  }
  bool admits(const Port& port) {
    bool named = false;
    for (auto& [item, matched] : items_) {
      if (item != port.device && item != port.name()) continue;
      matched = named = true;
    }
    return items_.empty() || named != but_;
  }
  Status check(const std::string& legal) const {
    for (const auto& [item, matched] : items_) {
      if (matched || but_) continue;
      return error(weftInvalidArgument, "WEFT_VERBS_DEVICES={}: there is no device {}; there are: {}", text_, item,
                   legal.empty() ? "none" : legal);
    }
    return {};
  }

 private:
  std::string text_;
  bool but_ = false;
  std::map<std::string, bool> items_;
};

std::string memlock_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return fmt::format(
      ": the process may lock {} KiB of memory; raise it (ulimit -l unlimited, memlock in limits.conf, LimitMEMLOCK= "
      "of "
      "a service)",
      limit.rlim_cur >> 10);
}

}  // namespace

Result<std::vector<Port>> find_ports(const Config& config) {
  std::vector<Port> ports;
  Filter filter(config.verbs_devices);
  std::string legal;
  const DeviceList devices;
  for (int i = 0; i < devices.count; ++i) {
    const std::string name = ::ibv_get_device_name(devices.list[i]);
    legal += (legal.empty() ? "" : ", ") + name;
    const OpenContext open(devices.list[i]);
    ibv_device_attr limits{};
    if (open.context == nullptr || ::ibv_query_device(open.context, &limits) != 0) {
      ports.push_back(
          {.device = name, .reason = fmt::format("it is listed, but cannot be opened: {}", std::strerror(errno))});
      filter.admits(ports.back());
      continue;
    }
    for (uint8_t number = 1; number <= limits.phys_port_cnt; ++number) {
      Result<Port> port = query(open.context, name, number, config);
      if (!port.ok()) {
        ports.push_back({.device = name, .number = number, .reason = port.status().message()});
        continue;
      }
      if (!filter.admits(*port)) {
        port->used = false;
        port->reason = fmt::format("WEFT_VERBS_DEVICES={}", config.verbs_devices);
      }
      ports.push_back(*port);
    }
  }
  WEFT_RETURN_IF_ERROR(filter.check(legal));
  return ports;
}

Result<ibv_mr*> register_memory(ibv_pd* domain, void* base, size_t bytes, bool relaxed) {
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  if (relaxed) access |= IBV_ACCESS_RELAXED_ORDERING;
  ibv_mr* region = ::ibv_reg_mr(domain, base, bytes, access);
  if (region != nullptr) return region;
  const int number = errno;
  return error(weftSystemError, "{} bytes at {} cannot be registered with {}: {}{}", bytes, base,
               ::ibv_get_device_name(domain->context->device), std::strerror(number),
               number == ENOMEM || number == EPERM ? memlock_limit() : "");
}

Result<std::shared_ptr<Device>> Device::open(const std::string& name, const Config& config,
                                             Registrations::FindRegion find_region) {
  static std::mutex mutex;
  static auto* all = new std::map<std::pair<uint64_t, std::string>, std::weak_ptr<Device>>;
  std::lock_guard lock(mutex);
  // A child of fork() opens its own.
  std::weak_ptr<Device>& known = (*all)[{forks(), name}];
  if (auto device = known.lock(); device != nullptr && !device->gone()) return device;
  // Where the kernel needs to be told that a process with registered memory forks.
  if (::ibv_is_fork_initialized() == IBV_FORK_DISABLED) ::ibv_fork_init();
  const DeviceList devices;
  for (int i = 0; i < devices.count; ++i) {
    if (name != ::ibv_get_device_name(devices.list[i])) continue;
    std::shared_ptr<Device> device(new Device);
    WEFT_RETURN_IF_ERROR(device->set_up(devices.list[i], config, find_region));
    known = device;
    return device;
  }
  return error(weftSystemError, "there is no device {}", name);
}

Status Device::set_up(ibv_device* device, const Config& config, Registrations::FindRegion find_region) {
  name_ = ::ibv_get_device_name(device);
  context_ = ::ibv_open_device(device);
  if (context_ == nullptr) return system_error(errno, "ibv_open_device of " + name_);
  if (const int problem = ::ibv_query_device(context_, &limits_); problem != 0) {
    return system_error(problem, "ibv_query_device of " + name_);
  }
  domain_ = ::ibv_alloc_pd(context_);
  if (domain_ == nullptr) return system_error(errno, "ibv_alloc_pd of " + name_);
  const int flags = ::fcntl(context_->async_fd, F_GETFL);
  ::fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK);
  const bool relaxed = config.verbs_relaxed_ordering;
  memory_ = std::make_unique<Registrations>(
      [this, relaxed](std::byte* base, size_t bytes) -> Result<Registrations::Keys> {
        Result<ibv_mr*> region = register_memory(domain_, base, bytes, relaxed);
        if (!region.ok()) return region.status();
        return Registrations::Keys{*region, (*region)->lkey, (*region)->rkey};
      },
      [](const Registrations::Keys& keys) { ::ibv_dereg_mr(static_cast<ibv_mr*>(keys.handle)); }, find_region,
      static_cast<size_t>(config.verbs_cache_bytes));
  return {};
}

Device::~Device() {
  memory_.reset();
  if (domain_ != nullptr) ::ibv_dealloc_pd(domain_);
  if (context_ != nullptr) ::ibv_close_device(context_);
}

// A driver that cannot take a device away from its users (rxe) does not tell them, and waits for them to let go of it;
// but its name is gone at once.
void Device::look() {
  if (::access(context_->device->dev_path, F_OK) != 0 && errno == ENOENT) {
    gone_.store(true, std::memory_order_release);
  }
  pollfd wait{context_->async_fd, POLLIN, 0};
  if (::poll(&wait, 1, 0) <= 0) return;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  if (wait.revents & (POLLERR | POLLHUP)) gone_.store(true, std::memory_order_release);
  ibv_async_event event;
  while (::ibv_get_async_event(context_, &event) == 0) {
    log(LogLevel::info, "verbs: {}: {}", name_, ::ibv_event_type_str(event.event_type));
    if (event.event_type == IBV_EVENT_DEVICE_FATAL) gone_.store(true, std::memory_order_release);
    changes_.fetch_add(1, std::memory_order_acq_rel);
    ::ibv_ack_async_event(&event);
  }
}

Result<Port> Device::port(uint8_t number, const Config& config) const { return query(context_, name_, number, config); }

}  // namespace weft::verbs
