// What this machine has that matters to Weft besides transports: hardware and limits.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace weft::info {

std::string machine_text();
nlohmann::json machine_json();

}  // namespace weft::info
