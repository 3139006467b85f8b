#include "topology/machine_detect.hpp"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>

namespace weft {
namespace {

constexpr uint32_t kNvidia = 0x10de, kAmd = 0x1002;

using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;
using TopologyPtr = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

std::string line_of(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string info(hwloc_obj_t object, const char* name) {
  const char* value = object != nullptr ? hwloc_obj_get_info_by_name(object, name) : nullptr;
  return value != nullptr ? value : "";
}

int integer(const std::string& text) { return text.empty() ? -1 : std::atoi(text.c_str()); }

// As the kernel writes a cpumap.
std::string mask_of(hwloc_const_cpuset_t set) {
  std::string text;
  for (int word = hwloc_bitmap_last(set) / 32; word >= 0; --word) {
    uint32_t bits = 0;
    for (int bit = 0; bit < 32; ++bit) {
      if (hwloc_bitmap_isset(set, static_cast<unsigned>(word * 32 + bit)) != 0) bits |= 1U << bit;
    }
    text += fmt::format("{}{:08x}", text.empty() ? "" : ",", bits);
  }
  return text;
}

std::string bus_of(const PciAttributes& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.dev, pci.func);
}

bool is_pci_bridge(hwloc_obj_t object) {
  return object != nullptr && object->type == HWLOC_OBJ_BRIDGE &&
         object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI;
}

class Detector {
 public:
  Machine run();

 private:
  void numas(hwloc_topology_t topology);
  int numa_of(hwloc_topology_t topology, hwloc_obj_t device) const;
  int pci(hwloc_topology_t topology, hwloc_obj_t device, const PciAttributes& attributes);
  void speed(Pci& pci) const;
  void adapters(hwloc_obj_t device, int pci);

  Machine machine_;
  std::map<std::string, int> by_bus_;
};

void Detector::numas(hwloc_topology_t topology) {
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    Numa numa;
    numa.number = static_cast<int>(node->os_index);
    numa.affinity = mask_of(node->cpuset);
    numa.bytes = node->attr->numanode.local_memory;
#if defined(__x86_64__)
    numa.arch = "x86_64";
#elif defined(__aarch64__)
    numa.arch = "arm64";
#elif defined(__powerpc64__)
    numa.arch = "ppc64";
#endif
    // Of the package whose cores these are.
    for (hwloc_obj_t package = nullptr;
         (package = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PACKAGE, package)) != nullptr;) {
      if (hwloc_bitmap_intersects(package->cpuset, node->cpuset) == 0) continue;
      numa.package = static_cast<int>(package->os_index);
      numa.vendor = info(package, "CPUVendor");
      numa.family = integer(info(package, "CPUFamilyNumber"));
      numa.model = integer(info(package, "CPUModelNumber"));
      break;
    }
    for (hwloc_obj_t cache = nullptr;
         (cache = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_L3CACHE, cache)) != nullptr;) {
      if (hwloc_bitmap_isincluded(cache->cpuset, node->cpuset) != 0) numa.cache_bytes += cache->attr->cache.size;
    }
    machine_.numas.push_back(std::move(numa));
  }
  if (machine_.numas.empty()) machine_.numas.emplace_back();
}

int Detector::numa_of(hwloc_topology_t topology, hwloc_obj_t device) const {
  const hwloc_obj_t host = hwloc_get_non_io_ancestor_obj(topology, device);
  if (host == nullptr || host->nodeset == nullptr) return 0;
  const int first = hwloc_bitmap_first(host->nodeset);
  for (size_t i = 0; i < machine_.numas.size(); ++i) {
    if (machine_.numas[i].number == first) return static_cast<int>(i);
  }
  return 0;
}

// The slower of what the device and the port that it is plugged into can; what links do now is less when they sleep.
void Detector::speed(Pci& pci) const {
  const std::string path = "/sys/bus/pci/devices/" + pci.bus + "/";
  double slowest = 0;
  int narrowest = 0;
  for (const char* where : {"", "../"}) {
    const double gigatransfers = std::strtod(line_of(path + where + "max_link_speed").c_str(), nullptr);
    const int width = std::atoi(line_of(path + where + "max_link_width").c_str());
    if (gigatransfers > 0 && (slowest == 0 || gigatransfers < slowest)) slowest = gigatransfers;
    if (width > 0 && width <= 64 && (narrowest == 0 || width < narrowest)) narrowest = width;
  }
  if (slowest > 0) pci.gigatransfers = slowest;
  if (narrowest > 0) pci.width = narrowest;
}

