// The command line of a perf program: nccl-tests' options, and a few of ours.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/types.hpp"

namespace weft::perf {

// Process exit codes, as scripts around nccl-tests know them.
enum ExitCode { kGood = 0, kFailed = 3, kTimedOut = 4, kUsage = 6, kWrong = 7 };

enum class Average { kRank0 = 0, kMean = 1, kMin = 2, kMax = 3 };
// What happens after each call. kOuterBarrier keeps the barrier out of the reported time.
enum class Blocking { kNone = 0, kBarrier = 1, kWait = 2, kOuterBarrier = 3 };

struct Options {
  int threads = 1;
  int per_thread = 1;
  size_t min_bytes = size_t{32} << 20;
  size_t max_bytes = size_t{32} << 20;
  size_t step_bytes = size_t{1} << 20;
  double step_factor = 1;
  int iters = 20;
  int agg_iters = 1;
  int warmup_iters = 1;
  int run_cycles = 1;
  int parallel_init = 0;
  int check = 1;
  std::vector<ReductionInfo> reductions{kReductions[0]};
  std::vector<TypeInfo> types{kTypes[7]};
  int root = 0;  // -1: every root
  Blocking blocking = Blocking::kNone;
  int stream_null = 0;
  int timeout_s = 0;
  int graph_launches = 0;
  bool report_cputime = false;
  bool report_timestamps = false;
  std::string output_file;
  Average average = Average::kMean;
  int registration = 0;
  bool memory_report = false;
  int unalign = 0;
  bool per_iter_timing = false;
  int per_iter_skip = 0;

  std::string transport;
  std::string algo;
  bool async = false;
  size_t max_memory = 0;      // bytes that the ranks of one host may use for buffers; 0: what the host has free
  int plant_corruption = -1;  // this rank damages one byte of each result before it is checked
  int plant_stall = -1;       // this rank stops taking part in the first timed call

  std::vector<std::string> args;  // as given, program name first

  int local_ranks() const { return threads * per_thread; }
};

struct ParseOutcome {
  std::optional<int> exit_code;  // set where the program is to end now
  std::string out;               // for standard output
  std::string err;               // for standard error
};

// Fills `options`; on -h, and on what is wrong, says what to print and how to exit.
ParseOutcome parse_options(int argc, const char* const* argv, Options& options);

// The size after `size`, or nothing when the sweep is over. Always larger than `size`, also from 0 and for factors
// near 1.
std::optional<size_t> next_size(const Options& options, size_t size, size_t element);

// "1K", "1.5M", "2G": binary. Throws std::invalid_argument with what is legal.
size_t parse_bytes(const std::string& text);

// What the environment says to the perf programs; the only place that reads it.
struct Environment {
  std::optional<double> min_bandwidth;  // NCCL_TESTS_MIN_BW, GB/s
  int first_device = -1;                // NCCL_TESTS_DEVICE
  std::string split;                    // NCCL_TESTS_SPLIT, or NCCL_TESTS_SPLIT_MASK as "&mask"
  double alltoallv_spread = 1;          // NCCL_TESTS_ALLTOALLV_SPREAD
  std::string alltoallv_matrix_file;    // NCCL_TESTS_ALLTOALLV_MATRIX_FILE
  double alltoallv_matrix_scale = 1;    // NCCL_TESTS_ALLTOALLV_MATRIX_SCALE
  std::vector<std::string> all;         // "NAME=value", secrets left out
};
// Throws std::invalid_argument that names variable, value and what is legal.
Environment read_environment();

// The group of process `rank` under NCCL_TESTS_SPLIT: "AND 0x7", "OR 3", "MOD 2", "DIV 8", or with the symbols & | % /.
// Throws std::invalid_argument.
int split_color(const std::string& split, int rank);

}  // namespace weft::perf
