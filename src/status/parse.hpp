// Numbers in text: the whole text is one, or nothing is.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

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

}  // namespace weft
