// Splits the text of a program into tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "status/status.hpp"

namespace weft {

struct Token {
  enum class Kind : uint8_t { word, number, symbol, end };
  Kind kind = Kind::end;
  std::string_view text;
  int64_t value = 0;
  uint32_t line = 1, column = 1;

  std::string quoted() const { return kind == Kind::end ? std::string(text) : "'" + std::string(text) + "'"; }
  bool is(std::string_view expected) const { return kind != Kind::number && text == expected; }
};

// The last token is an end. `text` must outlive the tokens.
Result<std::vector<Token>> tokenize(std::string_view text, const std::string& file);

}  // namespace weft
