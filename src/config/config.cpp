#include "config/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <numeric>

#include "log/log.hpp"
#include "status/parse.hpp"

extern "C" char** environ;

namespace weft {
namespace {

constexpr Variable kVariables[] = {
#define WEFT_VARIABLE(NAME, member, kind, standard, legal, help) {"WEFT_" #NAME, #kind, standard, legal, help},
#include "config/variables.def"
#undef WEFT_VARIABLE
};

constexpr std::string_view kFlags[] = {"0", "false", "no", "off", "1", "true", "yes", "on"};
constexpr size_t kTrueFrom = 4;

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return result;
}

// Units in small letters, too.
std::optional<int64_t> parse_bytes(std::string_view text) {
  std::string size(text);
  if (!size.empty()) size.back() = char(std::toupper(static_cast<unsigned char>(size.back())));
  const auto value = parse_size(size);
  if (!value || *value > size_t{INT64_MAX}) return std::nullopt;
  return static_cast<int64_t>(*value);
}

// Seconds with fractions, as milliseconds.
std::optional<int64_t> parse_seconds(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value) || std::abs(value) > 1e12) return std::nullopt;
  return std::llround(value * 1000);
}

Status wrong(const Variable& variable, std::string_view value, std::string_view what, std::string_view legal) {
  return error(weftInvalidArgument, "{}={}: {}; legal: {}", variable.name, value, what, legal);
}

using Parser = std::optional<int64_t> (*)(std::string_view);

Status read_number(const Variable& variable, const std::string& value, Parser parse, std::string_view what,
                   int64_t& into) {
  const auto number = parse(value);
  if (!number) return wrong(variable, value, what, variable.legal);
  const size_t dots = variable.legal.find("..");
  if (number < parse(variable.legal.substr(0, dots)) || number > parse(variable.legal.substr(dots + 2)))
    return wrong(variable, value, "out of range", variable.legal);
  into = *number;
  return {};
}

Status read_flag(const Variable& variable, const std::string& value, bool& into) {
  const auto* const found = std::find(std::begin(kFlags), std::end(kFlags), lower(value));
  if (found == std::end(kFlags)) return wrong(variable, value, "not a flag", "0|1|true|false|yes|no|on|off");
  into = size_t(found - std::begin(kFlags)) >= kTrueFrom;
  return {};
}
Status read_integer(const Variable& variable, const std::string& value, int64_t& into) {
  return read_number(variable, value, parse_integer<int64_t>, "not an integer", into);
}
Status read_bytes(const Variable& variable, const std::string& value, int64_t& into) {
  return read_number(variable, value, parse_bytes, "not a number of bytes (512, 64K, 4M, 1G)", into);
}
Status read_seconds(const Variable& variable, const std::string& value, int64_t& into) {
  return read_number(variable, value, parse_seconds, "not a number of seconds", into);
}
Status read_text(const Variable&, const std::string& value, std::string& into) {
  into = value;
  return {};
}
Status read_choice(const Variable& variable, const std::string& value, std::string& into) {
  const std::string wanted = lower(value);
  for (std::string_view rest = variable.legal; !rest.empty();) {
    const std::string_view choice = rest.substr(0, rest.find('|'));
    if (choice == wanted) {
      into = wanted;
      return {};
    }
    rest.remove_prefix(std::min(rest.size(), choice.size() + 1));
  }
  return wrong(variable, value, "not known", variable.legal);
}

// Defaults skip the range, so that -1 can mean "not set".
void set_default(const Variable& variable, bool& into) {
  (void)read_flag(variable, std::string(variable.standard), into);
}
void set_default(const Variable& variable, std::string& into) { into = variable.standard; }
void set_default(const Variable& variable, int64_t& into) {
  const Parser parse = variable.kind == "bytes"     ? parse_bytes
                       : variable.kind == "seconds" ? parse_seconds
                                                    : parse_integer<int64_t>;
  into = parse(variable.standard).value_or(-1);
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

// Results are never freed: references to them are out, and other static objects may ask while the process ends.
std::atomic<const Result<Config>*> current{nullptr};
std::mutex reading;

}  // namespace

std::optional<std::string> from_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::span<const Variable> variables() { return kVariables; }

Result<Config> parse_config(const Getter& get) {
  Config result;
  const Variable* variable = kVariables;
#define WEFT_VARIABLE(NAME, member, kind, standard, legal, help)         \
  set_default(*variable, result.member);                                 \
  if (const auto value = get(std::string(variable->name)))               \
    WEFT_RETURN_IF_ERROR(read_##kind(*variable, *value, result.member)); \
  ++variable;
#include "config/variables.def"
#undef WEFT_VARIABLE
  return result;
}

std::string runtime_directory() {
  const auto base = from_environment("XDG_RUNTIME_DIR");
  return base && !base->empty() ? *base + "/weft" : fmt::format("/tmp/weft-{}", ::geteuid());
}

std::vector<std::string> unknown_names(std::span<const std::string> names) {
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    const auto begins = [&](std::string_view prefix) { return name.compare(0, prefix.size(), prefix) == 0; };
    if (!begins("WEFT_") || begins("WEFT_NET_") || begins("WEFT_TEST_")) continue;
    const Variable* nearest = nullptr;
    size_t least = SIZE_MAX;
    for (const Variable& variable : kVariables) {
      const size_t distance = edit_distance(name, variable.name);
      if (distance < least) {
        least = distance;
        nearest = &variable;
      }
    }
    if (least == 0) continue;
    lines.push_back(
        fmt::format("{} is not a variable of Weft and has no effect; did you mean {}?", name, nearest->name));
  }
  return lines;
}

namespace {

const Result<Config>& read(bool again) {
  const Result<Config>* result = nullptr;
  {
    const std::lock_guard lock(reading);
    result = current.load(std::memory_order_acquire);
    if (result != nullptr && !again) return *result;
    result = new Result<Config>(parse_config(from_environment));
    static auto* all = new std::vector<const Result<Config>*>;  // what was handed out stays valid, and reachable
    all->push_back(result);
    current.store(result, std::memory_order_release);
  }
  // Outside the lock: the log asks for the configuration itself.
  if (log_enabled(LogLevel::warn)) {
    for (const std::string& line : unknown_names(environment_names())) log_line(LogLevel::warn, line);
  }
  return *result;
}

}  // namespace

const Result<Config>& config() {
  const Result<Config>* known = current.load(std::memory_order_acquire);
  return known != nullptr ? *known : read(false);
}

const Result<Config>& reread_config() { return read(true); }

}  // namespace weft
