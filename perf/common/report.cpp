#include "common/report.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

namespace weft::perf {
namespace {

using nlohmann::ordered_json;

constexpr int kJsonVersion = 3;                    // of nccl-tests' results files
constexpr const char* kCompatibleWith = "2.19.6";  // the nccl-tests whose output this is

std::string now() { return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr))); }

std::string version_text(int code) { return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100); }

// nccl-tests writes truth values as strings.
const char* truth(bool value) { return value ? "true" : "false"; }

ordered_json measurement_json(const Measurement& m, bool cpu_time) {
  ordered_json j;
  j[cpu_time ? "cpu_time" : "time"] = m.seconds * 1e6;
  j["alg_bw"] = m.alg_bw;
  j["bus_bw"] = m.bus_bw;
  j["nwrong"] = m.wrong ? ordered_json(static_cast<double>(*m.wrong)) : ordered_json(nullptr);
  return j;
}

ordered_json iterations_json(const Measurement& m, int skip) {
  IterationStats s = summarize({m.iterations.begin() + skip, m.iterations.end()});
  ordered_json j;
  j["skipped_iterations"] = skip;
  j["min_us"] = s.least * 1e6;
  j["max_us"] = s.greatest * 1e6;
  j["avg_us"] = s.mean * 1e6;
  j["p50_us"] = s.p50 * 1e6;
  j["p95_us"] = s.p95 * 1e6;
  j["p99_us"] = s.p99 * 1e6;
  j["stdev_us"] = s.deviation * 1e6;
  j["cv_pct"] = s.variation_percent();
  j["times_us"] = ordered_json::array();
  for (double seconds : m.iterations) j["times_us"].push_back(seconds * 1e6);
  return j;
}

}  // namespace

IterationStats summarize(std::vector<double> seconds) {
  IterationStats s;
  if (seconds.empty()) return s;
  std::sort(seconds.begin(), seconds.end());
  size_t n = seconds.size();
  auto nearest_rank = [&](size_t percent) { return seconds[std::min(n - 1, (n * percent + 99) / 100 - 1)]; };
  s.least = seconds.front();
  s.greatest = seconds.back();
  s.p50 = seconds[n / 2];
  s.p95 = nearest_rank(95);
  s.p99 = nearest_rank(99);
  s.mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(n);
  double squares = 0;
  for (double x : seconds) squares += (x - s.mean) * (x - s.mean);
  s.deviation = std::sqrt(squares / static_cast<double>(n));
  return s;
}

std::string fit(double value, int width) {
  for (int digits : {2, 1, 0}) {
    std::string text = fmt::format("{:{}.{}f}", value, width, digits);
    if (text.size() <= static_cast<size_t>(width)) return text;
  }
  return fmt::format("{:{}.{}e}", value, width, width >= 7 ? 1 : 0);
}

struct Report::Json {
  ordered_json root;
};

Report::Report(const Options& options, const Environment& environment, std::string program, int library_version,
               std::FILE* out)
    : options_(options), program_(std::move(program)), library_version_(library_version), out_(out) {
  std::setvbuf(out_, nullptr, _IOLBF, BUFSIZ);
  if (options.output_file.empty()) return;
  open_file();
  json_ = std::make_unique<Json>();
  auto& root = json_->root;
  root["version"] = kJsonVersion;
  root["start_time"] = now();
  root["args"] = options.args;
  root["env"] = environment.all;
  root["weft_version"] = version_text(library_version);
}

Report::~Report() = default;

// An existing file is left alone: x.json, else x.json.0, x.json.1 and so on, made now so that a run of an hour does not
// end with nowhere to write.
void Report::open_file() {
  path_ = options_.output_file;
  for (int attempt = 0;; ++attempt) {
    int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
      ::close(fd);
      break;
    }
    if (errno != EEXIST || attempt == 10000)
      throw std::runtime_error(fmt::format("-J: cannot make '{}': {}", path_, std::strerror(errno)));
    path_ = fmt::format("{}.{}", options_.output_file, attempt);
  }
  note(fmt::format("Writing JSON output to {}", path_));
}

void Report::line(const std::string& text) {
  std::fputs(text.c_str(), out_);
  std::fputc('\n', out_);
}

void Report::note(const std::string& text) { line("# " + text); }

