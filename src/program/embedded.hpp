// The texts of algorithms/, compiled in.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace weft {

struct EmbeddedFile {
  std::string_view file, text;
};
std::span<const EmbeddedFile> embedded_programs();  // *.algo
std::span<const EmbeddedFile> embedded_tune();      // defaults.tune

}  // namespace weft
