#include "machine.hpp"

#include <fmt/format.h>
#include <hwloc.h>
#include <sys/resource.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

namespace weft::info {
namespace {

struct NumaNode {
  unsigned number = 0;
  std::string cores;  // list
  uint64_t bytes = 0;
};
struct Gpu {
  std::string name, bus;
  int numa = -1;
};
struct Limit {
  const char* name;
  const char* why;
  uint64_t value;
  bool unlimited;
};
struct Machine {
  std::vector<NumaNode> nodes;
  std::vector<Gpu> gpus;
  std::vector<Limit> limits;
};

constexpr unsigned kNvidia = 0x10de, kAmd = 0x1002;

std::string cores_of(hwloc_const_cpuset_t set) {
  char text[1024] = "";
  hwloc_bitmap_list_snprintf(text, sizeof text, set);
  return text;
}

std::vector<Limit> limits() {
  std::vector<Limit> list;
  const auto add = [&](const char* name, const char* why, __rlimit_resource which) {
    rlimit limit{};
    if (::getrlimit(which, &limit) == 0) list.push_back({name, why, limit.rlim_cur, limit.rlim_cur == RLIM_INFINITY});
  };
  add("memlock", "bytes that RDMA may register", RLIMIT_MEMLOCK);
  add("nofile", "open files: a connection or two to each peer", RLIMIT_NOFILE);
  add("nproc", "processes and threads of this user", RLIMIT_NPROC);
  return list;
}

Machine examine() {
  Machine machine;
  machine.limits = limits();
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return machine;
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> holder(topology, hwloc_topology_destroy);
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(topology) != 0) return machine;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    machine.nodes.push_back({node->os_index, cores_of(node->cpuset), node->attr->numanode.local_memory});
  }
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(topology, device)) != nullptr;) {
    const auto& pci = device->attr->pcidev;
    const bool display = pci.class_id >> 8 == 0x03, known = pci.vendor_id == kNvidia || pci.vendor_id == kAmd;
    if (!(display && known)) continue;
    Gpu gpu;
    gpu.bus = fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.dev, pci.func);
    gpu.name = device->name != nullptr ? device->name : fmt::format("{:04x}:{:04x}", pci.vendor_id, pci.device_id);
    const hwloc_obj_t host = hwloc_get_non_io_ancestor_obj(topology, device);
    if (host->nodeset != nullptr && hwloc_bitmap_weight(host->nodeset) == 1)
      gpu.numa = hwloc_bitmap_first(host->nodeset);
    machine.gpus.push_back(gpu);
  }
  return machine;
}

}  // namespace

std::string machine_text() {
  const Machine machine = examine();
  std::string text = "NUMA nodes\n";
  for (const NumaNode& node : machine.nodes) {
    text += fmt::format("  {}: cores {}, {} MiB\n", node.number, node.cores, node.bytes >> 20);
  }
  text += "GPUs\n";
  for (const Gpu& gpu : machine.gpus) {
    text += fmt::format("  {} {}{}\n", gpu.bus, gpu.name, gpu.numa < 0 ? "" : fmt::format(", NUMA node {}", gpu.numa));
  }
  if (machine.gpus.empty()) text += "  none\n";
  text += "limits\n";
  for (const Limit& limit : machine.limits) {
    text += fmt::format("  {:<8} {} ({})\n", limit.name,
                        limit.unlimited ? std::string("unlimited") : std::to_string(limit.value), limit.why);
  }
  return text;
}

nlohmann::json machine_json() {
  const Machine machine = examine();
  nlohmann::json json = {{"numa", nlohmann::json::array()}, {"gpus", nlohmann::json::array()}};
  for (const NumaNode& node : machine.nodes) {
    json["numa"].push_back({{"node", node.number}, {"cores", node.cores}, {"bytes", node.bytes}});
  }
  for (const Gpu& gpu : machine.gpus)
    json["gpus"].push_back({{"bus", gpu.bus}, {"name", gpu.name}, {"numa", gpu.numa}});
  for (const Limit& limit : machine.limits) {
    json["limits"][limit.name] = limit.unlimited ? nlohmann::json(nullptr) : nlohmann::json(limit.value);
  }
  return json;
}

}  // namespace weft::info
