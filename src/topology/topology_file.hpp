// Topologies as JSON: what weft-info --topology writes, what WEFT_TOPOLOGY names, what weft-sim runs on.
//
//   {"weft_topology": 1,
//    "ranks": 8,                                            left out where only hosts are told of
//    "levels": [{"name": "node", "groups": [0,0,0,0,1,1,1,1],  by rank; or "size": 4, groups of so many ranks each
//                "latency_us": 0.5, "message_us": 0.1, "bandwidth_GBs": 10},     all three may be left out
//               {"name": "world", "latency_us": 5, "bandwidth_GBs": 12.5}],      the last needs no groups
//    "ring": [0,1,2,3,4,5,6,7],                             the order of rings; ranks by number where left out
//    "hosts": {"node7": {"rack": "r1", "site": "east"}}}
//
// latency_us is what a step takes at least, message_us what each message costs its sender and its receiver, and
// bandwidth_GBs (10^9 bytes a second, each way) is what leads out of a rank on the lowest level, and out of a whole
// group of the level below on a higher one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "status/status.hpp"
#include "topology/topology.hpp"

namespace weft {

struct TopologyFile {
  struct Host {
    std::string rack, site;
  };
  int ranks = 0;  // 0: of no particular number
  std::vector<Hierarchy::Level> levels;
  std::map<std::string, Link> links;  // by the name of the level
  std::vector<int> ring;              // all ranks in the order of rings; empty: nothing is said
  std::map<std::string, Host> hosts;
  std::string text;
};

// Errors are weftInvalidArgument and name the file, the value and what is legal.
Result<TopologyFile> parse_topology(std::string_view text, const std::string& file);
// Of up to 64 MiB.
Result<std::string> read_text(const std::string& path);
// Whether it is meant to be XML: then it is of a machine (machine_xml.hpp).
bool looks_like_xml(std::string_view text);
// An empty path: nothing is known.
Result<TopologyFile> read_topology(const std::string& path);
// Of given ranks. The hosts are not among it.
Topology topology_of(const TopologyFile& file);
// What parse_topology reads back.
std::string to_json(const Topology& topology);

}  // namespace weft
