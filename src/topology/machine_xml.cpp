#include "topology/machine_xml.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <pugixml.hpp>
#include <set>
#include <sstream>

namespace weft {
namespace {

constexpr int kDeepest = 64;        // switches below each other
constexpr size_t kToldOf = 3;       // problems that the warning spells out
constexpr int kMost = 1 << 20;      // of a number, a width or a count
constexpr double kSlowest = 10000;  // megabits: what NCCL takes for an adapter that does not tell

std::string shortened(std::string text) {
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

bool is_bus(const std::string& text) {
  return text.size() > 4 && text.find_first_not_of("0123456789abcdef:.") == std::string::npos;
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}
  Result<MachineFile> read(std::string_view text);

 private:
  void cpu(pugi::xml_node node);
  void below(pugi::xml_node node, int numa, int parent, int depth);
  void pci(pugi::xml_node node, int numa, int parent, int depth);
  void gpu(pugi::xml_node node, int pci);
  void nvlink(pugi::xml_node node, Gpu& gpu);
  void net(pugi::xml_node node, int numa, int pci);
  // Numbers that no device has: for those without.
  void number_the_rest();
  // A GPU is at the other end where the file has one there, and a switch elsewhere.
  void find_targets();

  void problem(std::string text) {
    if (problems_.size() < kToldOf) problems_.push_back(std::move(text));
    ++problem_count_;
  }
  // Attributes: absent or wrong, they stay as they are. Those that are `due` are missed.
  template <typename T>
  void number(pugi::xml_node node, const char* name, bool due, int64_t least, T& into);
  void text(pugi::xml_node node, const char* name, std::string& into) { into = node.attribute(name).value(); }
  std::string called(pugi::xml_node node) const;

  std::string file_;
  Machine machine_;
  std::map<std::string, int> by_bus_;
  std::set<size_t> untold_;  // places of NVLinks, as counted over all GPUs, that do not tell what their targets are
  size_t links_ = 0;
  std::vector<std::string> problems_;
  size_t problem_count_ = 0;
};

// "pci 0000:17:00.0", "net mlx5_0"
std::string Reader::called(pugi::xml_node node) const {
  std::string name = shortened(node.name());
  for (const char* key : {"busid", "numaid", "name", "dev", "target"}) {
    if (const auto attribute = node.attribute(key)) return name + " " + shortened(attribute.value());
  }
  if (const auto bus = node.parent().attribute("busid")) name += " of pci " + shortened(bus.value());
  return name;
}

// Decimal or 0x...; the file is foreign, so that nothing is taken for granted.
template <typename T>
void Reader::number(pugi::xml_node node, const char* name, bool due, int64_t least, T& into) {
  const auto attribute = node.attribute(name);
  if (!attribute) {
    if (due) problem(fmt::format("{} has no {}", called(node), name));
    return;
  }
  const char* begin = attribute.value();
  char* end = nullptr;
  const int64_t value = std::strtoll(begin, &end, 0);
  if (end == begin || *end != '\0' || value < least || value > int64_t{kMost} * 16) {
    problem(fmt::format("{}: {} is '{}'", called(node), name, shortened(begin)));
    return;
  }
  into = static_cast<T>(value);
}

void Reader::cpu(pugi::xml_node node) {
  Numa numa;
  number(node, "numaid", true, -1, numa.number);
  for (const Numa& other : machine_.numas) {
    if (other.number == numa.number && other.host == node.attribute("host_hash").value())
      problem(fmt::format("{} is there twice", called(node)));
  }
  text(node, "affinity", numa.affinity);
  text(node, "arch", numa.arch);
  text(node, "vendor", numa.vendor);
  text(node, "host_hash", numa.host);
  if (numa.affinity.find_first_not_of("0123456789abcdefABCDEF,") != std::string::npos) {
    problem(fmt::format("{}: affinity is '{}'", called(node), shortened(numa.affinity)));
    numa.affinity.clear();
  }
  if (numa.affinity.empty()) problem(called(node) + " has no affinity");
  number(node, "familyid", false, 0, numa.family);
  number(node, "modelid", false, 0, numa.model);
  machine_.numas.push_back(std::move(numa));
  below(node, static_cast<int>(machine_.numas.size()) - 1, -1, 0);
}

// What stands inside a <cpu> or a <pci>.
void Reader::below(pugi::xml_node node, int numa, int parent, int depth) {
  if (depth > kDeepest) return problem(fmt::format("{} is more than {} levels deep", called(node), kDeepest));
  for (const auto child : node.children()) {
    const std::string_view name = child.name();
    if (child.type() != pugi::node_element) continue;
    if (name == "pci") {
      pci(child, numa, parent, depth + 1);
    } else if (name == "nic") {
      for (const auto adapter : child.children()) {
        if (std::string_view(adapter.name()) == "net") {
          net(adapter, numa, parent);
        } else if (adapter.type() == pugi::node_element) {
          problem(called(adapter) + " is not known");
        }
      }
    } else if (name == "gpu" && parent >= 0) {
      gpu(child, parent);
    } else if (name != "pcilink" && name != "c2c") {
      problem(called(child) + (name == "gpu" ? " is in no pci" : " is not known"));
    }
  }
}

// An element without a bus of its own is left out, and what is in it hangs on what it hung on.
void Reader::pci(pugi::xml_node node, int numa, int parent, int depth) {
  Pci pci{.numa = numa, .parent = parent};
  text(node, "busid", pci.bus);
  std::transform(pci.bus.begin(), pci.bus.end(), pci.bus.begin(),
                 [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c | 0x20) : c; });
  if (!is_bus(pci.bus) || by_bus_.contains(pci.bus)) {
    problem(fmt::format("{} {}", called(node), by_bus_.contains(pci.bus) ? "is there twice" : "has no legal busid"));
    return below(node, numa, parent, depth);
  }
  pci.kind = node.child("gpu") ? 0x030200 : node.child("nic") ? 0x020000 : kPciBridge;
  number(node, "class", true, 0, pci.kind);
  number(node, "vendor", false, 0, pci.vendor);
  number(node, "device", false, 0, pci.device);
  number(node, "subsystem_vendor", false, 0, pci.subsystem_vendor);
  number(node, "subsystem_device", false, 0, pci.subsystem_device);
  // "32.0 GT/s PCIe"
  const std::string speed = node.attribute("link_speed").value();
  const double gigatransfers = std::strtod(speed.c_str(), nullptr);
  if (gigatransfers > 0 && gigatransfers <= 1024) {
    pci.gigatransfers = gigatransfers;
  } else {
    problem(fmt::format("{}: link_speed is '{}'", called(node), shortened(speed)));
  }
  number(node, "link_width", true, 0, pci.width);
  if (pci.width < 1 || pci.width > 64) {
    problem(fmt::format("{}: link_width is {}", called(node), pci.width));
    pci.width = 16;
  }
  const int index = static_cast<int>(machine_.pcis.size());
  by_bus_[pci.bus] = index;
  machine_.pcis.push_back(std::move(pci));
  below(node, numa, index, depth);
}

void Reader::gpu(pugi::xml_node node, int pci) {
  Gpu gpu{.pci = pci};
  number(node, "dev", true, 0, gpu.dev);
  number(node, "sm", false, 0, gpu.sm);
  number(node, "rank", false, -1, gpu.rank);
  number(node, "gdr", false, 0, gpu.gdr);
  for (const auto child : node.children()) {
    const std::string_view name = child.name();
    if (name == "nvlink") {
      nvlink(child, gpu);
    } else if (child.type() == pugi::node_element && name != "c2c") {
      problem(called(child) + " is not known");
    }
  }
  machine_.gpus.push_back(std::move(gpu));
}

void Reader::nvlink(pugi::xml_node node, Gpu& gpu) {
  NvLink link;
  text(node, "target", link.target);
  if (link.target.empty()) return problem(called(node) + " has no target");
  std::transform(link.target.begin(), link.target.end(), link.target.begin(),
                 [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c | 0x20) : c; });
  number(node, "count", true, 1, link.count);
  if (!node.attribute("tclass")) untold_.insert(links_);
  number(node, "tclass", true, 0, link.kind);
  ++links_;
  gpu.links.push_back(std::move(link));
}

