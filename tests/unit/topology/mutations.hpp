#pragma once

#include <cstdint>
#include <random>
#include <string>

namespace weft {

// The text with some bytes changed, cut out, copied from elsewhere (up to `longest`), or a number put in.
inline std::string mutated(const std::string& whole, std::mt19937& random, uint32_t most_changes, size_t longest) {
  std::string text = whole;
  for (uint32_t changes = 1 + random() % most_changes; changes > 0; --changes) {
    const size_t at = random() % text.size();
    switch (random() % 4) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + random() % 8);
        break;
      case 2:
        text.insert(at, whole.substr(random() % whole.size(), random() % longest));
        break;
      default:
        text.insert(at, std::to_string(random()));
    }
  }
  return text;
}

}  // namespace weft
