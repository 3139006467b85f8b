// The table of WEFT_ variables in three forms.
#pragma once

#include <string>

namespace weft::info {

std::string environment_text();
std::string environment_json();
std::string environment_markdown();  // docs/environment.md

}  // namespace weft::info
