// The transports of this build, and whether they are usable here.
#pragma once

#include <string>

#include "config/config.hpp"

namespace weft::info {

std::string transports_text(const Config& config);
std::string transports_json(const Config& config);

}  // namespace weft::info