// With all that is above it. A switch has a port up and ports down: as in NCCL's files, it is known by the one up, and
// the port down that a device is plugged into is left out, as is the processor's own port.
int Detector::pci(hwloc_topology_t topology, hwloc_obj_t device, const PciAttributes& attributes) {
  const std::string bus = bus_of(attributes);
  if (const auto known = by_bus_.find(bus); known != by_bus_.end()) return known->second;
  Pci pci;
  pci.bus = bus;
  if (is_pci_bridge(device->parent) && is_pci_bridge(device->parent->parent)) {
    const hwloc_obj_t above = device->parent->parent;
    pci.parent = this->pci(topology, above, above->attr->bridge.upstream.pci);
  }
  pci.numa = pci.parent < 0 ? numa_of(topology, device) : machine_.pcis[static_cast<size_t>(pci.parent)].numa;
  pci.kind = static_cast<uint32_t>(attributes.class_id) << 8 |
             (std::strtoul(line_of("/sys/bus/pci/devices/" + bus + "/class").c_str(), nullptr, 16) & 0xff);
  pci.vendor = attributes.vendor_id;
  pci.device = attributes.device_id;
  pci.subsystem_vendor = attributes.subvendor_id;
  pci.subsystem_device = attributes.subdevice_id;
  speed(pci);
  machine_.pcis.push_back(std::move(pci));
  return by_bus_[bus] = static_cast<int>(machine_.pcis.size()) - 1;
}

// RDMA devices by their own names; others by their interface's.
void Detector::adapters(hwloc_obj_t device, int pci) {
  std::vector<hwloc_obj_t> found;
  bool rdma = false;
  for (hwloc_obj_t child = device->io_first_child; child != nullptr; child = child->next_sibling) {
    if (child->type != HWLOC_OBJ_OS_DEVICE) continue;
    const auto type = child->attr->osdev.type;
    if (type != HWLOC_OBJ_OSDEV_NETWORK && type != HWLOC_OBJ_OSDEV_OPENFABRICS) continue;
    rdma = rdma || type == HWLOC_OBJ_OSDEV_OPENFABRICS;
    found.push_back(child);
  }
  for (const hwloc_obj_t child : found) {
    if (rdma != (child->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)) continue;
    Net net;
    net.numa = machine_.pcis[static_cast<size_t>(pci)].numa;
    net.pci = pci;
    net.name = child->name;
    net.dev = static_cast<int>(machine_.nets.size());
    double megabits = 0;
    if (rdma) {
      net.port = 1;
      megabits = 1000 * std::strtod(line_of("/sys/class/infiniband/" + net.name + "/ports/1/rate").c_str(), nullptr);
      net.guid = info(child, "NodeGUID");
      net.guid.erase(std::remove(net.guid.begin(), net.guid.end(), ':'), net.guid.end());
      if (!net.guid.empty()) net.guid = "0x" + net.guid;
    } else {
      megabits = std::strtod(line_of("/sys/class/net/" + net.name + "/speed").c_str(), nullptr);
    }
    if (megabits > 0) net.megabits = megabits;
    machine_.nets.push_back(std::move(net));
  }
}

Machine Detector::run() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return machine_;
  const TopologyPtr topology(raw, hwloc_topology_destroy);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL);
  // What these would tell is not asked for, or is in sysfs; they talk to displays and drivers, and leak.
  for (const char* component : {"gl", "opencl", "pci"}) {
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  if (hwloc_topology_load(raw) != 0) return machine_;
  numas(raw);
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(raw, device)) != nullptr;) {
    const auto& attributes = device->attr->pcidev;
    const bool maker = attributes.vendor_id == kNvidia || attributes.vendor_id == kAmd;
    if (is_display(static_cast<uint32_t>(attributes.class_id) << 8) && maker) {
      const int place = pci(raw, device, attributes);
      machine_.gpus.push_back({.pci = place, .dev = static_cast<int>(machine_.gpus.size())});
    } else if (is_network(static_cast<uint32_t>(attributes.class_id) << 8)) {
      adapters(device, pci(raw, device, attributes));
    }
  }
  return std::move(machine_);
}

}  // namespace

Machine this_machine() { return Detector().run(); }

}  // namespace weft
