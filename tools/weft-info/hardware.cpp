#include "hardware.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "plural.hpp"

namespace weft::info {
namespace {

std::string speed(const Pci& pci) { return fmt::format("PCIe x{}, {:.3g} GB/s", pci.width, bandwidth_of(pci)); }

std::string speed(const Net& net) { return fmt::format("{:g} Gbit/s", net.megabits / 1000); }

std::string title(const Numa& numa) {
  std::string text = numa.number < 0 ? "NUMA node not known" : fmt::format("NUMA node {}", numa.number);
  if (numa.package >= 0) text += fmt::format(", package {}", numa.package);
  const std::string cores = cores_of(numa.affinity);
  if (!cores.empty()) text += ", cores " + cores;
  if (numa.bytes > 0) text += fmt::format(", {} MiB", numa.bytes >> 20);
  if (numa.cache_bytes > 0) text += fmt::format(", L3 {} MiB", numa.cache_bytes >> 20);
  return text;
}

// Who is at the other end of an NVLink: a GPU of this machine, or a switch (-1).
int gpu_at(const Machine& machine, const NvLink& link) {
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    if (machine.pcis[static_cast<size_t>(machine.gpus[i].pci)].bus == link.target) return static_cast<int>(i);
  }
  return -1;
}

// By the other end.
std::map<int, int> links_of(const Machine& machine, const Gpu& gpu) {
  std::map<int, int> counts;
  for (const NvLink& link : gpu.links) counts[gpu_at(machine, link)] += link.count;
  return counts;
}

std::string nvlinks(const Machine& machine, const Gpu& gpu) {
  std::string text;
  for (const auto& [to, count] : links_of(machine, gpu)) {
    text += fmt::format("{}{} to {}", text.empty() ? ", NVLinks: " : ", ", count,
                        to < 0 ? "switches" : fmt::format("GPU {}", machine.gpus[static_cast<size_t>(to)].dev));
    text += fmt::format(" ({:g} GB/s)", count * nvlink_bandwidth(gpu.sm));
  }
  return text;
}

std::string describe(const Machine& machine, const Gpu& gpu) {
  std::string text = fmt::format("GPU {}", gpu.dev);
  if (gpu.rank >= 0) text += fmt::format(", rank {}", gpu.rank);
  if (gpu.sm >= 0) text += fmt::format(", sm {}", gpu.sm);
  return text + nvlinks(machine, gpu);
}

// What hangs on one NUMA node or PCI device.
struct Below {
  std::vector<size_t> pcis, gpus, nets;
};
Below below(const Machine& machine, int numa, int pci) {
  Below found;
  for (size_t i = 0; i < machine.pcis.size(); ++i) {
    if (machine.pcis[i].parent == pci && (pci >= 0 || machine.pcis[i].numa == numa)) found.pcis.push_back(i);
  }
  for (size_t i = 0; pci >= 0 && i < machine.gpus.size(); ++i) {
    if (machine.gpus[i].pci == pci) found.gpus.push_back(i);
  }
  for (size_t i = 0; i < machine.nets.size(); ++i) {
    if (machine.nets[i].pci == pci && (pci >= 0 || machine.nets[i].numa == numa)) found.nets.push_back(i);
  }
  return found;
}

void write(const Machine& machine, int numa, int pci, size_t indent, std::string& text) {
  const Below inside = below(machine, numa, pci);
  const std::string space(indent, ' ');
  for (const size_t i : inside.gpus) text += fmt::format("{}{}\n", space, describe(machine, machine.gpus[i]));
  for (const size_t i : inside.nets) {
    text +=
        fmt::format("{}adapter {} {}, {}\n", space, machine.nets[i].dev, machine.nets[i].name, speed(machine.nets[i]));
  }
  for (const size_t i : inside.pcis) {
    const Pci& one = machine.pcis[i];
    text += fmt::format("{}{}{}{} ({})\n", space, one.kind == kPciBridge ? "switch " : "", one.bus,
                        one.vendor > 0 ? fmt::format(" {:04x}:{:04x}", one.vendor, one.device) : "", speed(one));
    write(machine, numa, static_cast<int>(i), indent + 2, text);
  }
}

struct Box {
  double width = 0, height = 0;
  std::string body;  // at 0, 0
};
constexpr double kGap = 8, kTitle = 20, kCellWidth = 118, kCellHeight = 38;

Box cell(const char* kind, const std::string& first, const std::string& second) {
  return {kCellWidth, kCellHeight,
          fmt::format("<rect class=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\"/><text x=\"6\" y=\"15\">{}</text>"
                      "<text x=\"6\" y=\"31\" class=\"small\">{}</text>",
                      kind, kCellWidth, kCellHeight, first, second)};
}

std::string escaped(std::string text) {
  for (const auto& [from, to] : {std::pair("&", "&amp;"), std::pair("<", "&lt;"), std::pair(">", "&gt;")}) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += 4) text.replace(at, 1, to);
  }
  return text;
}

