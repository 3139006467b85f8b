// moe_perf: what dispatching tokens to experts and combining them takes. weft-run -n 8 moe_perf --tokens 4096 --hidden
// 7168
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>
#include <weft/weft.hpp>

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  size_t tokens = 1024, hidden = 2048;
  int experts_per_rank = 4, topk = 2, calls = 20, warmup = 3;
  double skew = 0;
  std::string wire = "bf16";
};

// Experts of a token, none twice: expert e has weight (e + 1) ^ -skew, in an order that is the same on all ranks.
std::vector<int32_t> route(const Options& options, int experts, int rank) {
  std::vector<int32_t> order(static_cast<size_t>(experts));
  for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
  std::mt19937 common(1), own(static_cast<uint32_t>(rank) + 2);
  std::shuffle(order.begin(), order.end(), common);
  std::vector<double> weights;
  for (int e = 0; e < experts; ++e) weights.push_back(std::pow(e + 1, -options.skew));
  std::discrete_distribution<int> draw(weights.begin(), weights.end());
  std::vector<int32_t> chosen;
  for (size_t token = 0; token < options.tokens; ++token) {
    const auto begin = static_cast<std::ptrdiff_t>(chosen.size());
    while (static_cast<std::ptrdiff_t>(chosen.size()) < begin + options.topk) {
      const int32_t expert = order[static_cast<size_t>(draw(own))];
      if (std::find(chosen.begin() + begin, chosen.end(), expert) == chosen.end()) chosen.push_back(expert);
    }
  }
  return chosen;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  CLI::App app("What dispatching tokens to experts and combining them takes: microseconds, median over calls.",
               "moe_perf");
  app.add_option("--tokens", options.tokens, "Of each rank (1024)")->check(CLI::Range(1, 1 << 22));
  app.add_option("--hidden", options.hidden, "Elements of a token, bfloat16 (2048)")->check(CLI::Range(1, 1 << 20));
  app.add_option("--experts", options.experts_per_rank, "Of each rank (4)")->check(CLI::Range(1, 1024));
  app.add_option("--topk", options.topk, "Experts of a token (2)")->check(CLI::Range(1, 64));
  app.add_option("--skew", options.skew, "How unequal the experts are: weight of the n-th is n^-SKEW (0: equal)")
      ->check(CLI::Range(0.0, 10.0));
  app.add_option("--wire", options.wire, "bf16, or fp8 with a scale for 128 elements")
      ->check(CLI::IsMember({"bf16", "fp8"}));
  app.add_option("--calls", options.calls, "Timed calls (20)")->check(CLI::Range(1, 100000));
  app.add_option("--warmup", options.warmup, "Calls before (3)")->check(CLI::Range(0, 1000));
  CLI11_PARSE(app, argc, argv);

  weft::Communicator comm = weft::Communicator::from_env();
  const int ranks = comm.size(), experts = options.experts_per_rank * ranks;
  if (options.topk > experts) {
    std::fprintf(stderr, "moe_perf: --topk %d of %d experts\n", options.topk, experts);
    return 6;
  }
  const weftMoeConfig_t config{
      sizeof(weftMoeConfig_t), experts,      options.topk,
      options.hidden,          weftBfloat16, options.wire == "fp8" ? weftFloat8e4m3 : weftBfloat16};
  weftMoe_t moe = nullptr;
  weft::check(weftMoeCreate(&moe, comm.raw(), &config), "weftMoeCreate", comm.raw());
  const std::vector<int32_t> chosen = route(options, experts, comm.rank());
  const std::vector<float> weights(chosen.size(), 1.0F / static_cast<float>(options.topk));
  const std::vector<uint16_t> tokens(options.tokens * options.hidden, 0x3f80);  // 1
  std::vector<uint16_t> rows, out(tokens.size());
  std::vector<size_t> counts(static_cast<size_t>(options.experts_per_rank));
  size_t total = 0, capacity = 0;
  std::vector<double> dispatches, combines;
  for (int call = -options.warmup; call < options.calls; ++call) {
    comm.barrier();
    const auto begin = Clock::now();
    weftResult_t result = weftMoeDispatch(moe, tokens.data(), chosen.data(), weights.data(), options.tokens,
                                          rows.data(), capacity, counts.data(), &total);
    if (result == weftInvalidUsage && total > capacity) {  // the first call says how much room it takes
      capacity = total;
      rows.resize(capacity * options.hidden);
      result = weftMoeRows(moe, rows.data(), capacity);
    }
    weft::check(result, "weftMoeDispatch", comm.raw());
    const auto middle = Clock::now();
    comm.barrier();
    const auto again = Clock::now();
    weft::check(weftMoeCombine(moe, rows.data(), out.data()), "weftMoeCombine", comm.raw());
    const auto end = Clock::now();
    std::vector<double> times{std::chrono::duration<double, std::micro>(middle - begin).count(),
                              std::chrono::duration<double, std::micro>(end - again).count()};
    comm.all_reduce(times, weftMax);
    if (call < 0) continue;
    dispatches.push_back(times[0]);
    combines.push_back(times[1]);
  }
  // The experts gave the rows back as they came, and the weights of a token add up to one.
  const bool right =
      std::all_of(out.begin(), out.end(), [](uint16_t value) { return value >= 0x3f7e && value <= 0x3f81; });
  std::vector<double> load{static_cast<double>(total)}, most = load;
  comm.all_reduce(load, weftSum);
  comm.all_reduce(most, weftMax);
  if (comm.rank() == 0) {
    const double bytes = static_cast<double>(options.tokens * options.hidden * 2);
    fmt::print(
        "# {} ranks, {} experts, {} tokens of {} bfloat16 each, top {}, skew {}, {} on the wire; busiest rank {:.2f} "
        "of "
        "the mean\n",
        ranks, experts, options.tokens, options.hidden, options.topk, options.skew, options.wire,
        most[0] * ranks / load[0]);
    fmt::print("{:>12}{:>14}{:>16}{:>8}\n", "", "us", "tokens GB/s", "wrong");
    fmt::print("{:>12}{:>14.1f}{:>16.3f}\n", "dispatch", median(dispatches), bytes / median(dispatches) / 1000);
    fmt::print("{:>12}{:>14.1f}{:>16.3f}{:>8}\n", "combine", median(combines), bytes / median(combines) / 1000,
               right ? 0 : 1);
  }
  weftMoeDestroy(moe);
  return right ? 0 : 7;
} catch (const weft::Error& problem) {
  std::fprintf(stderr, "moe_perf: %s\n", problem.what());
  return 3;
}
