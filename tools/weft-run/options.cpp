#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "weft/weft.h"

namespace weft::run {
namespace {

constexpr int kUsage = 2;

[[noreturn]] void refuse(const std::string& why) {
  std::cerr << "weft-run: " << why << "; see weft-run --help\n";
  std::exit(kUsage);
}

// "VAR=value", or "VAR" for the value that it has here.
std::pair<std::string, std::string> parse_variable(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (name.empty()) refuse("-x " + text + ": legal: VAR=value, or VAR to pass on the value that it has here");
  if (equals != std::string::npos) return {name, text.substr(equals + 1)};
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) refuse("-x " + name + ": not set here; legal: -x " + name + "=value");
  return {name, value};
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  std::string bind = "none";
  std::vector<std::string> variables;
  CLI::App app(
      "weft-run -n RANKS [options] program [arguments]\n"
      "Runs a program as several ranks on this host. Each gets WEFT_RANK, WEFT_WORLD_SIZE, WEFT_LOCAL_RANK,\n"
      "WEFT_LOCAL_SIZE, WEFT_ROOT, WEFT_JOB_ID and WEFT_SECRET. Rank 0 reads our standard input unless that is a\n"
      "terminal. The first rank that fails ends the others, and its exit code (128 + signal for a signal) is ours.",
      "weft-run");
  app.prefix_command();
  app.set_version_flag("--version", fmt::format("weft-run {}.{}.{}", WEFT_MAJOR, WEFT_MINOR, WEFT_PATCH));
  app.add_option("-n,--ranks", options.ranks, "Number of ranks")->required()->check(CLI::Range(1, 65536));
  app.add_flag("--prefix,!--no-prefix", options.prefix, "Put the rank before each line, as in \"[3] \" (default)");
  app.add_option("--output", options.output, "Write each rank's output to DIR/rank-R.out and DIR/rank-R.err instead")
      ->type_name("DIR");
  app.add_option("--timeout", options.timeout_s, "End the job after so many seconds, with exit code 124")
      ->check(CLI::PositiveNumber);
  app.add_option("--grace", options.grace_s, "Seconds between SIGTERM and SIGKILL when the job is ended (5)")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--keep-going", options.keep_going, "Let the other ranks go on when one fails");
  app.add_option("--bind", bind, "Which cores a rank may use: none (all, default) or core (one each, in turn)")
      ->check(CLI::IsMember({"none", "core"}));
  app.add_option("-x", variables, "Set a variable for the ranks")->type_name("VAR=value")->allow_extra_args(false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    const int code = app.exit(problem);
    std::exit(code == 0 ? 0 : kUsage);
  }
  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--") options.command.erase(options.command.begin());
  if (options.command.empty()) refuse("no program given");
  options.bind_core = bind == "core";
  for (const std::string& text : variables) options.environment.push_back(parse_variable(text));
  return options;
}

}  // namespace weft::run
