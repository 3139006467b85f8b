#include "topology/topology_file.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kMostRanks = 1 << 20, kMostLevels = 8;
constexpr std::uintmax_t kMostFile = 64 << 20;
constexpr double kMostMicroseconds = 1e9, kMostBandwidth = 1e6, kLeastBandwidth = 1e-9;

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}
  Result<TopologyFile> read(std::string_view text);

 private:
  Status wrong(const std::string& what, const json& value, std::string_view legal) const {
    std::string shown = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    return error(weftInvalidArgument, "{}: {} is {}; legal: {}", file_, what, shown, legal);
  }
  Status only(const std::string& what, const json& object, std::initializer_list<std::string_view> legal) const;
  Status number(const json& object, const std::string& what, const char* key, double least, double most,
                double& into) const;
  Status integer(const json& object, const std::string& what, const char* key, int64_t most, int64_t& into) const;
  Status level(const json& value, const std::string& what, bool is_last);
  Status ring(const json& value);
  Status hosts(const json& value);

  std::string file_;
  TopologyFile result_;
};

Status Reader::only(const std::string& what, const json& object, std::initializer_list<std::string_view> legal) const {
  std::string names;
  for (const std::string_view name : legal) names += (names.empty() ? "" : ", ") + std::string(name);
  if (!object.is_object()) return wrong(what, object, "an object with " + names);
  for (const auto& item : object.items()) {
    if (std::find(legal.begin(), legal.end(), item.key()) != legal.end()) continue;
    return error(weftInvalidArgument, "{}: {} has '{}'; legal: {}", file_, what, item.key(), names);
  }
  return {};
}

Status Reader::number(const json& object, const std::string& what, const char* key, double least, double most,
                      double& into) const {
  const auto found = object.find(key);
  if (found == object.end()) return {};
  const double value = found->is_number() ? found->get<double>() : -1;
  if (!(value >= least && value <= most)) {
    return wrong(what + "." + key, *found, fmt::format("a number from {} to {}", least, most));
  }
  into = value;
  return {};
}

Status Reader::integer(const json& object, const std::string& what, const char* key, int64_t most,
                       int64_t& into) const {
  const auto found = object.find(key);
  if (found == object.end()) return {};
  into = found->is_number_integer() ? found->get<int64_t>() : 0;
  if (found->is_number_unsigned() && found->get<uint64_t>() > static_cast<uint64_t>(most)) into = 0;
  if (into < 1 || into > most) return wrong(what + key, *found, fmt::format("1 to {}", most));
  return {};
}

Status Reader::level(const json& value, const std::string& what, bool is_last) {
  WEFT_RETURN_IF_ERROR(only(what, value, {"name", "groups", "size", "latency_us", "message_us", "bandwidth_GBs"}));
  const auto name = value.find("name");
  if (name == value.end() || !name->is_string() || name->get<std::string>().empty()) {
    return wrong(what + ".name", name == value.end() ? json() : *name, "a name such as node, rack or site");
  }
  Hierarchy::Level level{name->get<std::string>(), {}};
  for (const auto& known : result_.levels) {
    if (known.name == level.name) return wrong(what + ".name", *name, "names that differ from level to level");
  }
  Link link{0, 0, 0};
  double bandwidth = 0;
  WEFT_RETURN_IF_ERROR(number(value, what, "latency_us", 0, kMostMicroseconds, link.latency_us));
  WEFT_RETURN_IF_ERROR(number(value, what, "message_us", 0, kMostMicroseconds, link.message_us));
  WEFT_RETURN_IF_ERROR(number(value, what, "bandwidth_GBs", kLeastBandwidth, kMostBandwidth, bandwidth));
  const bool timed = value.contains("latency_us") && bandwidth > 0;
  if (!timed && (value.contains("latency_us") || value.contains("message_us") || bandwidth > 0)) {
    return wrong(what, value, "latency_us and bandwidth_GBs together (and message_us with them), or none of them");
  }
  if (timed) {
    link.byte_ns = 1 / bandwidth;
    result_.links[level.name] = link;
  }

  const auto groups = value.find("groups");
  int64_t size = 0;
  WEFT_RETURN_IF_ERROR(integer(value, what + ".", "size", kMostRanks, size));
  if (is_last && groups == value.end() && size == 0) return {};
  if ((groups != value.end()) == (size > 0)) return wrong(what, value, "either groups or size");
  if (result_.ranks == 0) return wrong("ranks", json(), "a number of ranks, where levels have groups");
  const auto ranks = static_cast<size_t>(result_.ranks);
  if (size > 0) {
    for (size_t rank = 0; rank < ranks; ++rank)
      level.group_of.push_back(static_cast<int>(rank / static_cast<size_t>(size)));
  } else {
    if (!groups->is_array() || groups->size() != ranks) {
      return wrong(what + ".groups", *groups, fmt::format("a list of {} numbers, one for each rank", ranks));
    }
    for (const json& group : *groups) {
      if (!group.is_number_integer() || group < 0 || group >= kMostRanks) {
        return wrong(what + ".groups", group, fmt::format("numbers from 0 to {}", kMostRanks - 1));
      }
      level.group_of.push_back(group.get<int>());
    }
  }
  result_.levels.push_back(std::move(level));
  return {};
}

Status Reader::ring(const json& value) {
  const std::string legal = fmt::format("a list of the ranks 0 to {}, each of them once", result_.ranks - 1);
  if (result_.ranks == 0) return wrong("ranks", json(), "a number of ranks, where there is a ring");
  if (!value.is_array() || value.size() != static_cast<size_t>(result_.ranks)) return wrong("ring", value, legal);
  std::vector<bool> met(value.size());
  for (const json& rank : value) {
    if (!rank.is_number_integer() || rank < 0 || rank >= result_.ranks || met[rank.get<size_t>()])
      return wrong("ring", rank, legal);
    met[rank.get<size_t>()] = true;
    result_.ring.push_back(rank.get<int>());
  }
  return {};
}

