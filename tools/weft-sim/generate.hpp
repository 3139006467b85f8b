// Topologies of clusters as they are built, for those who have none yet.
#pragma once

#include <string>

#include "topology/topology.hpp"

namespace weft {

// Of each kind: ranks of a node, nodes of a rack (of a group of a dragonfly, of a site), and how many of those.
struct ClusterShape {
  int ranks = 8, nodes = 8, groups = 4;
  Link node{1, 0.2, 1.0 / 200};        // inside a node: a rank's link
  Link network{5, 0.5, 1.0 / 50};      // between nodes: a rank's share of its node's adapters
  double oversubscription = 2;         // what the nodes of a rack could send, over what leads out of it
  double wan_ms = 20, wan_GBs = 1.25;  // between sites: one way, and what leads out of a site
};

// Racks under a spine: what leads out of a rack is oversubscribed.
Topology fat_tree(const ClusterShape& shape);
// One switch for the first adapters of all nodes, one for the second, ...: nothing is shared but the node's adapters.
// Racks do not exist; there are nodes * groups nodes.
Topology rail_optimised(const ClusterShape& shape);
// Groups of nodes, each with links to every other group: fewer than the nodes could use.
Topology dragonfly(const ClusterShape& shape);
// Sites with long links between them.
Topology sites(const ClusterShape& shape);

}  // namespace weft