void Reader::net(pugi::xml_node node, int numa, int pci) {
  Net net{.numa = numa, .pci = pci};
  text(node, "name", net.name);
  text(node, "guid", net.guid);
  if (net.name.empty()) problem(called(node) + " has no name");
  number(node, "dev", true, 0, net.dev);
  number(node, "port", false, 0, net.port);
  number(node, "gdr", false, 0, net.gdr);
  int64_t megabits = 0;  // -1 where an adapter does not know
  number(node, "speed", true, -1, megabits);
  if (megabits <= 0 && node.attribute("speed")) problem(fmt::format("{}: speed is {}", called(node), megabits));
  net.megabits = megabits > 0 ? static_cast<double>(megabits) : kSlowest;
  const double latency = std::strtod(node.attribute("latency").value(), nullptr);
  if (latency > 0 && latency < 1e9) net.latency_us = latency;
  machine_.nets.push_back(std::move(net));
}

void Reader::number_the_rest() {
  const auto fill = [](auto& devices) {
    std::set<int> taken;
    for (const auto& device : devices) taken.insert(device.dev);
    int next = 0;
    for (auto& device : devices) {
      if (device.dev >= 0) continue;
      while (!taken.insert(next).second) ++next;
      device.dev = next;
    }
  };
  fill(machine_.gpus);
  fill(machine_.nets);
  for (Net& net : machine_.nets) {
    if (net.name.empty()) net.name = fmt::format("net{}", net.dev);
  }
}