void Report::header(const std::vector<RankInfo>& ranks) {
  const Options& o = options_;
  bool factor = o.step_factor > 1;
  line(fmt::format("# nccl-tests version {} nccl-headers={} nccl-library={} weft {}", kCompatibleWith,
                   WEFT_VERSION_CODE, library_version_, version_text(library_version_)));
  line(fmt::format("# Collective test starting: {}", program_));
  line(fmt::format(
      "# nThread {} nGpus {} minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} "
      "validation: {} graph: {} unalign: {}",
      o.threads, o.per_thread, o.min_bytes, o.max_bytes,
      factor ? fmt::format("{:g}", o.step_factor) : fmt::format("{}", o.step_bytes), factor ? "factor" : "bytes",
      o.warmup_iters, o.iters, o.agg_iters, o.check, o.graph_launches, o.unalign));
  if (o.blocking == Blocking::kBarrier) note("Blocking Enabled: wait and barrier after each inner iteration (-m) ");
  if (o.blocking == Blocking::kWait) note("Blocking Enabled: wait after each inner iteration (-m), no barrier ");
  if (o.blocking == Blocking::kOuterBarrier)
    note("Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes barrier ");
  if (o.per_iter_timing) note("Per-Iteration Report: i_* are of the slowest rank in each iteration ");
  if (o.parallel_init) note("Parallel Init Enabled: the ranks of a process join at the same time ");
  if (o.async) note("Asynchronous: calls are issued on a host stream ");
  line("#");
  line("# Using devices");
  for (const RankInfo& r : ranks)
    line(fmt::format("#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [0000:00:00] {}", r.rank, r.group, r.pid,
                     r.host, r.device, r.name));
  if (json_) write_config(ranks);
}

void Report::write_config(const std::vector<RankInfo>& ranks) {
  const Options& o = options_;
  ordered_json config;
  config["nthreads"] = o.threads;
  config["ngpus"] = o.per_thread;
  config["minimum_bytes"] = o.min_bytes;
  config["maximum_bytes"] = o.max_bytes;
  if (o.step_factor > 1)
    config["step_factor"] = o.step_factor;
  else
    config["step_bytes"] = o.step_bytes;
  config["warmup_iters"] = o.warmup_iters;
  config["iterations"] = o.iters;
  config["aggregated_iterations"] = o.agg_iters;
  config["validation"] = o.check;
  config["graph"] = o.graph_launches;
  config["blocking_collectives"] = truth(o.blocking != Blocking::kNone);
  config["per_iter_timing"] = truth(o.per_iter_timing);
  config["per_iter_skip"] = o.per_iter_skip;
  config["parallel_init"] = truth(o.parallel_init != 0);
  config["transport"] = o.transport;
  config["algo"] = o.algo;
  config["async"] = truth(o.async);
  config["devices"] = ordered_json::array();
  for (const RankInfo& r : ranks) {
    ordered_json device;
    device["rank"] = r.rank;
    device["group"] = r.group;
    device["pid"] = r.pid;
    device["hostname"] = r.host;
    device["device"] = r.device;
    device["device_hex"] = "0000:00:00";
    device["device_info"] = r.name;
    config["devices"].push_back(device);
  }
  json_->root["config"] = config;
}

void Report::columns() {
  const Options& o = options_;
  const char* time = o.report_cputime ? "cputime" : "time";
  std::string stamp[2] = {o.report_timestamps ? fmt::format("{:>19}", "timestamp") : "",
                          o.report_timestamps ? fmt::format("{:>19}", "%Y-%m-%d %H:%M:%S") : ""};
  std::string lead = fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", "", "", "", "", "");
  std::string titles = fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", time, "algbw", "busbw", "#wrong");
  std::string units = fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
  line("#");
  if (o.per_iter_timing) {
    line(lead +
         "              out-of-place (+ per-iteration)                                in-place (+ per-iteration)");
    titles += fmt::format("  {:>7}  {:>7}  {:>7}  {:>7}", "i_min", "i_max", "i_p99", "i_cv%");
    units += fmt::format("  {:>7}  {:>7}  {:>7}  {:>7}", "(us)", "(us)", "(us)", "(%)");
  } else {
    line(lead + "           out-of-place                       in-place          ");
  }
  auto columns = [&](const char* size, const char* count, const char* type, const char* op, const char* root,
                     const std::string& half, const std::string& end) {
    line(fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}{}{} {}", size, count, type, op, root, half, half, end));
  };
  columns("size", "count", "type", "redop", "root", titles, stamp[0]);
  columns("(B)", "(elements)", "", "", "", units, stamp[1]);
  if (json_) json_->root["results"] = ordered_json::array();
}

