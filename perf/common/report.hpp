// What a perf program prints and writes: nccl-tests' lines on standard output and its JSON file. Rank 0's affair.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/options.hpp"

namespace weft::perf {

// A rank as the others see it; exchanged between ranks as bytes.
struct RankInfo {
  int32_t rank;
  int32_t group;
  int32_t pid;
  int32_t device;
  char host[64];
  char name[128];
  uint64_t memory_available;
};

struct IterationStats {
  double least = 0, greatest = 0, mean = 0, p50 = 0, p95 = 0, p99 = 0, deviation = 0;  // seconds
  double variation_percent() const { return mean > 0 ? deviation / mean * 100 : 0; }
};
IterationStats summarize(std::vector<double> seconds);

// One half of a row.
struct Measurement {
  double seconds = 0;
  double alg_bw = 0;               // GB/s
  double bus_bw = 0;               // GB/s
  std::optional<uint64_t> wrong;   // nothing where it was not checked
  std::vector<double> iterations;  // seconds of each, with -I
};

struct Row {
  size_t bytes;
  size_t count;
  std::string type;
  std::string reduction;
  int root;
  Measurement out_of_place, in_place;
};

struct Summary {
  int out_of_bounds = 0;
  double mean_bus_bw = 0;
  std::optional<double> min_bandwidth;
  std::string memory;  // -M's line, or empty

  // nccl-tests lets the measured mean be a tenth below what was asked for.
  bool fast_enough() const { return !min_bandwidth || mean_bus_bw >= *min_bandwidth * 0.9; }
};

// A number in `width` characters: two digits after the point, or one, or none, or with an exponent.
std::string fit(double value, int width);

class Report {
 public:
  // out: where the lines go. Throws std::runtime_error where -J's file cannot be made.
  Report(const Options& options, const Environment& environment, std::string program, int library_version,
         std::FILE* out);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  void header(const std::vector<RankInfo>& ranks);
  void note(const std::string& line);  // "# <line>"
  void columns();
  void row(const Row& row);
  void footer(const Summary& summary);
  void error(const std::string& text);
  // Writes the JSON file as it stands; also at the end of each sweep of an endless run.
  void save();

 private:
  struct Json;
  void line(const std::string& text);
  std::string half(const Measurement& m) const;
  void write_config(const std::vector<RankInfo>& ranks);
  void open_file();

  const Options& options_;
  std::string program_;
  int library_version_;
  std::FILE* out_;
  std::string path_;
  std::unique_ptr<Json> json_;
};

}  // namespace weft::perf