void Reader::find_targets() {
  size_t at = 0;
  for (Gpu& gpu : machine_.gpus) {
    for (NvLink& link : gpu.links) {
      const auto found = by_bus_.find(link.target);
      if (untold_.contains(at++) && found != by_bus_.end())
        link.kind = machine_.pcis[static_cast<size_t>(found->second)].kind;
    }
  }
}

Result<MachineFile> Reader::read(std::string_view text) {
  pugi::xml_document document;
  const auto outcome = document.load_buffer(text.data(), text.size());
  if (!outcome) {
    return error(weftInvalidArgument, "{}: no XML at byte {} of {}: {}", file_, outcome.offset, text.size(),
                 outcome.description());
  }
  const auto system = document.document_element();
  const std::string_view root = system.name(), version = system.attribute("version").value();
  if (root != "system") {
    return error(weftInvalidArgument, "{}: its element is '{}'; legal: system, of NCCL's topology files", file_,
                 shortened(std::string(root)));
  }
  if (version.empty()) {
    problem("system has no version");
  } else if (version != "1") {
    return error(weftInvalidArgument, "{}: system version is {}; legal: 1", file_, shortened(std::string(version)));
  }
  for (const auto child : system.children()) {
    if (std::string_view(child.name()) == "cpu") {
      cpu(child);
    } else if (child.type() == pugi::node_element) {
      problem(called(child) + " is not known");
    }
  }
  number_the_rest();
  find_targets();
  if (machine_.numas.empty()) problem("there is no cpu");
  MachineFile result{std::move(machine_), ""};
  for (const std::string& one : problems_) result.warning += (result.warning.empty() ? file_ + ": " : "; ") + one;
  if (problem_count_ > kToldOf) result.warning += fmt::format("; and {} more", problem_count_ - kToldOf);
  if (problem_count_ > 0) result.warning += "; defaults are taken";
  return result;
}

class Writer {
 public:
  explicit Writer(const Machine& machine) : machine_(machine), nodes_(machine.pcis.size()) {}
  std::string write();

