// weft-plan: shows, expands and verifies algorithms, and says what they would take.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "advice.hpp"
#include "cost.hpp"
#include "plan/print.hpp"
#include "plan/shape.hpp"
#include "program/program.hpp"
#include "status/parse.hpp"
#include "topology/topology_file.hpp"
#include "tuner/tuner.hpp"
#include "verify/verify.hpp"

namespace {

using weft::ProgramPtr;

struct Arguments {
  std::string what, size, algorithm, format = "text", path, counts = "1..33", sizes = "8,1K,64K,1M,64M", kind = "shm",
                                     tune, topology;
  int ranks = 4, rank = 0, root = 0;
  bool in_place = false, source = false, oversubscribed = false;
};

int complain(const std::string& message) {
  std::cerr << "weft-plan: " << message << "\n";
  return 1;
}

// Built-in programs and those of WEFT_ALGO_PATH, right or wrong.
weft::Result<std::vector<ProgramPtr>> all_programs(const Arguments& arguments) {
  std::vector<ProgramPtr> programs = weft::builtin_programs();
  auto own = weft::read_programs(arguments.path);
  if (!own.ok()) return own.status();
  programs.insert(programs.end(), own->begin(), own->end());
  return programs;
}

// What the user names: a file, a collective, an algorithm of any collective, or one of a certain collective.
weft::Result<std::vector<ProgramPtr>> find_programs(const Arguments& arguments) {
  const std::string& what = arguments.what;
  if (what.ends_with(".algo") || what.find('/') != std::string::npos) return weft::read_programs(what);
  auto programs = all_programs(arguments);
  if (!programs.ok()) return programs.status();
  std::vector<ProgramPtr> found;
  std::string legal;
  for (const ProgramPtr& program : *programs) {
    const bool collective = what == weft::name_of(program->collective());
    if (collective) legal += (legal.empty() ? "" : ", ") + program->name();
    const bool wanted = arguments.algorithm.empty() ? collective || what.empty() || what == program->name()
                                                    : collective && arguments.algorithm == program->name();
    if (wanted) found.push_back(program);
  }
  if (!found.empty()) return found;
  if (!legal.empty()) {
    return weft::error(weftInvalidArgument, "there is no {} '{}'; legal are {}", what, arguments.algorithm, legal);
  }
  return weft::error(weftInvalidArgument, "'{}' is no file (*.algo), collective or algorithm; weft-plan list shows all",
                     what);
}

weft::Result<ProgramPtr> find_program(const Arguments& arguments) {
  auto programs = find_programs(arguments);
  if (!programs.ok()) return programs.status();
  if (programs->size() == 1) return programs->front();
  std::string all;
  for (const ProgramPtr& program : *programs) {
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", weft::name_of(program->collective()), program->name());
  }
  return weft::error(weftInvalidArgument, "'{}' may be {}; say which", arguments.what, all);
}

// "4", "1..33", or a list of such.
std::optional<std::vector<int>> parse_counts(const std::string& text) {
  constexpr int kMost = 1 << 20;
  std::vector<int> counts;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int low = 0;
    auto parsed = std::from_chars(at, end, low);
    int high = low;
    if (parsed.ec == std::errc() && std::string_view(parsed.ptr, end).starts_with("..")) {
      parsed = std::from_chars(parsed.ptr + 2, end, high);
    }
    if (parsed.ec != std::errc() || low < 1 || high < low || high > kMost) return std::nullopt;
    for (int count = low; count <= high; ++count) counts.push_back(count);
    if (parsed.ptr == end) return counts;
    if (*parsed.ptr != ',') return std::nullopt;
    at = parsed.ptr + 1;
  }
}

// What -T says, or a flat one of -P ranks.
weft::Result<weft::Topology> topology_of(const Arguments& arguments) {
  if (arguments.topology.empty()) return weft::topology_of(weft::TopologyKind::hosts, arguments.ranks);
  auto file = weft::read_topology(arguments.topology);
  if (!file.ok()) return file.status();
  if (file->ranks == 0) return weft::error(weftInvalidArgument, "{}: it says nothing of ranks", arguments.topology);
  return weft::topology_of(*file);
}

