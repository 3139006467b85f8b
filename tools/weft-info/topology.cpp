#include "topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "plural.hpp"

namespace weft::info {
namespace {

constexpr size_t kShown = 8;  // parts of a group, in text

std::string speed(const Topology& topology, int level) {
  const auto found = topology.links.find(topology.hierarchy.name(level));
  if (found == topology.links.end()) return "";
  const Link& link = found->second;
  return fmt::format(" ({:.4g} us, {:.4g} GB/s out of each)", link.latency_us, 1 / link.byte_ns);
}

// "0-3, 8"
std::string ranges(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0, end = 0; i < ranks.size(); i = end) {
    for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (end > i + 1) text += fmt::format("-{}", ranks[end - 1]);
  }
  return text;
}

// The ranks of each group of a level.
std::vector<std::vector<int>> members(const Hierarchy& tree, int level) {
  std::vector<std::vector<int>> groups(static_cast<size_t>(tree.groups(level)));
  for (int rank = 0; rank < tree.ranks(); ++rank) groups[static_cast<size_t>(tree.group(level, rank))].push_back(rank);
  return groups;
}

// The parts of the group with these ranks: numbers of groups of the level below.
std::vector<int> parts_of(const Hierarchy& tree, int level, const std::vector<int>& ranks) {
  std::vector<int> parts;
  for (const int rank : ranks) parts.push_back(level == 0 ? rank : tree.group(level - 1, rank));
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  return parts;
}

std::string part_name(const Hierarchy& tree, int level) { return level == 0 ? "rank" : tree.name(level - 1); }

void write(const Topology& topology, const std::vector<std::vector<std::vector<int>>>& groups, int level, int group,
           std::string& text) {
  const Hierarchy& tree = topology.hierarchy;
  const std::vector<int>& ranks = groups[static_cast<size_t>(level)][static_cast<size_t>(group)];
  const std::string indent(static_cast<size_t>(2 * (tree.levels() - 1 - level)), ' ');
  const std::vector<int> parts = parts_of(tree, level, ranks);
  const std::string name =
      level + 1 == tree.levels() ? tree.name(level) : fmt::format("{} {}", tree.name(level), group);
  if (level == 0) {
    text += fmt::format("{}{}: {} {}\n", indent, name, ranks.size() == 1 ? "rank" : "ranks", ranges(ranks));
    return;
  }
  text += fmt::format("{}{}: {}\n", indent, name, plural(parts.size(), part_name(tree, level)));
  for (size_t i = 0; i < std::min(parts.size(), kShown); ++i) write(topology, groups, level - 1, parts[i], text);
  if (parts.size() > kShown) text += fmt::format("{}  ... and {} more\n", indent, parts.size() - kShown);
}

struct Box {
  double width = 0, height = 0;
  std::string body;  // at 0, 0
};

Box draw(const Topology& topology, const std::vector<std::vector<std::vector<int>>>& groups, int level, int group) {
  const Hierarchy& tree = topology.hierarchy;
  const std::vector<int>& ranks = groups[static_cast<size_t>(level)][static_cast<size_t>(group)];
  const std::vector<int> parts = parts_of(tree, level, ranks);
  constexpr double kGap = 8, kTitle = 20, kCell = 34;
  const bool lowest = level == 0;
  const auto columns = static_cast<size_t>(lowest || level + 1 == tree.levels() ? 8 : 4);
  double x = kGap, y = kTitle + kGap, row = 0, width = 150;
  std::string inside;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Box box =
        lowest ? Box{kCell, 22,
                     fmt::format("<rect class=\"r\" width=\"{0}\" height=\"22\" rx=\"4\"/><text x=\"{1}\" y=\"15\" "
                                 "text-anchor=\"middle\">{2}</text>",
                                 kCell, kCell / 2, parts[i])}
               : draw(topology, groups, level - 1, parts[i]);
    if (i > 0 && i % columns == 0) {
      x = kGap;
      y += row + kGap;
      row = 0;
    }
    inside += fmt::format("<g transform=\"translate({:.0f},{:.0f})\">{}</g>\n", x, y, box.body);
    x += box.width + kGap;
    row = std::max(row, box.height);
    width = std::max(width, x);
  }
  const std::string title =
      (level + 1 == tree.levels() ? tree.name(level) : fmt::format("{} {}", tree.name(level), group)) +
      (level + 1 == tree.levels() || group == 0 ? speed(topology, level) : "");
  width = std::max(width, 7.0 * static_cast<double>(title.size()) + 2 * kGap);
  const double height = y + row + kGap;
  return {width, height,
          fmt::format(
              "<rect class=\"l{}\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"6\"/><text x=\"8\" y=\"15\">{}</text>\n{}",
              level % 4, width, height, title, inside)};
}

}  // namespace

std::string topology_text(const Topology& topology) {
  const Hierarchy& tree = topology.hierarchy;
  std::string text = plural(static_cast<size_t>(tree.ranks()), "rank") + "\n";
  for (int level = tree.levels() - 1; level >= 0; --level) {
    text += fmt::format("between the {}s of {} {}{}\n", part_name(tree, level),
                        level + 1 == tree.levels() ? "the" : "a", tree.name(level), speed(topology, level));
  }
  if (tree.is_ordered()) text += "rings go through the ranks " + ranges(tree.ring()) + "\n";
  std::vector<std::vector<std::vector<int>>> groups;
  for (int level = 0; level < tree.levels(); ++level) groups.push_back(members(tree, level));
  write(topology, groups, tree.levels() - 1, 0, text);
  return text;
}

std::string topology_svg(const Topology& topology) {
  std::vector<std::vector<std::vector<int>>> groups;
  for (int level = 0; level < topology.hierarchy.levels(); ++level)
    groups.push_back(members(topology.hierarchy, level));
  const Box box = draw(topology, groups, topology.hierarchy.levels() - 1, 0);
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\">\n"
      "<style>text {{ font: 12px sans-serif; fill: #333 }} rect {{ stroke: #8aa }} .l0 {{ fill: #eef6fb }} .l1 {{ "
      "fill: "
      "#dfeaf3 }} .l2 {{ fill: #cfdeea }} .l3 {{ fill: #f4f4ee }} .r {{ fill: #fff }}</style>\n{2}</svg>\n",
      box.width, box.height, box.body);
}

}  // namespace weft::info
