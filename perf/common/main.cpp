#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <thread>

#include "common/bench.hpp"
#include "common/host.hpp"
#include "common/program.hpp"

namespace weft::perf {
namespace {

// What the user asked for cannot be run; the same on all ranks.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string amount(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB"};
  int unit = 0;
  for (; std::abs(bytes) >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, std::abs(bytes) < 10 ? 2 : std::abs(bytes) < 100 ? 1 : 0, units[unit]);
}

// The largest size whose two buffers every rank can have. The ranks of a host share its memory.
size_t size_that_fits(const Options& options, const std::vector<RankInfo>& ranks) {
  uint64_t fits = UINT64_MAX;
  for (const RankInfo& one : ranks) {
    uint64_t sharing = 0;
    uint64_t available = one.memory_available;
    for (const RankInfo& other : ranks) {
      if (std::strcmp(one.host, other.host) != 0) continue;
      ++sharing;
      available = std::min(available, other.memory_available);
    }
    // The library and everyone else need some too.
    uint64_t usable =
        options.max_memory > 0 ? options.max_memory : available - std::min(available / 8, uint64_t{1} << 30);
    fits = std::min(fits, usable / sharing / 2);
  }
  return fits;
}

class Run {
 public:
  Run(const Program& program, const Options& options, const Environment& environment, Session& session, Report* report)
      : program_(program), options_(options), environment_(environment), session_(session), report_(report) {
    codes_.resize(static_cast<size_t>(options.local_ranks()), kGood);
  }

  int go() {
    std::vector<std::thread> threads;
    for (int i = 1; i < options_.local_ranks(); ++i) threads.emplace_back([this, i] { rank(i); });
    rank(0);
    for (std::thread& thread : threads) thread.join();
    for (int code : {kTimedOut, kFailed, kUsage})
      if (std::count(codes_.begin(), codes_.end(), code) > 0) return code;
    return finish();
  }

 private:
  void rank(int local_rank) {
    int& code = codes_[static_cast<size_t>(local_rank)];
    try {
      measure(local_rank);
    } catch (const UsageError& e) {
      code = kUsage;
      if (local_rank == 0 && session_.process() == 0) complain(local_rank, e.what());
    } catch (const Error& e) {
      bool expired = session_.watchdog().expired(local_rank);
      code = expired || e.code() == weftTimeout ? kTimedOut : kFailed;
      complain(local_rank,
               expired ? fmt::format("Test timeout ({}s): {}", options_.timeout_s, e.what()) : std::string(e.what()));
    } catch (const std::bad_alloc&) {
      code = kFailed;
      complain(local_rank, "out of memory; give a smaller -e or --max-memory");
    }
    if (code != kGood) session_.abandon(local_rank);
    session_.leave(local_rank);
  }

  void complain(int local_rank, const std::string& text) {
    int rank = session_.process() * options_.local_ranks() + local_rank;
    fmt::print(stderr, "{}: rank {}: {}\n", program_.name, rank, text);
    if (local_rank == 0 && report_ != nullptr) report_->error(text);
  }

  void measure(int local_rank) {
    uint64_t before = resident_bytes();
    Member member = session_.join(local_rank);
    std::vector<RankInfo> ranks = session_.exchange(member, local_rank);
    bool first = local_rank == 0;
    Report* report = first ? report_ : nullptr;
    if (report != nullptr) report->header(ranks);
    Options options = options_;
    options.max_bytes = std::min(options.max_bytes, size_that_fits(options, ranks));
    if (options.max_bytes < options.min_bytes)
      throw UsageError(
          fmt::format("-b {} does not fit: with the memory there is, {} ranks can have two buffers of {} "
                      "bytes each at most",
                      options.min_bytes, ranks.size(), options.max_bytes));
    if (report != nullptr && options.max_bytes < options_.max_bytes) {
      report->note("");
      report->note(fmt::format("Reducing maxBytes to {} due to memory limitation", options.max_bytes));
    }
    if (report != nullptr) report->columns();
    uint64_t joined = resident_bytes();
    Totals totals = Bench(program_, options, session_, local_rank, member, report).run();
    if (!first) return;
    totals_ = totals;
    uint64_t buffers = 2 * options.max_bytes * static_cast<size_t>(options.local_ranks());
    double init = static_cast<double>(joined) - static_cast<double>(before);
    double rest = static_cast<double>(resident_bytes()) - static_cast<double>(joined);
    if (options.memory_report)
      memory_ = fmt::format("Initialization {} | User-Allocated {} | Collective {} | Total  {}", amount(init),
                            amount(static_cast<double>(buffers)), amount(rest),
                            amount(init + rest + static_cast<double>(buffers)));
  }

  int finish() {
    Summary summary;
    summary.out_of_bounds = totals_.out_of_bounds;
    summary.mean_bus_bw = totals_.measured > 0 ? totals_.bus_bw / static_cast<double>(totals_.measured) : 0;
    summary.min_bandwidth = environment_.min_bandwidth;
    summary.memory = memory_;
    if (report_ != nullptr) report_->footer(summary);
    return summary.out_of_bounds > 0 || !summary.fast_enough() ? kWrong : kGood;
  }

  const Program& program_;
  const Options& options_;
  const Environment& environment_;
  Session& session_;
  Report* report_;  // null but in the process of rank 0
  std::vector<int> codes_;
  Totals totals_;       // of the first rank here; all ranks have the same
  std::string memory_;  // -M
};

int run_session(const Program& program, const Options& options, const Environment& environment) {
  Session session(options, environment, program.name);
  std::string problem;
  if (program.prepare != nullptr) problem = program.prepare(options, environment, session.group_ranks());
  if (problem.empty() && program.rooted && options.root >= session.group_ranks())
    problem = fmt::format("-r {}: there are {} ranks, 0 to {}", options.root, session.group_ranks(),
                          session.group_ranks() - 1);
  if (!problem.empty()) {
    if (session.process() == 0) fmt::print(stderr, "{}: {}\n", program.name, problem);
    return kUsage;
  }
  std::unique_ptr<Report> report;
  if (session.process() == 0)
    report = std::make_unique<Report>(options, environment, program.name, library_version(), stdout);
  int code = Run(program, options, environment, session, report.get()).go();
  if (report != nullptr) report->save();
  return code;
}

}  // namespace

int perf_main(const Program& program, int argc, char** argv) {
  Options options;
  ParseOutcome outcome = parse_options(argc, argv, options);
  fmt::print("{}", outcome.out);
  fmt::print(stderr, "{}", outcome.err);
  if (outcome.exit_code) return *outcome.exit_code;
  try {
    return run_session(program, options, read_environment());
  } catch (const Error& e) {
    fmt::print(stderr, "{}: {}\n", program.name, e.what());
    return e.code() == weftTimeout ? kTimedOut : kFailed;
  } catch (const std::exception& e) {  // the environment, or the -J file
    fmt::print(stderr, "{}: {}\n", program.name, e.what());
    return kUsage;
  }
}

}  // namespace weft::perf
