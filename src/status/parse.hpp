// Numbers in text: the whole text is one, or nothing is.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "status/status.hpp"

namespace weft {

template <typename Integer>
std::optional<Integer> parse_integer(std::string_view text) {
  Integer value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "8", "64K", "16M", "1G": binary.
inline std::optional<size_t> parse_size(std::string_view text) {
  int shift = 0;
  constexpr std::string_view kUnits = "KMG";
  if (const size_t unit = text.empty() ? std::string_view::npos : kUnits.find(text.back()); unit < kUnits.size()) {
    shift = 10 * (static_cast<int>(unit) + 1);
    text.remove_suffix(1);
  }
  const auto value = parse_integer<size_t>(text);
  if (!value || *value > SIZE_MAX >> shift) return std::nullopt;
  return *value << shift;
}

// "8,64K,1M"
inline Result<std::vector<size_t>> parse_sizes(std::string_view text) {
  std::vector<size_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto size = parse_size(text.substr(begin, end - begin));
    if (!size) {
      return error(weftInvalidArgument, "'{}' is not a size; legal: numbers, with K, M or G, such as 8,64K,1M",
                   text.substr(begin, end - begin));
    }
    sizes.push_back(*size);
    begin = end + 1;
  }
  return sizes;
}

}  // namespace weft
