#include "common/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <stdexcept>

namespace weft::perf {
namespace {

template <typename Table>
std::string names_of(const Table& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.emplace_back(entry.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// One entry of a table by name, or all of it for "all".
template <typename Entry, typename Table>
std::vector<Entry> pick(const char* option, const Table& table, const std::string& name) {
  if (name == "all") return {table.begin(), table.end()};
  for (const auto& entry : table)
    if (name == entry.name) return {entry};
  throw CLI::ValidationError(option, fmt::format("'{}' is none of {}, all", name, names_of(table)));
}

void add_bytes(CLI::App& app, const char* names, size_t& target, const char* help) {
  auto parse = [&target, names](const std::string& text) {
    try {
      target = parse_bytes(text);
    } catch (const std::invalid_argument& e) {
      throw CLI::ValidationError(names, e.what());
    }
  };
  app.add_option_function<std::string>(names, parse, help)->type_name("BYTES");
}

template <typename T>
void add_number(CLI::App& app, const char* names, T& target, T low, T high, const char* help) {
  app.add_option(names, target, help)->check(CLI::Range(low, high))->type_name("N")->capture_default_str();
}

template <typename E>
void add_choice(CLI::App& app, const char* names, E& target, int high, const char* help) {
  auto store = [&target](int value) { target = static_cast<E>(value); };
  app.add_option_function<int>(names, store, help)->check(CLI::Range(0, high))->type_name("N");
}

constexpr int kMany = 1 << 30;

void add_sizes(CLI::App& app, Options& o) {
  add_number(app, "-t,--nthreads", o.threads, 1, 4096, "Threads of this process");
  add_number(app, "-g,--ngpus", o.per_thread, 1, 4096, "Ranks per thread; a process is nthreads x ngpus ranks");
  add_bytes(app, "-b,--minbytes", o.min_bytes, "Smallest size (default 32M)");
  add_bytes(app, "-e,--maxbytes", o.max_bytes, "Largest size (default 32M)");
  add_bytes(app, "-i,--stepbytes", o.step_bytes, "Increment between sizes (default 1M)");
  app.add_option("-f,--stepfactor", o.step_factor, "Factor between sizes instead of an increment; 1: off")
      ->check(CLI::Range(1.0, 1e9))
      ->type_name("X");
}

void add_loop(CLI::App& app, Options& o) {
  add_number(app, "-n,--iters", o.iters, 1, kMany, "Timed iterations");
  add_number(app, "-m,--agg_iters", o.agg_iters, 1, kMany, "Calls grouped into one iteration");
  add_number(app, "-w,--warmup_iters", o.warmup_iters, 0, kMany, "Iterations before the timed ones");
  add_number(app, "-N,--run_cycles", o.run_cycles, 0, kMany, "Sweeps to run and print; 0: for ever");
  add_number(app, "-p,--parallel_init", o.parallel_init, 0, 1, "1: ranks of this process join at the same time");
  add_number(app, "-c,--check", o.check, 0, kMany, "Calls whose results are checked, element by element; 0: none");
  add_choice(app, "-z,--blocking", o.blocking, 3,
             "1: barrier after each call, 2: wait after each call, 3: barrier after each iteration, not timed");
  add_choice(app, "-a,--average", o.average, 3, "Time reported: 0 of rank 0, 1 mean, 2 least, 3 greatest (default 1)");
  add_number(app, "-T,--timeout", o.timeout_s, 0, kMany / 1000,
             "Seconds after which a test is given up (exit code 4); 0: never");
}

void add_reports(CLI::App& app, Options& o) {
  app.add_option("-C,--report_cputime", o.report_cputime, "1: report the time until all calls are issued")
      ->type_name("0|1");
  app.add_option("-S,--report_timestamps", o.report_timestamps, "1: end each row with the time of day")
      ->type_name("0|1");
  app.add_option("-J,--output_file", o.output_file, "Also write the results to this file (*.json)")->type_name("FILE");
  app.add_option("-M,--memory", o.memory_report, "1: report the memory used")->type_name("0|1");
  app.add_option("-I,--per_iter_timing", o.per_iter_timing,
                 "1: time each iteration and report least, greatest, p99, cv")
      ->type_name("0|1");
  add_number(app, "-K,--per_iter_skip", o.per_iter_skip, 0, kMany, "Leading iterations that -I's summary leaves out");
}

void add_buffers(CLI::App& app, Options& o) {
  add_number(app, "-R,--local_register", o.registration, 0, 2,
             "1: register the buffers, 2: make them collective windows");
  add_number(app, "-u,--unalign", o.unalign, 0, 4096, "Elements by which the buffers are misaligned");
}

// nccl-tests' options about devices. There is no device in these programs' way yet: accepted, so that scripts run.
void add_device_options(CLI::App& app, Options& o, int& ignored) {
  add_number(app, "-y,--stream_null", o.stream_null, 0, 1, "No effect: calls block unless --async is given");
  add_number(app, "-G,--cudagraph", o.graph_launches, 0, kMany, "No effect on host memory");
  add_number(app, "-x,--cta_policy", ignored, 0, 2, "No effect on host memory");
  add_number(app, "-V,--device_cta_count", ignored, 1, 127, "No effect on host memory");
  add_number(app, "-D,--device_implementation", ignored, 0, 0, "Only 0, the library's own implementation");
}

void add_weft_options(CLI::App& app, Options& o) {
  app.add_option("--transport", o.transport, "Transports allowed, comma-separated (loop, shm, verbs, tcp, ucx)")
      ->type_name("LIST");
  app.add_option("--algo", o.algo, "Algorithm, 'ring' or 'allreduce:ring,broadcast:chain'")->type_name("NAME");
  app.add_flag("--async", o.async, "Issue the calls on a host stream and wait once, instead of blocking in each");
  add_bytes(app, "--max-memory", o.max_memory,
            "Memory for the buffers of all ranks of a host (default: what is available)");
  app.add_option("--plant-corruption", o.plant_corruption)->group("")->type_name("RANK");
  app.add_option("--plant-stall", o.plant_stall)->group("")->type_name("RANK");
}

// What only shows once all options are known.
void check_together(Options& o) {
  if (o.min_bytes > o.max_bytes)
    throw CLI::ValidationError("-b,--minbytes", fmt::format("{} is above -e,--maxbytes {}", o.min_bytes, o.max_bytes));
  if (o.step_factor == 1 && o.step_bytes == 0 && o.min_bytes != o.max_bytes)
    throw CLI::ValidationError("-i,--stepbytes", "must be above 0 where -b and -e differ and no -f is given");
  if (o.per_iter_skip >= o.iters)
    throw CLI::ValidationError("-K,--per_iter_skip", fmt::format("{} must be below -n {}", o.per_iter_skip, o.iters));
  if (!o.output_file.empty() && !o.output_file.ends_with(".json"))
    throw CLI::ValidationError("-J,--output_file", fmt::format("'{}' must end in .json", o.output_file));
  if (o.local_ranks() > 4096)
    throw CLI::ValidationError("-t x -g", fmt::format("{} ranks in one process; at most 4096", o.local_ranks()));
}

}  // namespace

size_t parse_bytes(const std::string& text) {
  const char* legal = "is no size: give a number of bytes of at most 2^62, with K, M, G or T (binary) if wanted";
  size_t used = 0;
  double value = -1;
  // stod also reads "nan", "inf" and "0x10"; sizes start with a digit or a point and are decimal.
  bool digit = !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '.');
  try {
    if (digit) value = std::stod(text, &used);
  } catch (const std::exception&) {
    value = -1;
  }
  if (value < 0 || (text.size() > 1 && std::tolower(text[1]) == 'x'))
    throw std::invalid_argument(fmt::format("'{}' {}", text, legal));
  std::string unit = text.substr(used);
  if (!unit.empty() && std::tolower(unit.back()) == 'b' && unit.size() > 1) unit.pop_back();
  std::string units = " kmgt";
  size_t power = unit.empty()       ? 0
                 : unit.size() == 1 ? units.find(static_cast<char>(std::tolower(unit[0])))
                                    : std::string::npos;
  if (power == std::string::npos || (power == 0 && !unit.empty()))
    throw std::invalid_argument(fmt::format("'{}' {}", text, legal));
  double bytes = std::ldexp(value, static_cast<int>(10 * power));
  if (!(bytes <= std::ldexp(1.0, 62))) throw std::invalid_argument(fmt::format("'{}' {}", text, legal));
  return static_cast<size_t>(bytes);
}

std::optional<size_t> next_size(const Options& o, size_t size, size_t element) {
  size_t next;
  if (o.step_factor <= 1) {
    if (o.step_bytes == 0 || o.step_bytes > o.max_bytes - std::min(size, o.max_bytes)) return std::nullopt;
    next = size + o.step_bytes;
  } else {
    // A factor below 2 may round down to no progress at all; an element is the least that changes anything.
    double scaled = std::floor(static_cast<double>(size) * o.step_factor);
    if (scaled > static_cast<double>(o.max_bytes)) return std::nullopt;
    next = std::max(static_cast<size_t>(scaled), size + (o.step_factor >= 2 && size > 0 ? 1 : element));
  }
  return next <= o.max_bytes ? std::optional<size_t>(next) : std::nullopt;
}

ParseOutcome parse_options(int argc, const char* const* argv, Options& options) {
  options.args.assign(argv, argv + argc);
  std::string program = argc > 0 ? options.args[0].substr(options.args[0].rfind('/') + 1) : "perf";
  CLI::App app{"Measures a collective of Weft, with the options and the output of nccl-tests.", program};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  int ignored = 0;
  std::string op = "sum", type = "float", root = "0";
  add_sizes(app, options);
  add_loop(app, options);
  app.add_option("-o,--op", op, fmt::format("Reduction: {}, all (default sum)", names_of(kReductions)))
      ->type_name("OP");
  app.add_option("-d,--datatype", type, fmt::format("Data type: {}, all (default float)", names_of(kTypes)))
      ->type_name("TYPE");
  app.add_option("-r,--root", root, "Root rank; -1 or all: every rank in turn (default 0)")->type_name("RANK");
  add_reports(app, options);
  add_buffers(app, options);
  add_device_options(app, options, ignored);
  add_weft_options(app, options);
  try {
    app.parse(argc, argv);
    options.reductions = pick<ReductionInfo>("-o,--op", kReductions, op);
    options.types = pick<TypeInfo>("-d,--datatype", kTypes, type);
    if (root == "all") root = "-1";
    if (!CLI::detail::lexical_cast(root, options.root) || options.root < -1)
      throw CLI::ValidationError("-r,--root", fmt::format("'{}' is no rank; give 0 or above, -1 or all", root));
    check_together(options);
  } catch (const CLI::CallForHelp&) {
    return {kGood, app.help(), ""};
  } catch (const CLI::ParseError& e) {
    return {kUsage, "", fmt::format("{}: {}\nTry '{} -h'.\n", program, e.what(), program)};
  }
  return {};
}

}  // namespace weft::perf
