// weft-info: what this Weft is, what can be set, and what the jobs of this host are doing.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "config/config.hpp"
#include "environment.hpp"
#include "hardware.hpp"
#include "machine.hpp"
#include "topology.hpp"
#include "topology/machine_detect.hpp"
#include "topology/machine_xml.hpp"
#include "topology/topology_file.hpp"
#include "trace/status_file.hpp"
#include "transports.hpp"
#include "weft/weft.h"

extern "C" char** environ;

namespace {

enum class Form { text, json, markdown, svg, xml };

struct Options {
  bool environment = false;
  bool job = false;
  bool transports = false;
  bool draws = false;
  std::string job_id, directory, topology;
  Form form = Form::text;
};

int wrong(const std::string& why) {
  fmt::print(stderr, "weft-info: {}\n", why);
  return 1;
}

// The table, and on standard error what is wrong with the environment that we were started in.
int show_environment(Form form) {
  using namespace weft::info;
  std::fputs((form == Form::json       ? environment_json()
              : form == Form::markdown ? environment_markdown()
                                       : environment_text())
                 .c_str(),
             stdout);
  if (form != Form::text) return 0;
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& line : weft::unknown_names(names)) fmt::print(stderr, "weft-info: warning: {}\n", line);
  const auto& config = weft::config();
  return config.ok() ? 0 : wrong(config.status().message());
}

int show_jobs(const Options& options) {
  std::string directory = options.directory;
  if (directory.empty()) {
    const auto& config = weft::config();
    if (!config.ok()) return wrong(config.status().message());
    directory = weft::StatusFile::directory(config.value());
  }
  const auto ranks = weft::read_status(directory);
  if (!ranks.ok()) return wrong(ranks.status().message());
  const uint64_t now = weft::monotonic_ns();
  std::fputs((options.form == Form::json ? weft::status_json(ranks.value(), options.job_id, now)
                                         : weft::status_text(ranks.value(), options.job_id, now))
                 .c_str(),
             stdout);
  const bool found = std::any_of(ranks.value().begin(), ranks.value().end(), [&](const weft::RankStatus& rank) {
    return options.job_id.empty() || rank.identity.job == options.job_id;
  });
  return found || options.job_id.empty() ? 0 : 1;
}

void print(const nlohmann::json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

int show_transports(Form form) {
  const auto& config = weft::config();
  if (!config.ok()) return wrong(config.status().message());
  if (form == Form::json) {
    print(weft::info::transports_json(config.value()));
  } else {
    fmt::print("{}", weft::info::transports_text(config.value()));
  }
  return 0;
}

int show_hardware(const weft::Machine& machine, Form form) {
  if (form == Form::json) {
    print(weft::info::hardware_json(machine));
  } else {
    fmt::print("{}", form == Form::svg   ? weft::info::hardware_svg(machine)
                     : form == Form::xml ? weft::to_xml(machine)
                                         : weft::info::hardware_text(machine));
  }
  return 0;
}

// This machine (without a path), a machine (XML), or a job's ranks (JSON).
int show_topology(const std::string& path, Form form) {
  if (path.empty()) return show_hardware(weft::this_machine(), form);
  const auto text = weft::read_text(path);
  if (!text.ok()) return wrong(text.status().message());
  if (weft::looks_like_xml(text.value())) {
    const auto file = weft::parse_machine(text.value(), path);
    if (!file.ok()) return wrong(file.status().message());
    if (!file.value().warning.empty()) fmt::print(stderr, "weft-info: warning: {}\n", file.value().warning);
    return show_hardware(file.value().machine, form);
  }
  const auto file = weft::parse_topology(text.value(), path);
  if (!file.ok()) return wrong(file.status().message());
  if (file.value().ranks == 0) return wrong(path + ": it says nothing of ranks");
  if (form == Form::xml)
    return wrong(path + ": XML tells of one machine, and this file of a job; legal: --json, --svg");
  const weft::Topology topology = weft::topology_of(file.value());
  fmt::print("{}", form == Form::json  ? weft::to_json(topology) + "\n"
                   : form == Form::svg ? weft::info::topology_svg(topology)
                                       : weft::info::topology_text(topology));
  return 0;
}

int show_machine(Form form) {
  const auto& config = weft::config();
  if (!config.ok()) return wrong(config.status().message());
  if (form == Form::json) {
    nlohmann::json json = weft::info::machine_json();
    json["transports"] = weft::info::transports_json(config.value());
    print(json);
  } else {
    fmt::print("transports, in order of preference\n{}{}", weft::info::transports_text(config.value()),
               weft::info::machine_text());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bool json = false, markdown = false, svg = false, xml = false;
  CLI::App app(
      "What this machine has and Weft would use of it (without options), what can be set, and what the jobs of this\n"
      "user on this host are doing.",
      "weft-info");
  app.set_version_flag("--version", fmt::format("weft {}.{}.{}", WEFT_MAJOR, WEFT_MINOR, WEFT_PATCH));
  app.add_flag("--env", options.environment, "All WEFT_ variables, and what is wrong with those set here");
  app.add_flag("--transports", options.transports,
               "The transports with their devices, and whether they are usable here");
  auto* job = app.add_option("--job", options.job_id,
                             "The last operation of every rank of a job (of all jobs without ID),\n"
                             "who is behind and who is missing")
                  ->type_name("[ID]")
                  ->expected(0, 1);
  app.add_option("--dir", options.directory, "Status directory of --job, in place of WEFT_STATUS_DIR")
      ->type_name("DIR");
  auto* topology =
      app.add_option("--topology", options.topology,
                     "Draws this machine (without FILE), a machine of which NCCL wrote a file (XML), or a\n"
                     "job that weft-probe measured or weft-sim made up (JSON)")
          ->type_name("[FILE]")
          ->expected(0, 1);
  app.add_flag("--json", json, "Print JSON");
  app.add_flag("--svg", svg, "Draw --topology as SVG");
  app.add_flag("--xml", xml, "Print --topology of a machine as NCCL reads it (NCCL_TOPO_FILE)");
  app.add_flag("--markdown", markdown, "Print --env as docs/environment.md");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    constexpr int kUsage = 2;
    return app.exit(problem) == 0 ? 0 : kUsage;
  }
  options.job = job->count() > 0;
  options.draws = topology->count() > 0;
  options.form = json ? Form::json : svg ? Form::svg : xml ? Form::xml : markdown ? Form::markdown : Form::text;

  if (options.draws) return show_topology(options.topology, options.form);
  if (options.environment) return show_environment(options.form);
  if (options.transports) return show_transports(options.form);
  if (options.job) return show_jobs(options);
  return show_machine(options.form);
}