std::string Report::half(const Measurement& m) const {
  std::string wrong = m.wrong ? fmt::format("{:6g}", static_cast<double>(*m.wrong)) : "   N/A";
  std::string text =
      fmt::format("  {}  {}  {}  {}", fit(m.seconds * 1e6, 7), fit(m.alg_bw, 6), fit(m.bus_bw, 6), wrong);
  if (!options_.per_iter_timing) return text;
  IterationStats s = summarize({m.iterations.begin() + options_.per_iter_skip, m.iterations.end()});
  return text + fmt::format("  {}  {}  {}  {}", fit(s.least * 1e6, 7), fit(s.greatest * 1e6, 7), fit(s.p99 * 1e6, 7),
                            fit(s.variation_percent(), 7));
}

void Report::row(const Row& row) {
  line(fmt::format("{:12}  {:12}  {:>8}  {:>6}  {:6}{}{}{}", row.bytes, row.count, row.type, row.reduction, row.root,
                   half(row.out_of_place), half(row.in_place),
                   options_.report_timestamps ? fmt::format("{:>21}", now()) : ""));
  if (!json_) return;
  ordered_json j;
  j["size"] = row.bytes;
  j["count"] = row.count;
  j["type"] = row.type;
  j["redop"] = row.reduction;
  j["root"] = fmt::format("{:6}", row.root);  // a padded string, as nccl-tests writes it
  j["out_of_place"] = measurement_json(row.out_of_place, options_.report_cputime);
  if (options_.per_iter_timing) j["out_of_place_per_iter"] = iterations_json(row.out_of_place, options_.per_iter_skip);
  j["in_place"] = measurement_json(row.in_place, options_.report_cputime);
  if (options_.per_iter_timing) j["in_place_per_iter"] = iterations_json(row.in_place, options_.per_iter_skip);
  j["actual_iterations"] = options_.iters;
  j["experiment_name"] = "";
  json_->root["results"].push_back(j);
}

void Report::footer(const Summary& s) {
  line(fmt::format("# {:<20} : {} {}", "Out of bounds values", s.out_of_bounds, s.out_of_bounds > 0 ? "FAILED" : "OK"));
  line(fmt::format("# {:<20} : {:g} {}", "Avg bus bandwidth", s.mean_bus_bw,
                   !s.min_bandwidth  ? ""
                   : s.fast_enough() ? "OK"
                                     : "FAILED"));
  if (!s.memory.empty()) line(fmt::format("# {:<20} : {}", "Host memory usage", s.memory));
  line("#");
  line(fmt::format("# Collective test concluded: {}", program_));
  if (!json_) return;
  auto& root = json_->root;
  root["out_of_bounds"]["count"] = s.out_of_bounds;
  root["out_of_bounds"]["okay"] = truth(s.out_of_bounds == 0);
  root["average_bus_bandwidth"]["bandwidth"] = s.mean_bus_bw;
  root["average_bus_bandwidth"]["okay"] = s.min_bandwidth ? truth(s.fast_enough()) : "unchecked";
}

void Report::error(const std::string& text) {
  line("# error: " + text);
  if (json_) json_->root["errors"].push_back(text);
}

void Report::save() {
  if (!json_) return;
  ordered_json root = json_->root;
  if (!root.contains("errors")) root["errors"] = ordered_json::array();
  root["end_time"] = now();
  // Text that is not UTF-8 (the environment may hold any bytes) is replaced, not refused.
  std::string text = root.dump(2, ' ', false, ordered_json::error_handler_t::replace);
  std::FILE* file = std::fopen(path_.c_str(), "we");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (file != nullptr && std::fclose(file) != 0) good = false;
  if (!good) std::fprintf(stderr, "%s: cannot write %s: %s\n", program_.c_str(), path_.c_str(), std::strerror(errno));
}

}  // namespace weft::perf
