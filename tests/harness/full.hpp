// What kind of run this is: a sample or everything, with a sanitizer or without.
#pragma once

#include <cstdlib>
#include <string_view>

namespace weft::testing {

// Whether the whole grids, and each case's own counts, are asked for: WEFT_TEST_FULL.
inline bool test_full() {
  const char* given = std::getenv("WEFT_TEST_FULL");
  return given != nullptr && *given != '\0' && std::string_view(given) != "0";
}

constexpr bool sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

}  // namespace weft::testing
