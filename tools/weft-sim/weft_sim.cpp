// weft-sim: what collectives would take on a cluster that is only described.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "bench.hpp"
#include "generate.hpp"
#include "show.hpp"
#include "status/parse.hpp"
#include "topology/topology_file.hpp"
#include "tuner/tuner.hpp"

namespace {

using weft::ProgramPtr;

struct Arguments {
  std::vector<std::string> topologies;
  std::string collective, algorithm, sizes = "8,64K,1M,64M", format = "text", path, tile = "0", kind;
  std::string sharing = "fifo", classes = "sample";
  std::vector<std::string> slow_ranks, slow_groups;
  int root = 0, window = 0;
  double combine_GBs = 0;
  bool out_of_place = false;
  weft::ClusterShape shape;
  double node_GBs = 200, network_GBs = 50;
};

int complain(const std::string& message) {
  std::cerr << "weft-sim: " << message << "\n";
  return 1;
}

weft::Result<std::vector<ProgramPtr>> find_programs(const Arguments& arguments) {
  std::vector<ProgramPtr> programs = weft::builtin_programs(), found;
  auto own = weft::read_programs(arguments.path);
  if (!own.ok()) return own.status();
  programs.insert(programs.end(), own->begin(), own->end());
  std::string legal;
  for (const ProgramPtr& program : programs) {
    if (arguments.collective != weft::name_of(program->collective())) continue;
    legal += (legal.empty() ? "" : ", ") + program->name();
    if (arguments.algorithm.empty() || arguments.algorithm == program->name()) found.push_back(program);
  }
  if (!found.empty()) return found;
  if (legal.empty()) {
    return weft::error(weftInvalidArgument, "no collective is called {}; legal: those of weft-plan list",
                       arguments.collective);
  }
  return weft::error(weftInvalidArgument, "no {} is called {}; legal: {}", arguments.collective, arguments.algorithm,
                     legal);
}

struct Cluster {
  std::string name;
  weft::Topology topology;
};

weft::Result<std::vector<Cluster>> read_clusters(const Arguments& arguments) {
  std::vector<Cluster> clusters;
  for (const std::string& path : arguments.topologies) {
    auto file = weft::read_topology(path);
    if (!file.ok()) return file.status();
    if (file->ranks == 0) return weft::error(weftInvalidArgument, "{}: it says nothing of ranks", path);
    clusters.push_back({std::filesystem::path(path).stem().string(), weft::topology_of(*file)});
  }
  return clusters;
}

// "3:2.5", "rack:1:4": a name or number, a number, a factor.
std::optional<std::pair<std::string, double>> split_factor(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double factor = std::strtod(text.c_str() + colon + 1, &end);
  if (end == text.c_str() + colon + 1 || *end != '\0' || !(factor > 0 && factor < 1e6)) return std::nullopt;
  return std::pair(text.substr(0, colon), factor);
}

weft::Status add_slow(const Arguments& arguments, const weft::Topology& topology, weft::SimulateOptions& options) {
  for (const std::string& text : arguments.slow_ranks) {
    const auto parsed = split_factor(text);
    const auto rank = parsed ? weft::parse_integer<int>(parsed->first) : std::nullopt;
    if (!rank || *rank < 0 || *rank >= topology.ranks) {
      return weft::error(weftInvalidArgument, "--slow-rank {}; legal: RANK:FACTOR, with a rank of 0 to {}", text,
                         topology.ranks - 1);
    }
    options.slow_ranks.emplace_back(*rank, parsed->second);
  }
  for (const std::string& text : arguments.slow_groups) {
    const auto parsed = split_factor(text);
    const size_t colon = parsed ? parsed->first.find(':') : std::string::npos;
    const int group =
        colon == std::string::npos ? -1 : weft::parse_integer<int>(parsed->first.substr(colon + 1)).value_or(-1);
    bool found = false;
    std::string legal;
    for (int level = 0; level + 1 < topology.hierarchy.levels(); ++level) {
      const std::string& name = topology.hierarchy.name(level);
      legal += fmt::format("{}{}:0..{}", legal.empty() ? "" : ", ", name, topology.hierarchy.groups(level) - 1);
      if (group < 0 || group >= topology.hierarchy.groups(level) || parsed->first.substr(0, colon) != name) continue;
      options.slow_groups.push_back({level, group, parsed->second});
      found = true;
    }
    if (!found) {
      return weft::error(weftInvalidArgument, "--slow-group {}; legal: LEVEL:GROUP:FACTOR, with {}", text,
                         legal.empty() ? "no group at all here" : legal);
    }
  }
  return {};
}

weft::Result<std::vector<weft::SimulatedCall>> simulate_all(const Arguments& arguments, bool record) {
  auto programs = find_programs(arguments);
  if (!programs.ok()) return programs.status();
  auto clusters = read_clusters(arguments);
  if (!clusters.ok()) return clusters.status();
  auto sizes = weft::parse_sizes(arguments.sizes);
  if (!sizes.ok()) return weft::error(sizes.status().code(), "-b: {}", sizes.status().message());
  const auto tile = weft::parse_size(arguments.tile);
  if (!tile) return weft::error(weftInvalidArgument, "--tile {}; legal: a size such as 64K", arguments.tile);
  std::vector<weft::SimulatedCall> calls;
  for (const Cluster& cluster : *clusters) {
    auto tuner = weft::Tuner::create(cluster.topology, weft::builtin_programs(), "", *tile,
                                     static_cast<uint32_t>(arguments.window));
    if (!tuner.ok()) return tuner.status();
    const weft::Links links = weft::links_of(*weft::default_tune(), cluster.topology);
    weft::SimulateOptions options{.tile_bytes = tuner->tile_bytes(),
                                  .window = tuner->window(),
                                  .order = tuner->order(),
                                  .root = arguments.root,
                                  .in_place = !arguments.out_of_place,
                                  .record = record,
                                  .sharing = arguments.sharing == "fair" ? weft::Sharing::fair : weft::Sharing::fifo,
                                  .classes = arguments.classes == "none"    ? weft::Classes::none
                                             : arguments.classes == "plans" ? weft::Classes::plans
                                                                            : weft::Classes::sample};
    options.combine_ns = arguments.combine_GBs > 0 ? 1 / arguments.combine_GBs
                                                   : weft::default_tune()->of(weft::kind_of(cluster.topology)).gamma;
    if (const auto status = add_slow(arguments, cluster.topology, options); !status.ok()) return status;
    for (const size_t bytes : *sizes) {
      const size_t first = calls.size();
      for (const ProgramPtr& program : *programs) {
        if (!program->supports(cluster.topology.hierarchy)) continue;
        options.bytes = bytes;
        weft::SimulatedCall call{cluster.name, program, cluster.topology.ranks, bytes, {}, {}};
        auto result = weft::simulate(*program, cluster.topology, links, options);
        if (result.ok()) call.result = std::move(*result);
        if (!result.ok()) call.failure = result.status().message();
        call.chosen = tuner->choose(program->collective(), bytes).program == program.get();
        calls.push_back(std::move(call));
      }
      auto best = calls.end();
      for (auto call = calls.begin() + static_cast<std::ptrdiff_t>(first); call != calls.end(); ++call) {
        if (call->failure.empty() && (best == calls.end() || call->result.microseconds < best->result.microseconds))
          best = call;
      }
      if (best != calls.end()) best->best = true;
    }
  }
  return calls;
}

int run(const Arguments& arguments) {
  auto calls = simulate_all(arguments, false);
  if (!calls.ok()) return complain(calls.status().message());
  std::cout << (arguments.format == "json" ? weft::to_json(*calls) + "\n" : weft::to_text(*calls));
  return 0;
}

int timeline(const Arguments& arguments) {
  auto calls = simulate_all(arguments, true);
  if (!calls.ok()) return complain(calls.status().message());
  if (calls->size() != 1) {
    return complain(fmt::format(
        "a timeline is of one call, not of {}; name an algorithm that is for these ranks, one topology and one size",
        calls->size()));
  }
  const weft::SimulatedCall& call = calls->front();
  if (!call.failure.empty()) return complain(call.failure);
  std::cout << (arguments.format == "svg"        ? weft::to_svg(call)
                : arguments.format == "perfetto" ? weft::to_perfetto(call) + "\n"
                                                 : weft::path_to_text(call));
  return 0;
}

int generate(Arguments arguments) {
  weft::ClusterShape& shape = arguments.shape;
  shape.node.byte_ns = 1 / arguments.node_GBs;
  shape.network.byte_ns = 1 / arguments.network_GBs;
  const double ranks = double(shape.ranks) * shape.nodes * shape.groups;
  if (ranks > 1 << 20) return complain(fmt::format("{} ranks; legal: up to 1048576", ranks));
  const weft::Topology topology = arguments.kind == "fat-tree"    ? weft::fat_tree(shape)
                                  : arguments.kind == "rail"      ? weft::rail_optimised(shape)
                                  : arguments.kind == "dragonfly" ? weft::dragonfly(shape)
                                                                  : weft::sites(shape);
  std::cout << weft::to_json(topology) << "\n";
  return 0;
}

void add_call(CLI::App& command, Arguments& arguments) {
  command.add_option("collective", arguments.collective, "allreduce, alltoall, ...")->required();
  command
      .add_option("-T,--topology", arguments.topologies,
                  "Topology files (JSON), as 'weft-sim topology' and 'weft-info --topology' write them")
      ->required();
  command.add_option("-b,--bytes", arguments.sizes, "Sizes of the call, such as 8,64K,1M");
  command.add_option("--path", arguments.path, "Algorithms of your own, colon-separated")->envname("WEFT_ALGO_PATH");
  command.add_option("--tile", arguments.tile, "Bytes of a tile; 0: as the library would choose");
  command.add_option("--window", arguments.window, "Tiles in flight; 0: as the library would choose")
      ->check(CLI::Range(0, 64));
  command.add_option("--root", arguments.root, "The root's rank")->check(CLI::NonNegativeNumber);
  command.add_flag("--out-of-place", arguments.out_of_place, "Calls that are not in place");
  command
      .add_option("--combine-GBs", arguments.combine_GBs,
                  "What a rank combines in a second; as the tune file says when not given")
      ->check(CLI::PositiveNumber);
  command
      .add_option(
          "--sharing", arguments.sharing,
          "Tiles that meet in one place: fifo (one after the other; the fast one) or fair (all at once, max-min)")
      ->check(CLI::IsMember({"fifo", "fair"}));
  command
      .add_option("--classes", arguments.classes,
                  "Ranks that do the same are simulated once: found in a sample of the plans where they are large, "
                  "always in all plans, or none, and every rank is simulated")
      ->check(CLI::IsMember({"sample", "plans", "none"}));
  command.add_option("--slow-rank", arguments.slow_ranks,
                     "RANK:FACTOR, a straggler: its own work takes so many times longer");
  command.add_option("--slow-group", arguments.slow_groups,
                     "LEVEL:GROUP:FACTOR, such as node:3:4: what leads out of and into it is slower");
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Simulates Weft's algorithms on clusters that are only described. What it says is a prediction.",
               "weft-sim");
  app.require_subcommand(1);

