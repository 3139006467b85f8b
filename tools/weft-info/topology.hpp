// A topology for people.
#pragma once

#include <string>

#include "topology/topology.hpp"

namespace weft::info {

// A tree; of many groups that are alike only the first are shown.
std::string topology_text(const Topology& topology);
// Boxes in boxes.
std::string topology_svg(const Topology& topology);

}  // namespace weft::info