int list(const Arguments& arguments) {
  auto programs = all_programs(arguments);
  if (!programs.ok()) return complain(programs.status().message());
  for (const ProgramPtr& program : *programs) {
    fmt::print("{:16}{:24}{}\n", weft::name_of(program->collective()), program->name(), program->file());
  }
  return 0;
}

int show(const Arguments& arguments) {
  auto program = find_program(arguments);
  if (!program.ok()) return complain(program.status().message());
  if (arguments.source) {
    std::cout << (*program)->text();
    return 0;
  }
  auto topology = topology_of(arguments);
  if (!topology.ok()) return complain(topology.status().message());
  std::vector<std::shared_ptr<const weft::Plan>> plans;
  for (int rank = 0; rank < topology->ranks; ++rank) {
    auto plan =
        weft::expand(**program, {topology->ranks, rank, arguments.root, arguments.in_place, &topology->hierarchy});
    if (!plan.ok()) return complain(plan.status().message());
    plans.push_back(*plan);
  }
  if (arguments.format == "json") std::cout << weft::to_json(plans) << "\n";
  if (arguments.format == "svg") std::cout << weft::to_svg(plans);
  for (size_t i = 0; arguments.format == "text" && i < plans.size(); ++i) std::cout << weft::to_text(*plans[i]);
  return 0;
}

int expand(const Arguments& arguments) {
  auto program = find_program(arguments);
  if (!program.ok()) return complain(program.status().message());
  auto topology = topology_of(arguments);
  if (!topology.ok()) return complain(topology.status().message());
  auto plan = weft::expand(**program,
                           {topology->ranks, arguments.rank, arguments.root, arguments.in_place, &topology->hierarchy});
  if (!plan.ok()) return complain(plan.status().message());
  std::cout << (arguments.format == "json" ? weft::to_json(**plan) + "\n" : weft::to_text(**plan));
  return 0;
}

enum class Verdict { right, wrong, no_such_counts };