// Boxes in rows of up to so many.
Box around(const char* kind, const std::string& title, const std::vector<Box>& boxes, size_t columns) {
  double x = kGap, y = kTitle + kGap, row = 0, width = 7.0 * static_cast<double>(title.size()) + 2 * kGap;
  std::string inside;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (i > 0 && i % columns == 0) {
      x = kGap;
      y += row + kGap;
      row = 0;
    }
    inside += fmt::format("<g transform=\"translate({:.0f},{:.0f})\">{}</g>\n", x, y, boxes[i].body);
    x += boxes[i].width + kGap;
    row = std::max(row, boxes[i].height);
    width = std::max(width, x);
  }
  const double height = y + row + kGap;
  return {width, height,
          fmt::format(
              "<rect class=\"{}\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"6\"/><text x=\"8\" y=\"15\">{}</text>\n{}",
              kind, width, height, escaped(title), inside)};
}

std::vector<Box> draw(const Machine& machine, int numa, int pci) {
  const Below inside = below(machine, numa, pci);
  std::vector<Box> boxes;
  for (const size_t i : inside.gpus) {
    int links = 0;
    for (const auto& [to, count] : links_of(machine, machine.gpus[i])) links += count;
    const Gpu& gpu = machine.gpus[i];
    boxes.push_back(cell("gpu", fmt::format("GPU {}", gpu.dev),
                         links == 0 ? "" : fmt::format("NVLink {:g} GB/s", links * nvlink_bandwidth(gpu.sm))));
  }
  for (const size_t i : inside.nets) {
    const Net& net = machine.nets[i];
    boxes.push_back(cell("net", escaped(net.name.substr(0, 16)), speed(net)));
  }
  for (const size_t i : inside.pcis) {
    std::vector<Box> deeper = draw(machine, numa, static_cast<int>(i));
    if (machine.pcis[i].kind != kPciBridge || deeper.empty()) {
      boxes.insert(boxes.end(), deeper.begin(), deeper.end());
      continue;
    }
    boxes.push_back(around("pci", "switch, " + speed(machine.pcis[i]), deeper, 1));
  }
  return boxes;
}

// One line for each pair of GPUs, and one for all that lead to switches.
std::string nvlink_lines(const Machine& machine) {
  std::map<std::string, std::vector<int>> said;
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    const Gpu& gpu = machine.gpus[i];
    for (const auto& [to, count] : links_of(machine, gpu)) {
      const double bandwidth = count * nvlink_bandwidth(gpu.sm);
      if (to < 0) {
        said[fmt::format("to NVSwitches, {} links, {:g} GB/s each way", count, bandwidth)].push_back(gpu.dev);
      } else if (static_cast<size_t>(to) > i) {
        said[fmt::format("to GPU {}, {} links, {:g} GB/s each way", machine.gpus[static_cast<size_t>(to)].dev, count,
                         bandwidth)]
            .push_back(gpu.dev);
      }
    }
  }
  std::string text;
  for (const auto& [what, gpus] : said) {
    text += fmt::format("{}GPU{} {} {}", text.empty() ? "" : "\n", gpus.size() == 1 ? "" : "s", fmt::join(gpus, ", "),
                        what);
  }
  return text;
}

}  // namespace

