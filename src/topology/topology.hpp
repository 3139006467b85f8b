// Topology: what is agreed on about where the ranks are and how they reach each other. A plain value.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "topology/hierarchy.hpp"

namespace weft {

// What leads from part to part on one level of the hierarchy. Ones, where things are only counted.
struct Link {
  double latency_us = 1;  // of a step
  double message_us = 1;  // of each message, at both ends
  double byte_ns = 1;     // out of, or into, a rank (lowest level) or a whole group of the level below
};
using Links = std::vector<Link>;  // by level

struct Topology {
  int ranks = 1;
  std::vector<int> node;  // by rank: the lowest rank whose memory it shares
  int nodes = 1;
  int machines = 1;             // hosts, whether or not their ranks share memory
  bool one_process = true;      // all ranks are threads of one process
  bool oversubscribed = false;  // some machine has more ranks than cores
  Hierarchy hierarchy = Hierarchy::flat(1);
  std::map<std::string, Link> links;  // by the name of the level, where they are known
};

}  // namespace weft
