#include "generate.hpp"

#include <utility>
#include <vector>

namespace weft {
namespace {

struct Level {
  const char* name;
  int parts;
  Link link;
};

Topology build(const std::vector<Level>& levels) {
  Topology topology;
  for (const Level& level : levels) topology.ranks *= level.parts;
  std::vector<Hierarchy::Level> told;
  int size = 1;
  for (const Level& level : levels) {
    size *= level.parts;
    topology.links[level.name] = level.link;
    if (size == topology.ranks) break;
    Hierarchy::Level groups{level.name, {}};
    for (int rank = 0; rank < topology.ranks; ++rank) groups.group_of.push_back(rank / size);
    told.push_back(std::move(groups));
  }
  topology.links["world"] = levels.back().link;
  topology.hierarchy = Hierarchy::create(topology.ranks, told);
  const int node = levels.front().parts;
  for (int rank = 0; rank < topology.ranks; ++rank) topology.node.push_back(rank / node * node);
  topology.nodes = topology.machines = topology.ranks / node;
  topology.one_process = false;
  return topology;
}

// What leads out of a node of so many ranks.
Link out_of_node(const ClusterShape& shape) {
  Link link = shape.network;
  link.byte_ns /= shape.ranks;
  return link;
}

Link out_of_group(const ClusterShape& shape, double hops) {
  Link link = shape.network;
  link.latency_us *= hops;
  link.byte_ns *= shape.oversubscription / (shape.ranks * shape.nodes);
  return link;
}

}  // namespace

Topology fat_tree(const ClusterShape& shape) {
  return build({{"node", shape.ranks, shape.node},
                {"rack", shape.nodes, out_of_node(shape)},
                {"world", shape.groups, out_of_group(shape, 1.6)}});
}

Topology rail_optimised(const ClusterShape& shape) {
  return build({{"node", shape.ranks, shape.node}, {"world", shape.nodes * shape.groups, out_of_node(shape)}});
}

Topology dragonfly(const ClusterShape& shape) {
  return build({{"node", shape.ranks, shape.node},
                {"group", shape.nodes, out_of_node(shape)},
                {"world", shape.groups, out_of_group(shape, 1.3)}});
}

Topology sites(const ClusterShape& shape) {
  return build({{"node", shape.ranks, shape.node},
                {"site", shape.nodes, out_of_node(shape)},
                {"world", shape.groups, {shape.wan_ms * 1000, shape.network.message_us, 1 / shape.wan_GBs}}});
}

}  // namespace weft