Status Reader::hosts(const json& value) {
  if (!value.is_object()) return wrong("hosts", value, "an object with a host's labels under its name");
  for (const auto& item : value.items()) {
    const std::string what = "hosts." + item.key();
    WEFT_RETURN_IF_ERROR(only(what, item.value(), {"rack", "site"}));
    TopologyFile::Host& host = result_.hosts[item.key()];
    for (const auto& [key, into] : {std::pair("rack", &host.rack), std::pair("site", &host.site)}) {
      const auto found = item.value().find(key);
      if (found == item.value().end()) continue;
      if (!found->is_string()) return wrong(what + "." + key, *found, "a name");
      *into = found->get<std::string>();
    }
  }
  return {};
}

Result<TopologyFile> Reader::read(std::string_view text) {
  const json all = json::parse(text, nullptr, false);
  if (all.is_discarded() && looks_like_xml(text)) {
    return error(weftInvalidArgument,
                 "{}: XML, which tells of one machine and not of a job's ranks (weft-info --topology shows it); legal: "
                 "JSON, as weft-probe writes it",
                 file_);
  }
  if (all.is_discarded()) return error(weftInvalidArgument, "{}: not JSON", file_);
  WEFT_RETURN_IF_ERROR(only("the topology", all, {"weft_topology", "ranks", "levels", "ring", "hosts"}));
  if (!all.contains("weft_topology") || all["weft_topology"] != 1) {
    return wrong("weft_topology", all.value("weft_topology", json()), "1, the version of the format");
  }
  int64_t ranks = 0;
  WEFT_RETURN_IF_ERROR(integer(all, "", "ranks", kMostRanks, ranks));
  result_.ranks = static_cast<int>(ranks);
  if (all.contains("levels")) {
    const json& levels = all["levels"];
    if (!levels.is_array() || levels.size() > kMostLevels) {
      return wrong("levels", levels, fmt::format("a list of up to {}", kMostLevels));
    }
    for (size_t i = 0; i < levels.size(); ++i) {
      WEFT_RETURN_IF_ERROR(level(levels[i], fmt::format("levels[{}]", i), i + 1 == levels.size()));
    }
  }
  if (all.contains("ring")) WEFT_RETURN_IF_ERROR(ring(all["ring"]));
  if (all.contains("hosts")) WEFT_RETURN_IF_ERROR(hosts(all["hosts"]));
  result_.text = text;
  return std::move(result_);
}

}  // namespace

Result<TopologyFile> parse_topology(std::string_view text, const std::string& file) { return Reader(file).read(text); }

bool looks_like_xml(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '<';
}

Result<std::string> read_text(const std::string& path) {
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  if (failed) return error(weftInvalidArgument, "{}: {}", path, failed.message());
  if (size > kMostFile) return error(weftInvalidArgument, "{}: {} bytes; legal: up to {}", path, size, kMostFile);
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) return error(weftInvalidArgument, "{} cannot be read", path);
  return text;
}

Result<TopologyFile> read_topology(const std::string& path) {
  if (path.empty()) return TopologyFile{};
  const auto text = read_text(path);
  return text.ok() ? parse_topology(text.value(), path) : text.status();
}

// Ranks of one group of the level that is called a node share memory; without one, none do.
Topology topology_of(const TopologyFile& file) {
  Topology topology;
  topology.ranks = std::max(file.ranks, 1);
  topology.hierarchy = Hierarchy::create(topology.ranks, file.levels, file.ring);
  topology.links = file.links;
  topology.one_process = false;
  const Hierarchy& tree = topology.hierarchy;
  const bool has_nodes = tree.levels() > 1 && tree.name(0) == kNodeLevel;
  std::vector<int> lowest(has_nodes ? static_cast<size_t>(tree.groups(0)) : 0, -1);
  for (int rank = 0; rank < topology.ranks; ++rank) {
    int first = rank;
    if (has_nodes) {
      int& known = lowest[static_cast<size_t>(tree.group(0, rank))];
      if (known < 0) known = rank;
      first = known;
    }
    topology.node.push_back(first);
  }
  topology.nodes = has_nodes ? tree.groups(0) : topology.ranks;
  topology.machines = topology.nodes;
  return topology;
}

std::string to_json(const Topology& topology) {
  const Hierarchy& tree = topology.hierarchy;
  ordered_json levels = ordered_json::array();
  for (int level = 0; level < tree.levels(); ++level) {
    ordered_json one{{"name", tree.name(level)}};
    if (level + 1 < tree.levels()) {
      ordered_json groups = ordered_json::array();
      for (int rank = 0; rank < tree.ranks(); ++rank) groups.push_back(tree.group(level, rank));
      one["groups"] = std::move(groups);
    }
    if (const auto link = topology.links.find(tree.name(level)); link != topology.links.end()) {
      one["latency_us"] = link->second.latency_us;
      one["message_us"] = link->second.message_us;
      one["bandwidth_GBs"] = 1 / link->second.byte_ns;
    }
    levels.push_back(std::move(one));
  }
  ordered_json all{{"weft_topology", 1}, {"ranks", tree.ranks()}, {"levels", std::move(levels)}};
  if (tree.is_ordered()) all["ring"] = tree.ring();
  return all.dump(1);
}

}  // namespace weft
