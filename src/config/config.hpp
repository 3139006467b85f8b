// The process's configuration, read from the environment once and checked as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "status/status.hpp"

namespace weft {

struct Variable {
  std::string_view name;  // with its WEFT_ prefix
  std::string_view kind, standard, legal, help;
};
std::span<const Variable> variables();

struct Config {
#define WEFT_MEMBER_flag bool
#define WEFT_MEMBER_integer int64_t
#define WEFT_MEMBER_bytes int64_t
#define WEFT_MEMBER_seconds int64_t
#define WEFT_MEMBER_text std::string
#define WEFT_MEMBER_choice std::string
#define WEFT_VARIABLE(NAME, member, kind, standard, legal, help) WEFT_MEMBER_##kind member{};
#include "config/variables.def"
#undef WEFT_VARIABLE
};

using Getter = std::function<std::optional<std::string>(const std::string& name)>;
// Parses all variables; the first wrong one is the error. Unknown WEFT_ names are not seen here but by config().
Result<Config> parse_config(const Getter& get);
// The environment of this process, parsed at the first call and kept; warns once about unknown names.
const Result<Config>& config();

}  // namespace weft
