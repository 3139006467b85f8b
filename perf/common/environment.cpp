#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "common/options.hpp"

namespace weft::perf {
namespace {

const char* get(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

double number(const char* name, const char* text, double low, double high) {
  char* end = nullptr;
  double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= low && value <= high))
    throw std::invalid_argument(fmt::format("{}='{}' must be a number from {:g} to {:g}", name, text, low, high));
  return value;
}

// The results file is meant to be passed on: names that tell of secrets keep their value to themselves.
std::string without_secret(const char* entry) {
  std::string_view text = entry;
  std::string_view name = text.substr(0, text.find('='));
  for (std::string_view word : {"SECRET", "TOKEN", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL"})
    if (name.find(word) != std::string_view::npos) return fmt::format("{}=(hidden)", name);
  return std::string(text);
}

}  // namespace

Environment read_environment() {
  Environment e;
  if (const char* v = get("NCCL_TESTS_MIN_BW")) e.min_bandwidth = number("NCCL_TESTS_MIN_BW", v, 0, 1e9);
  if (const char* v = get("NCCL_TESTS_DEVICE"))
    e.first_device = static_cast<int>(number("NCCL_TESTS_DEVICE", v, 0, 1 << 20));
  if (const char* v = get("NCCL_TESTS_SPLIT_MASK"))
    e.split = fmt::format("&{}{}", std::string_view(v).starts_with("0x") ? "" : "0x", v);
  else if (const char* s = get("NCCL_TESTS_SPLIT"))
    e.split = s;
  if (const char* v = get("NCCL_TESTS_ALLTOALLV_SPREAD"))
    e.alltoallv_spread = number("NCCL_TESTS_ALLTOALLV_SPREAD", v, 0, 1);
  if (const char* v = get("NCCL_TESTS_ALLTOALLV_MATRIX_FILE")) e.alltoallv_matrix_file = v;
  if (const char* v = get("NCCL_TESTS_ALLTOALLV_MATRIX_SCALE"))
    e.alltoallv_matrix_scale = number("NCCL_TESTS_ALLTOALLV_MATRIX_SCALE", v, 0, 1e9);
  for (char** entry = environ; *entry != nullptr; ++entry) e.all.push_back(without_secret(*entry));
  return e;
}

int split_color(const std::string& split, int rank) {
  if (split.empty()) return 0;
  std::string_view rest = split;
  auto take = [&rest](std::string_view word, char symbol) {
    bool spelt = rest.size() >= word.size() && std::equal(word.begin(), word.end(), rest.begin(),
                                                          [](char a, char b) { return a == std::toupper(b); });
    if (!spelt && (rest.empty() || rest[0] != symbol)) return false;
    rest.remove_prefix(spelt ? word.size() : 1);
    return true;
  };
  char op = take("AND", '&') ? '&' : take("OR", '|') ? '|' : take("MOD", '%') ? '%' : take("DIV", '/') ? '/' : '?';
  while (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
  std::string digits(rest);
  bool binary = digits.starts_with("0b") || digits.starts_with("0B");
  char* end = nullptr;
  long value = binary ? std::strtol(digits.c_str() + 2, &end, 2) : std::strtol(digits.c_str(), &end, 0);
  bool divides = op == '%' || op == '/';
  if (op == '?' || digits.empty() || *end != '\0' || value < (divides ? 1 : 0) || value > 0x7fffffff)
    throw std::invalid_argument(fmt::format(
        "NCCL_TESTS_SPLIT='{}' must be AND, OR, MOD or DIV (or & | % /) and a number, such as 'MOD 2'", split));
  int v = static_cast<int>(value);
  return op == '&' ? rank & v : op == '|' ? rank | v : op == '%' ? rank % v : rank / v;
}

}  // namespace weft::perf
