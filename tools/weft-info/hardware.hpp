// A machine for people.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "topology/machine.hpp"

namespace weft::info {

// A tree.
std::string hardware_text(const Machine& machine);
// Boxes in boxes, and NVLinks as lines.
std::string hardware_svg(const Machine& machine);
nlohmann::json hardware_json(const Machine& machine);

}  // namespace weft::info
