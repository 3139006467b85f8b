// The process's configuration, read from the environment once and checked as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
// The environment of this process.
std::optional<std::string> from_environment(const std::string& name);
// Parses all variables; the first wrong one is the error. Unknown WEFT_ names are not seen here but by config().
Result<Config> parse_config(const Getter& get);
// The environment of this process, parsed at the first call and kept; warns once about unknown names.
const Result<Config>& config();
// Reads the environment again, for tests. What config() returned before stays valid.
const Result<Config>& reread_config();

// Where this user's run-time files go: $XDG_RUNTIME_DIR/weft, else /tmp/weft-<uid>.
std::string runtime_directory();

// One line for each WEFT_ name (without its value) that no variable has, with the nearest legal one. Names that begin
// with WEFT_NET_ or WEFT_TEST_ belong to others.
std::vector<std::string> unknown_names(std::span<const std::string> names);

}  // namespace weft