std::string hardware_text(const Machine& machine) {
  std::string text = fmt::format("{}, {}, {}\n", plural(machine.numas.size(), "NUMA node"),
                                 plural(machine.gpus.size(), "GPU"), plural(machine.nets.size(), "network adapter"));
  for (size_t i = 0; i < machine.numas.size(); ++i) {
    text += title(machine.numas[i]) + "\n";
    write(machine, static_cast<int>(i), -1, 2, text);
  }
  return text;
}

std::string hardware_svg(const Machine& machine) {
  std::vector<Box> numas;
  for (size_t i = 0; i < machine.numas.size(); ++i) {
    numas.push_back(around("numa", title(machine.numas[i]), draw(machine, static_cast<int>(i), -1), 4));
  }
  const std::string lines = nvlink_lines(machine);
  if (!lines.empty()) {
    std::vector<Box> rows;
    for (size_t begin = 0, end = 0; begin <= lines.size(); begin = end + 1) {
      end = std::min(lines.find('\n', begin), lines.size());
      const std::string line = lines.substr(begin, end - begin);
      rows.push_back({7.0 * static_cast<double>(line.size()), 14, "<text y=\"10\">" + line + "</text>"});
    }
    numas.push_back(around("link", "NVLinks", rows, 1));
  }
  const Box all = around("machine", "one machine", numas, 1);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\">\n"
      "<style>text {{ font: 12px sans-serif; fill: #333 }} .small {{ font-size: 10px }} rect {{ stroke: #8aa }} "
      ".machine {{ fill: #f4f4ee }} .numa {{ fill: #dfeaf3 }} .pci {{ fill: #eef6fb }} .gpu {{ fill: #d9efd4 }} "
      ".net {{ fill: #fbeed2 }} .link {{ fill: #e9f5e6 }}</style>\n{2}</svg>\n",
      all.width, all.height, all.body);
}

nlohmann::json hardware_json(const Machine& machine) {
  nlohmann::json json = {
      {"numa", nlohmann::json::array()}, {"gpus", nlohmann::json::array()}, {"nets", nlohmann::json::array()}};
  const auto node = [&](int numa) { return machine.numas[static_cast<size_t>(numa)].number; };
  const auto pci = [&](int index) { return machine.pcis[static_cast<size_t>(index)]; };
  for (const Numa& numa : machine.numas) {
    json["numa"].push_back({{"node", numa.number},
                            {"package", numa.package},
                            {"cores", cores_of(numa.affinity)},
                            {"bytes", numa.bytes},
                            {"cache_bytes", numa.cache_bytes}});
  }
  for (const Gpu& gpu : machine.gpus) {
    const Pci on = pci(gpu.pci);
    nlohmann::json links = nlohmann::json::array();
    for (const NvLink& link : gpu.links) links.push_back({{"target", link.target}, {"count", link.count}});
    json["gpus"].push_back({{"dev", gpu.dev},
                            {"bus", on.bus},
                            {"id", fmt::format("{:04x}:{:04x}", on.vendor, on.device)},
                            {"numa", node(on.numa)},
                            {"sm", gpu.sm},
                            {"pci_GBs", bandwidth_of(on)},
                            {"nvlinks", links}});
  }
  for (const Net& net : machine.nets) {
    json["nets"].push_back(
        {{"name", net.name}, {"dev", net.dev}, {"numa", node(net.numa)}, {"gbits", net.megabits / 1000}});
    if (net.pci >= 0) json["nets"].back()["bus"] = pci(net.pci).bus;
  }
  return json;
}

}  // namespace weft::info