  CLI::App* run_command = app.add_subcommand(
      "run", "Times of all algorithms (or one) on topologies: the best (*), and the one that the library would take");
  add_call(*run_command, arguments);
  run_command->add_option("algorithm", arguments.algorithm, "Only this one");
  run_command->add_option("--format", arguments.format, "text or json")->check(CLI::IsMember({"text", "json"}));

  CLI::App* timeline_command =
      app.add_subcommand("timeline", "One call: its critical path, or all messages as SVG or Perfetto trace");
  add_call(*timeline_command, arguments);
  timeline_command->add_option("algorithm", arguments.algorithm, "The algorithm")->required();
  timeline_command->add_option("--format", arguments.format, "text (the critical path), svg or perfetto")
      ->check(CLI::IsMember({"text", "svg", "perfetto"}));

  CLI::App* topology_command =
      app.add_subcommand("topology", "Writes the topology file of a cluster as they are built");
  topology_command->add_option("kind", arguments.kind, "fat-tree, rail, dragonfly or sites")
      ->required()
      ->check(CLI::IsMember({"fat-tree", "rail", "dragonfly", "sites"}));
  weft::ClusterShape& shape = arguments.shape;
  topology_command->add_option("--ranks", shape.ranks, "Ranks of a node (8)")->check(CLI::Range(1, 1 << 20));
  topology_command->add_option("--nodes", shape.nodes, "Nodes of a rack, a dragonfly's group, or a site (8)")
      ->check(CLI::Range(1, 1 << 20));
  topology_command->add_option("--groups", shape.groups, "Racks, groups or sites (4)")->check(CLI::Range(1, 1 << 20));
  topology_command->add_option("--node-GBs", arguments.node_GBs, "A rank's link inside the node (200)")
      ->check(CLI::PositiveNumber);
  topology_command->add_option("--node-us", shape.node.latency_us, "Latency inside the node (1)")
      ->check(CLI::NonNegativeNumber);
  topology_command->add_option("--network-GBs", arguments.network_GBs, "A rank's share of its node's adapters (50)")
      ->check(CLI::PositiveNumber);
  topology_command->add_option("--network-us", shape.network.latency_us, "Latency between nodes (5)")
      ->check(CLI::NonNegativeNumber);
  topology_command
      ->add_option("--oversubscription", shape.oversubscription,
                   "What a rack's nodes could send over what leads out of it (2)")
      ->check(CLI::PositiveNumber);
  topology_command->add_option("--wan-GBs", shape.wan_GBs, "What leads out of a site (1.25)")
      ->check(CLI::PositiveNumber);
  topology_command->add_option("--wan-ms", shape.wan_ms, "One way between sites (20)")->check(CLI::NonNegativeNumber);

  bool quick = false;
  CLI::App* bench_command =
      app.add_subcommand("bench", "What simulations cost here: classes, events a second, memory, up to 131072 ranks");
  bench_command->add_flag("--quick", quick, "Only those of up to 4096 ranks");

  CLI11_PARSE(app, argc, argv);
  if (run_command->parsed()) return run(arguments);
  if (timeline_command->parsed()) return timeline(arguments);
  if (bench_command->parsed()) return weft::bench(quick);
  return generate(arguments);
}
