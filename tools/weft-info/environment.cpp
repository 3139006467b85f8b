#include "environment.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "config/config.hpp"

namespace weft::info {
namespace {

// -1 stands for "not set" where it is not legal itself.
std::string standard_of(const Variable& variable) {
  const bool unset = variable.standard.empty() || (variable.standard == "-1" && !variable.legal.starts_with("-1"));
  return unset ? "" : std::string(variable.standard);
}

std::string legal_of(const Variable& variable) {
  if (variable.kind == "flag") return "0 or 1";
  return std::string(variable.legal);
}

// "|" separates cells.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string code(const std::string& text) { return text.empty() ? "" : "`" + cell(text) + "`"; }

}  // namespace

std::string environment_text() {
  std::string text;
  for (const Variable& variable : variables()) {
    const std::string standard = standard_of(variable), legal = legal_of(variable);
    text += fmt::format("{}  ({}{}{})\n    {}\n", variable.name, variable.kind,
                        legal.empty() ? "" : fmt::format(": {}", legal),
                        standard.empty() ? "; not set" : fmt::format("; default {}", standard), variable.help);
  }
  return text;
}

std::string environment_json() {
  auto list = nlohmann::json::array();
  for (const Variable& variable : variables()) {
    list.push_back({{"name", variable.name},
                    {"kind", variable.kind},
                    {"default", standard_of(variable)},
                    {"legal", legal_of(variable)},
                    {"help", variable.help}});
  }
  return list.dump(2) + "\n";
}

std::string environment_markdown() {
  std::string text =
      "# Environment variables\n\n"
      "Made from `src/config/variables.def` by `weft-info --env --markdown`; do not edit.\n\n"
      "Absent means the default. A wrong value is an error that names the variable, the value and what is legal. A\n"
      "`WEFT_` name that is not in this table is warned of once, with the nearest one that is (`WEFT_DEBUG=warn` "
      "shows\n"
      "it, and so does `weft-info --env`). Bytes take K, M and G (binary); seconds take fractions; names of choices "
      "and\n"
      "flags may be written in capitals.\n\n"
      "| variable | kind | default | legal | meaning |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const Variable& variable : variables()) {
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", variable.name, variable.kind, code(standard_of(variable)),
                        cell(legal_of(variable)), cell(std::string(variable.help)));
  }
  return text;
}

}  // namespace weft::info
