// One machine's hardware, as far as messages care: processors with their memory, what hangs on PCI, GPUs with their
// NVLinks, network adapters. A plain value that hwloc fills (machine_detect.hpp), and NCCL's topology files
// (machine_xml.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

// The cores that are nearest to one memory.
struct Numa {
  int number = -1;  // -1: it is not known which
  int package = -1;
  std::string affinity;  // cores as a hexadecimal mask, 32 bits to a word: "ff,ffffffff"
  std::string arch, vendor;
  int family = -1, model = -1;
  std::string host;  // hash of its name, where the file is of several machines
  uint64_t bytes = 0, cache_bytes = 0;
};

struct Pci {
  std::string bus;  // "0000:17:00.0"
  int numa = 0;     // index of a NUMA node
  int parent = -1;  // index of the switch above it, -1: the processor's root
  uint32_t kind = 0x060400;
  uint32_t vendor = 0, device = 0, subsystem_vendor = 0, subsystem_device = 0;
  double gigatransfers = 8;  // a second and lane
  int width = 16;            // lanes
};

struct NvLink {
  std::string target;  // bus of a GPU or a switch; what all switches have in common where that is all that is known
  int count = 1;
  uint32_t kind = 0x068000;  // of the target
};

struct Gpu {
  int pci = 0;
  int dev = -1;  // CUDA's number
  int sm = -1;   // compute capability times 10; -1: not known
  int rank = -1;
  int gdr = -1;  // whether adapters reach its memory: 0 or 1; -1: not known
  std::vector<NvLink> links;
};

struct Net {
  int numa = 0;
  int pci = -1;  // -1: of no PCI device
  std::string name;
  int dev = -1, port = 0;
  double megabits = 10000;  // a second
  double latency_us = 0;    // 0: not known
  std::string guid;
  int gdr = 0;
};

struct Machine {
  std::vector<Numa> numas;
  std::vector<Pci> pcis;  // each behind its parent
  std::vector<Gpu> gpus;
  std::vector<Net> nets;
};

inline constexpr uint32_t kPciBridge = 0x060400, kPciNvSwitch = 0x068000;
inline bool is_display(uint32_t kind) { return kind >> 16 == 0x03; }
inline bool is_network(uint32_t kind) { return kind >> 16 == 0x02; }

// GB/s each way, without what the line code takes.
inline double bandwidth_of(const Pci& pci) {
  const double code = pci.gigatransfers < 8 ? 0.8 : 128.0 / 130;
  return pci.gigatransfers * code * pci.width / 8;
}
// GB/s each way of one NVLink of a GPU; an unknown one counts as Ampere's.
inline double nvlink_bandwidth(int sm) { return sm >= 100 ? 50 : sm >= 70 || sm < 0 ? 25 : 20; }

// "0-7,16": the cores of a mask.
std::string cores_of(const std::string& affinity);

}  // namespace weft