Verdict verify(const weft::Program& program, const std::vector<weft::Topology>& topologies) {
  const auto plural = [](size_t count) { return fmt::format("{} rank count{}", count, count == 1 ? "" : "s"); };
  size_t verified = 0;
  weft::Status status;
  const auto begin = std::chrono::steady_clock::now();
  for (const weft::Topology& topology : topologies) {
    if (!program.supports(topology.hierarchy)) continue;
    status = weft::verify(program, topology.ranks, {.roots = {}, .hierarchy = &topology.hierarchy});
    if (!status.ok()) break;
    ++verified;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::string text = "WRONG  " + status.message();
  if (status.ok()) {
    const size_t others = topologies.size() - verified;
    text = verified > 0 ? fmt::format("right for {} ({:.2f} s)", plural(verified), seconds.count()) : "";
    if (others > 0) {
      text += fmt::format("{}not for {}, by its 'requires'", text.empty() ? "" : "; ", plural(others));
    }
  }
  fmt::print("{:16}{:24}{}\n", weft::name_of(program.collective()), program.name(), text);
  return !status.ok() ? Verdict::wrong : verified > 0 ? Verdict::right : Verdict::no_such_counts;
}

// What -T says, or flat ones of all -P ranks.
weft::Result<std::vector<weft::Topology>> topologies_of(const Arguments& arguments, weft::TopologyKind kind) {
  std::vector<weft::Topology> topologies;
  if (!arguments.topology.empty()) {
    auto topology = topology_of(arguments);
    if (!topology.ok()) return topology.status();
    topologies.push_back(std::move(*topology));
    return topologies;
  }
  const auto counts = parse_counts(arguments.counts);
  if (!counts) {
    return weft::error(weftInvalidArgument, "-P: '{}' is not a number, a range a..b, or a list of those",
                       arguments.counts);
  }
  for (const int count : *counts) {
    topologies.push_back(weft::topology_of(kind, count));
    topologies.back().oversubscribed = arguments.oversubscribed;
  }
  return topologies;
}

int verify(const Arguments& arguments) {
  auto topologies = topologies_of(arguments, weft::TopologyKind::hosts);
  if (!topologies.ok()) return complain(topologies.status().message());
  auto programs = find_programs(arguments);
  if (!programs.ok()) return complain(programs.status().message());
  bool any_right = false, any_wrong = false;
  for (const ProgramPtr& program : *programs) {
    const Verdict verdict = verify(*program, *topologies);
    any_right |= verdict == Verdict::right;
    any_wrong |= verdict == Verdict::wrong;
  }
  return any_right && !any_wrong ? 0 : 1;
}

int cost(const Arguments& arguments) {
  auto topologies = topologies_of(arguments, *weft::topology_kind_of(arguments.kind));
  if (!topologies.ok()) return complain(topologies.status().message());
  auto sizes = weft::parse_sizes(arguments.sizes);
  if (!sizes.ok()) return complain("-b: " + sizes.status().message());
  const weft::CostRequest request{std::move(*topologies), std::move(*sizes)};
  auto shown = find_programs(arguments);
  if (!shown.ok()) return complain(shown.status().message());
  auto all = all_programs(arguments);
  if (!all.ok()) return complain(all.status().message());
  auto tune = weft::read_tune(arguments.tune);
  if (!tune.ok()) return complain(tune.status().message());
  const std::vector<weft::CostLine> lines = weft::costs(*all, *shown, *tune, request);
  std::cout << (arguments.format == "json" ? weft::to_json(lines) + "\n" : weft::to_text(lines));
  return 0;
}

// Both of one call: a collective, and its bytes.
int advise(const Arguments& arguments, bool simulated) {
  const auto collective = weft::collective_of(arguments.what);
  if (!collective || *collective == weft::Collective::sendrecv) {
    return complain("no collective is called '" + arguments.what +
                    "'; legal: allreduce, alltoall, ...: see weft-plan list");
  }
  const auto bytes = weft::parse_size(arguments.size);
  if (!bytes) return complain("'" + arguments.size + "' is not a size; legal: a number, with K, M or G, such as 64M");
  auto topologies = topologies_of(arguments, *weft::topology_kind_of(arguments.kind));
  if (!topologies.ok()) return complain(topologies.status().message());
  auto programs = all_programs(arguments);
  if (!programs.ok()) return complain(programs.status().message());
  auto tune = weft::read_tune(arguments.tune);
  if (!tune.ok()) return complain(tune.status().message());
  for (const weft::Topology& topology : *topologies) {
    if (!simulated) {
      std::cout << weft::why(*programs, *collective, topology, *tune, *bytes);
      continue;
    }
    auto text = weft::best(*programs, *collective, topology, *tune, *bytes);
    if (!text.ok()) return complain(text.status().message());
    std::cout << *text;
  }
  return 0;
}

void add_path(CLI::App& command, Arguments& arguments) {
  command.add_option("--path", arguments.path, "Files and directories of your own, colon-separated")
      ->envname("WEFT_ALGO_PATH");
}

void add_topology(CLI::App& command, Arguments& arguments) {
  command.add_option("-T,--topology", arguments.topology,
                     "A topology file (JSON), as weft-info --topology and weft-sim write them, instead of -P ranks");
}

CLI::Option* add_names(CLI::App& command, Arguments& arguments) {
  CLI::Option* what =
      command.add_option("what", arguments.what, "A file (*.algo), a collective, or the name of an algorithm");
  command.add_option("algorithm", arguments.algorithm, "The name of an algorithm, after its collective");
  add_path(command, arguments);
  return what;
}

void add_program_options(CLI::App& command, Arguments& arguments) {
  add_names(command, arguments)->required();
  command.add_option("-P,--ranks", arguments.ranks, "Number of ranks")->check(CLI::Range(1, 1 << 20));
  add_topology(command, arguments);
  command.add_option("--root", arguments.root, "The root's rank");
  command.add_flag("--in-place", arguments.in_place, "The plan of an in-place call");
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Shows, expands and verifies Weft's algorithms, and predicts their times.", "weft-plan");
  app.require_subcommand(1);

  CLI::App* list_command = app.add_subcommand("list", "All algorithms, with those of WEFT_ALGO_PATH");
  add_path(*list_command, arguments);

  CLI::App* show_command = app.add_subcommand("show", "The plans of all ranks, as text, JSON or a timeline");
  add_program_options(*show_command, arguments);
  show_command->add_option("--format", arguments.format, "text, json or svg")
      ->check(CLI::IsMember({"text", "json", "svg"}));
  show_command->add_flag("--source", arguments.source, "The program's text instead");

  CLI::App* expand_command = app.add_subcommand("expand", "The plan of one rank");
  add_program_options(*expand_command, arguments);
  expand_command->add_option("-r,--rank", arguments.rank, "The rank");
  expand_command->add_option("--format", arguments.format, "text or json")->check(CLI::IsMember({"text", "json"}));

  CLI::App* verify_command = app.add_subcommand("verify", "Proves algorithms right; all that there are by default");
  add_names(*verify_command, arguments);
  verify_command->add_option("-P,--ranks", arguments.counts, "Rank counts: 4, 1..33, or a list such as 1..17,64");
  add_topology(*verify_command, arguments);

  const auto add_advice = [&](const char* name, const char* help) {
    CLI::App* command = app.add_subcommand(name, help);
    command->add_option("collective", arguments.what, "allreduce, alltoall, ...")->required();
    command->add_option("bytes", arguments.size, "Size of the call, such as 64M")->required();
    add_path(*command, arguments);
    command->add_option("-P,--ranks", arguments.counts, "Rank counts, as of verify");
    add_topology(*command, arguments);
    command->add_option("--kind", arguments.kind, "Of -P ranks: shm, tcp or hosts")
        ->check(CLI::IsMember({"shm", "tcp", "hosts"}));
    command->add_flag("--oversubscribed", arguments.oversubscribed, "The ranks outnumber the cores");
    command->add_option("--tune", arguments.tune, "A file that weft-tune wrote")->envname("WEFT_TUNE_FILE");
    return command;
  };
  CLI::App* why_command =
      add_advice("why", "What the cost model says of each algorithm for one call, part by part (*: taken)");
  CLI::App* best_command = add_advice("best", "The fastest algorithm, tile and window by simulation, as variables");

  CLI::App* cost_command =
      app.add_subcommand("cost", "Predicted time of each algorithm, and which one a call would take (*)");
  add_names(*cost_command, arguments);
  cost_command->add_option("-P,--ranks", arguments.counts, "Rank counts, as of verify");
  add_topology(*cost_command, arguments);
  cost_command->add_option("-b,--bytes", arguments.sizes, "Sizes of the call, such as 8,64K,1M");
  cost_command->add_option("--kind", arguments.kind, "shm and tcp: one host, over its memory or its network; or hosts")
      ->check(CLI::IsMember({"shm", "tcp", "hosts"}));
  cost_command->add_flag("--oversubscribed", arguments.oversubscribed, "The ranks outnumber the cores");
  cost_command->add_option("--tune", arguments.tune, "A file that weft-tune wrote")->envname("WEFT_TUNE_FILE");
  cost_command->add_option("--format", arguments.format, "text or json")->check(CLI::IsMember({"text", "json"}));

  CLI11_PARSE(app, argc, argv);
  if (list_command->parsed()) return list(arguments);
  if (show_command->parsed()) return show(arguments);
  if (expand_command->parsed()) return expand(arguments);
  for (const CLI::App* command : {cost_command, why_command, best_command}) {
    if (command->parsed() && command->count("-P") == 0 && arguments.topology.empty()) {
      return complain("of how many ranks? -P or -T says it");
    }
  }
  if (why_command->parsed() || best_command->parsed()) return advise(arguments, best_command->parsed());
  if (cost_command->parsed()) return cost(arguments);
  return verify(arguments);
}
