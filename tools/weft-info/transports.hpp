// The transports of this build with their devices, and whether they are usable here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "config/config.hpp"

namespace weft::info {

std::string transports_text(const Config& config);
nlohmann::json transports_json(const Config& config);

}  // namespace weft::info
