// The texts of algorithms/*.algo, compiled in.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace weft {

struct EmbeddedProgram {
  std::string_view file, text;
};
std::span<const EmbeddedProgram> embedded_programs();

}  // namespace weft