 private:
  static void set(pugi::xml_node node, const char* name, const std::string& value) {
    if (!value.empty()) node.append_attribute(name) = value.c_str();
  }
  static void set(pugi::xml_node node, const char* name, int value) {
    if (value >= 0) node.append_attribute(name) = value;
  }
  static void set_id(pugi::xml_node node, const char* name, uint32_t value, int digits) {
    if (value > 0) set(node, name, fmt::format("0x{:0{}x}", value, digits));
  }
  void pci(const Pci& pci, pugi::xml_node node);
  void gpu(const Gpu& gpu, pugi::xml_node node);
  void net(const Net& net, pugi::xml_node nic);

  const Machine& machine_;
  std::vector<pugi::xml_node> nodes_;  // by PCI device
};

void Writer::pci(const Pci& pci, pugi::xml_node node) {
  set(node, "busid", pci.bus);
  set_id(node, "class", pci.kind, 6);
  set_id(node, "vendor", pci.vendor, 4);
  set_id(node, "device", pci.device, 4);
  set_id(node, "subsystem_vendor", pci.subsystem_vendor, 4);
  set_id(node, "subsystem_device", pci.subsystem_device, 4);
  set(node, "link_speed", fmt::format("{:.1f} GT/s PCIe", pci.gigatransfers));
  set(node, "link_width", pci.width);
}

void Writer::gpu(const Gpu& gpu, pugi::xml_node node) {
  set(node, "dev", gpu.dev);
  set(node, "sm", gpu.sm);
  set(node, "rank", gpu.rank);
  set(node, "gdr", gpu.gdr);
  for (const NvLink& link : gpu.links) {
    auto one = node.append_child("nvlink");
    set(one, "target", link.target);
    set(one, "count", link.count);
    set_id(one, "tclass", link.kind, 6);
  }
}

void Writer::net(const Net& net, pugi::xml_node nic) {
  auto node = nic.append_child("net");
  set(node, "name", net.name);
  set(node, "dev", net.dev);
  set(node, "speed", static_cast<int>(net.megabits));
  set(node, "port", net.port);
  if (net.latency_us > 0) set(node, "latency", fmt::format("{}", net.latency_us));
  set(node, "guid", net.guid);
  set(node, "gdr", net.gdr);
}

std::string Writer::write() {
  pugi::xml_document document;
  auto system = document.append_child("system");
  set(system, "version", "1");
  std::vector<pugi::xml_node> cpus;
  for (const Numa& numa : machine_.numas) {
    auto node = system.append_child("cpu");
    set(node, "host_hash", numa.host);
    set(node, "numaid", std::to_string(numa.number));
    set(node, "affinity", numa.affinity);
    set(node, "arch", numa.arch);
    set(node, "vendor", numa.vendor);
    set(node, "familyid", numa.family);
    set(node, "modelid", numa.model);
    cpus.push_back(node);
  }
  for (size_t i = 0; i < machine_.pcis.size(); ++i) {
    const Pci& one = machine_.pcis[i];
    auto above = one.parent < 0 ? cpus[static_cast<size_t>(one.numa)] : nodes_[static_cast<size_t>(one.parent)];
    nodes_[i] = above.append_child("pci");
    pci(one, nodes_[i]);
  }
  for (const Gpu& one : machine_.gpus) gpu(one, nodes_[static_cast<size_t>(one.pci)].append_child("gpu"));
  for (const Net& one : machine_.nets) {
    auto above = one.pci < 0 ? cpus[static_cast<size_t>(one.numa)] : nodes_[static_cast<size_t>(one.pci)];
    auto nic = above.child("nic");
    net(one, nic ? nic : above.append_child("nic"));
  }
  std::ostringstream out;
  document.save(out, "  ", pugi::format_indent | pugi::format_no_declaration);
  // NCCL's parser takes the space for the beginning of one more attribute.
  std::string text = out.str();
  for (size_t at = 0; (at = text.find(" />", at)) != std::string::npos;) text.erase(at, 1);
  return text;
}

}  // namespace

Result<MachineFile> parse_machine(std::string_view text, const std::string& file) { return Reader(file).read(text); }

std::string to_xml(const Machine& machine) { return Writer(machine).write(); }

}  // namespace weft
