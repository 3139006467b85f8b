// Topology: what is agreed on about where the ranks are and how they reach each other. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

struct Topology {
  int ranks = 1;
  std::vector<int> node;  // by rank: the lowest rank whose memory it shares
  int nodes = 1;
  int machines = 1;             // hosts, whether or not their ranks share memory
  bool one_process = true;      // all ranks are threads of one process
  bool oversubscribed = false;  // some machine has more ranks than cores
};

}  // namespace weft
