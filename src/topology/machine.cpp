#include "topology/machine.hpp"

#include <fmt/format.h>

#include <cctype>

namespace weft {

std::string cores_of(const std::string& affinity) {
  std::vector<bool> bits;  // from the lowest
  int in_word = 0;
  for (auto at = affinity.rbegin(); at != affinity.rend(); ++at) {
    if (*at == ',') {
      // A word may leave its zeros out.
      for (; in_word < 8; ++in_word) bits.insert(bits.end(), 4, false);
      in_word = 0;
      continue;
    }
    if (std::isxdigit(static_cast<unsigned char>(*at)) == 0) break;
    const int digit = *at <= '9' ? *at - '0' : (*at | 0x20) - 'a' + 10;
    for (int bit = 0; bit < 4; ++bit) bits.push_back((digit >> bit & 1) != 0);
    ++in_word;
  }
  std::string text;
  for (size_t first = 0, end = 0; first < bits.size(); first = end + 1) {
    for (end = first; end < bits.size() && bits[end];) ++end;
    if (end == first) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (end > first + 1) text += fmt::format("-{}", end - 1);
  }
  return text;
}

}  // namespace weft
