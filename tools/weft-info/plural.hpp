#pragma once

#include <fmt/format.h>

#include <string>

namespace weft::info {

// "1 GPU", "2 GPUs"
inline std::string plural(size_t count, const std::string& name) {
  return fmt::format("{} {}{}", count, name, count == 1 ? "" : "s");
}

}  // namespace weft::info
