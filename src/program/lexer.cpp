#include "program/lexer.hpp"

#include <array>
#include <charconv>

namespace weft {
namespace {

// Longer symbols first, so that "<<" is not read as two "<".
constexpr std::array<std::string_view, 34> kSymbols = {
    "..", "+:", "==", "!=", "<=", ">=", "<<", ">>", "&&", "||", "+", "-", "*", "/", "%", "(", ")",
    "[",  "]",  "{",  "}",  ",",  "=",  "<",  ">",  "&",  "|",  "^", "~", "!", "?", ":", ";", "."};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view text, const std::string& file) {
  std::vector<Token> tokens;
  uint32_t line = 1;
  size_t line_start = 0;
  size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '\n') {
      ++line;
      line_start = ++at;
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\r') {
      ++at;
      continue;
    }
    if (c == '#') {
      while (at < text.size() && text[at] != '\n') ++at;
      continue;
    }
    Token token;
    token.line = line;
    token.column = static_cast<uint32_t>(at - line_start + 1);
    size_t length = 0;
    if (is_letter(c)) {
      token.kind = Token::Kind::word;
      while (at + length < text.size() && (is_letter(text[at + length]) || is_digit(text[at + length]))) ++length;
    } else if (is_digit(c)) {
      token.kind = Token::Kind::number;
      while (at + length < text.size() && is_digit(text[at + length])) ++length;
      const auto parsed = std::from_chars(text.data() + at, text.data() + at + length, token.value);
      if (parsed.ec != std::errc()) {
        return error(weftInvalidArgument, "{}:{}:{}: the number {} does not fit 64 bits", file, line, token.column,
                     text.substr(at, length));
      }
    } else {
      token.kind = Token::Kind::symbol;
      for (const std::string_view symbol : kSymbols) {
        if (text.substr(at, symbol.size()) == symbol) {
          length = symbol.size();
          break;
        }
      }
      if (length == 0) {
        return error(weftInvalidArgument, "{}:{}:{}: the character with code {} has no meaning here", file, line,
                     token.column, static_cast<int>(static_cast<unsigned char>(c)));
      }
    }
    token.text = text.substr(at, length);
    tokens.push_back(token);
    at += length;
  }
  Token end;
  end.text = "the end of the file";
  end.line = line;
  end.column = static_cast<uint32_t>(at - line_start + 1);
  tokens.push_back(end);
  return tokens;
}

}  // namespace weft
