// What the perf programs parse, print and write, without a library underneath.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <stdexcept>

#include "common/options.hpp"
#include "common/report.hpp"

namespace weft::perf {
namespace {

ParseOutcome parse(std::vector<const char*> args, Options& options) {
  args.insert(args.begin(), "/usr/bin/all_reduce_perf");
  return parse_options(static_cast<int>(args.size()), args.data(), options);
}

Options parsed(std::vector<const char*> args) {
  Options options;
  ParseOutcome outcome = parse(std::move(args), options);
  EXPECT_FALSE(outcome.exit_code) << outcome.err;
  return options;
}

void expect_refused(std::vector<const char*> args, const std::string& said) {
  Options options;
  ParseOutcome outcome = parse(args, options);
  EXPECT_EQ(outcome.exit_code, kUsage) << args[0] << " " << args.back();
  EXPECT_NE(outcome.err.find(said), std::string::npos) << outcome.err;
}

TEST(Options, DefaultsAreNcclTests) {
  Options o = parsed({});
  EXPECT_EQ(o.threads, 1);
  EXPECT_EQ(o.per_thread, 1);
  EXPECT_EQ(o.min_bytes, 32u << 20);
  EXPECT_EQ(o.max_bytes, 32u << 20);
  EXPECT_EQ(o.step_bytes, 1u << 20);
  EXPECT_EQ(o.iters, 20);
  EXPECT_EQ(o.agg_iters, 1);
  EXPECT_EQ(o.warmup_iters, 1);
  EXPECT_EQ(o.run_cycles, 1);
  EXPECT_EQ(o.check, 1);
  EXPECT_EQ(o.average, Average::kMean);
  EXPECT_EQ(o.types.size(), 1u);
  EXPECT_STREQ(o.types[0].name, "float");
  EXPECT_STREQ(o.reductions[0].name, "sum");
}

TEST(Options, ShortLongAttachedAndLastWins) {
  Options o = parsed({"-b8",     "--maxbytes=128M",
                      "-f",      "2",
                      "-g",      "4",
                      "-t",      "2",
                      "-n",      "5",
                      "-n",      "7",
                      "--check", "0",
                      "-r",      "-1",
                      "-o",      "all",
                      "-d",      "all",
                      "-a",      "3",
                      "-z",      "1",
                      "-I",      "1",
                      "-S",      "0",
                      "-J",      "x.json"});
  EXPECT_EQ(o.min_bytes, 8u);
  EXPECT_EQ(o.max_bytes, 128u << 20);
  EXPECT_EQ(o.step_factor, 2);
  EXPECT_EQ(o.local_ranks(), 8);
  EXPECT_EQ(o.iters, 7);
  EXPECT_EQ(o.check, 0);
  EXPECT_EQ(o.root, -1);
  EXPECT_EQ(o.reductions.size(), 6u);
  EXPECT_EQ(o.types.size(), 12u);
  EXPECT_EQ(o.average, Average::kMax);
  EXPECT_EQ(o.blocking, Blocking::kBarrier);
  EXPECT_TRUE(o.per_iter_timing);
  EXPECT_FALSE(o.report_timestamps);
}

// Options about devices that host memory has no use for; scripts pass them.
TEST(Options, DeviceOptionsAreAccepted) {
  parsed(
      {"-G", "10", "-y", "1", "-x", "1", "-V", "16", "-D", "0", "-R", "2", "-C", "1", "-M", "1", "-p", "1", "-N", "0"});
}

TEST(Options, SizesAreBinary) {
  EXPECT_EQ(parse_bytes("0"), 0u);
  EXPECT_EQ(parse_bytes("1K"), 1024u);
  EXPECT_EQ(parse_bytes("1.5k"), 1536u);
  EXPECT_EQ(parse_bytes("2M"), 2u << 20);
  EXPECT_EQ(parse_bytes("3G"), size_t{3} << 30);
  for (const char* bad : {"", "x", "1x", "-1", "nan", "inf", "0x10", "1KK", "K", "1e30", " 1"})
    EXPECT_THROW(parse_bytes(bad), std::invalid_argument) << bad;
}

// B115
TEST(Options, WhatCannotRunIsRefused) {
  expect_refused({"-b", "2M", "-e", "1M"}, "above");
  expect_refused({"-f", "0"}, "stepfactor");
  expect_refused({"-b", "8", "-e", "64", "-i", "0"}, "stepbytes");
  expect_refused({"-n", "0"}, "iters");
  expect_refused({"-g", "0"}, "ngpus");
  expect_refused({"-g", "4096", "-t", "4096"}, "at most 4096");
  expect_refused({"-d", "float17"}, "bfloat16");
  expect_refused({"-o", "xor"}, "mulsum");
  expect_refused({"-r", "-2"}, "root");
  expect_refused({"-J", "x.csv"}, ".json");
  expect_refused({"-K", "20"}, "-n 20");
  expect_refused({"--nonsense"}, "nonsense");
  expect_refused({"-b", "12Q"}, "12Q");
}

TEST(Options, HelpIsNoError) {
  Options options;
  ParseOutcome outcome = parse({"-h"}, options);
  EXPECT_EQ(outcome.exit_code, kGood);
  for (const char* name :
       {"--nthreads",          "--ngpus",           "--minbytes",  "--maxbytes",       "--stepbytes",
        "--stepfactor",        "--iters",           "--agg_iters", "--warmup_iters",   "--run_cycles",
        "--parallel_init",     "--check",           "--op",        "--datatype",       "--root",
        "--blocking",          "--stream_null",     "--timeout",   "--cudagraph",      "--report_cputime",
        "--report_timestamps", "--output_file",     "--average",   "--local_register", "--memory",
        "--unalign",           "--per_iter_timing", "--transport", "--algo",           "--async"})
    EXPECT_NE(outcome.out.find(name), std::string::npos) << name;
  EXPECT_EQ(outcome.out.find("plant"), std::string::npos);
}

std::vector<size_t> sizes_of(const Options& o, size_t element) {
  std::vector<size_t> sizes;
  for (std::optional<size_t> size = o.min_bytes; size && sizes.size() < 1000; size = next_size(o, *size, element))
    sizes.push_back(*size);
  return sizes;
}

// B115: every sweep ends, also from 0, with factors near 1 and at the end of the number range.
TEST(Options, SweepsEnd) {
  EXPECT_EQ(sizes_of(parsed({"-b", "8", "-e", "64", "-f", "2"}), 4), (std::vector<size_t>{8, 16, 32, 64}));
  EXPECT_EQ(sizes_of(parsed({"-b", "0", "-e", "16", "-f", "2"}), 4), (std::vector<size_t>{0, 4, 8, 16}));
  EXPECT_EQ(sizes_of(parsed({"-b", "1", "-e", "8", "-f", "2"}), 4), (std::vector<size_t>{1, 2, 4, 8}));
  EXPECT_EQ(sizes_of(parsed({"-b", "4", "-e", "16", "-f", "1.2"}), 4), (std::vector<size_t>{4, 8, 12, 16}));
  EXPECT_EQ(sizes_of(parsed({"-b", "0", "-e", "3K", "-i", "1K"}), 4), (std::vector<size_t>{0, 1024, 2048, 3072}));
  EXPECT_EQ(sizes_of(parsed({"-b", "8", "-e", "8", "-i", "0"}), 4), (std::vector<size_t>{8}));
  EXPECT_EQ(sizes_of(parsed({"-b", "8", "-e", "16", "-f", "1"}), 4), (std::vector<size_t>{8}));
  EXPECT_LT(sizes_of(parsed({"-b", "1G", "-e", "4000000000G", "-f", "1000000000"}), 4).size(), 5u);
}

TEST(Environment, SplitColours) {
  EXPECT_EQ(split_color("", 5), 0);
  EXPECT_EQ(split_color("AND 0x1", 5), 1);
  EXPECT_EQ(split_color("&0x3", 6), 2);
  EXPECT_EQ(split_color("or 0b11", 4), 7);
  EXPECT_EQ(split_color("MOD 2", 5), 1);
  EXPECT_EQ(split_color("%3", 5), 2);
  EXPECT_EQ(split_color("DIV 2", 5), 2);
  for (const char* bad : {"2", "MOD 0", "DIV", "XOR 1", "MOD 1x", "/-1"})
    EXPECT_THROW(split_color(bad, 1), std::invalid_argument) << bad;
}

TEST(Environment, NumbersAreCheckedAndSecretsHidden) {
  ASSERT_EQ(setenv("NCCL_TESTS_MIN_BW", "fast", 1), 0);
  EXPECT_THROW(read_environment(), std::invalid_argument);
  ASSERT_EQ(setenv("NCCL_TESTS_MIN_BW", "1.5", 1), 0);
  ASSERT_EQ(setenv("WEFT_SECRET", "hush", 1), 0);
  Environment e = read_environment();
  EXPECT_EQ(e.min_bandwidth, 1.5);
  for (const std::string& entry : e.all) EXPECT_EQ(entry.find("hush"), std::string::npos);
  unsetenv("NCCL_TESTS_MIN_BW");
  unsetenv("WEFT_SECRET");
}

TEST(Report, NumbersShrinkToFit) {
  EXPECT_EQ(fit(1.234, 7), "   1.23");
  EXPECT_EQ(fit(9999.99, 7), "9999.99");
  EXPECT_EQ(fit(12345.67, 7), "12345.7");
  EXPECT_EQ(fit(1234567.8, 7), "1234568");
  EXPECT_EQ(fit(123456789.0, 7), "1.2e+08");
  EXPECT_EQ(fit(0, 6), "  0.00");
  EXPECT_EQ(fit(1234567, 6), " 1e+06");
}

// A report into a string.
class Output {
 public:
  Output() : file_(open_memstream(&text_, &size_)) {}
  ~Output() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() { return file_; }
  std::vector<std::string> lines() {
    std::fflush(file_);
    std::istringstream in(std::string(text_, size_));
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_;
};

RankInfo rank_info(int rank) {
  RankInfo r{};
  r.rank = rank;
  r.pid = 1234;
  r.device = rank;
  std::snprintf(r.host, sizeof(r.host), "node1");
  std::snprintf(r.name, sizeof(r.name), "A CPU");
  return r;
}

Row row() {
  Measurement fast{12.5e-6, 1.25, 2.5, 0, {}};
  Measurement unchecked{0.5, 123.456, 12345678, std::nullopt, {}};
  return {1048576, 262144, "float", "sum", -1, fast, unchecked};
}

void expect_lines(Output& output, const std::vector<std::string>& patterns) {
  std::vector<std::string> lines = output.lines();
  ASSERT_EQ(lines.size(), patterns.size());
  for (size_t i = 0; i < lines.size(); ++i)
    EXPECT_TRUE(std::regex_match(lines[i], std::regex(patterns[i]))) << lines[i] << "\nis not\n" << patterns[i];
}

TEST(Report, EveryLineIsNcclTests) {
  Options o = parsed({"-g", "2", "-b", "8", "-e", "1M", "-f", "2"});
  Output output;
  Report report(o, Environment{}, "all_reduce_perf", 100, output.file());
  report.header({rank_info(0), rank_info(1)});
  report.columns();
  report.row(row());
  Summary summary;
  summary.mean_bus_bw = 2.5;
  report.footer(summary);
  expect_lines(
      output,
      {R"(# nccl-tests version \d+\.\d+\.\d+ nccl-headers=\d+ nccl-library=100 weft 0\.1\.0)",
       R"(# Collective test starting: all_reduce_perf)",
       R"(# nThread 1 nGpus 2 minBytes 8 maxBytes 1048576 step: 2\(factor\) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0)",
       R"(#)", R"(# Using devices)", R"(#  Rank  0 Group  0 Pid   1234 on      node1 device  0 \[0000:00:00\] A CPU)",
       R"(#  Rank  1 Group  0 Pid   1234 on      node1 device  1 \[0000:00:00\] A CPU)", R"(#)",
       R"(# {51}           out-of-place                       in-place          )",
       R"(#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong )",
       R"(#        \(B\)    \(elements\)                               \(us\)  \(GB/s\)  \(GB/s\)             \(us\)  \(GB/s\)  \(GB/s\)         )",
       R"(     1048576        262144     float     sum      -1    12\.50    1\.25    2\.50       0   500000  123\.46   1e\+07     N/A)",
       R"(# Out of bounds values : 0 OK)", R"(# Avg bus bandwidth    : 2\.5 )", R"(#)",
       R"(# Collective test concluded: all_reduce_perf)"});
}

TEST(Report, FailuresShow) {
  Options o = parsed({"-g", "2", "-i", "8"});
  Output output;
  Report report(o, Environment{}, "reduce_perf", 100, output.file());
  Row wrong = row();
  wrong.in_place.wrong = 12345678;
  report.row(wrong);
  Summary summary{3, 1.0, 2.0, ""};
  EXPECT_FALSE(summary.fast_enough());
  report.footer(summary);
  summary.min_bandwidth = 1.1;  // a tenth is forgiven
  EXPECT_TRUE(summary.fast_enough());
  std::vector<std::string> lines = output.lines();
  EXPECT_TRUE(lines[0].ends_with("1.23457e+07")) << lines[0];
  EXPECT_EQ(lines[1], "# Out of bounds values : 3 FAILED");
  EXPECT_EQ(lines[2], "# Avg bus bandwidth    : 1 FAILED");
}

TEST(Report, TimestampsAndIterations) {
  Options o = parsed({"-S", "1", "-I", "1", "-n", "2"});
  Output output;
  Report report(o, Environment{}, "all_reduce_perf", 100, output.file());
  Row r = row();
  r.out_of_place.iterations = r.in_place.iterations = {1e-6, 3e-6};
  report.columns();
  report.row(r);
  std::vector<std::string> lines = output.lines();
  EXPECT_NE(lines[2].find("i_min    i_max    i_p99    i_cv%"), std::string::npos);
  EXPECT_TRUE(lines[2].ends_with("timestamp"));
  EXPECT_NE(lines[4].find("     1.00     3.00     3.00    50.00"), std::string::npos) << lines[4];
  EXPECT_TRUE(std::regex_search(lines[4], std::regex(R"(  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$)"))) << lines[4];
  EXPECT_EQ(lines[2].size(), lines[3].size());
}

TEST(Report, JsonHasNcclTestsKeys) {
  auto directory = std::filesystem::temp_directory_path() / fmt::format("weft-perf-{}", getpid());
  std::filesystem::create_directory(directory);
  std::string path = (directory / "x.json").string();
  std::ofstream(path) << "taken";  // an existing file is not overwritten
  Options o = parsed({"-J", path.c_str(), "-g", "2"});
  Output output;
  {
    Report report(o, Environment{{}, -1, "", 1, "", 1, {"A=b", "BAD=\xff"}}, "all_reduce_perf", 100, output.file());
    report.header({rank_info(0), rank_info(1)});
    report.columns();
    report.row(row());
    report.footer({0, 2.5, {}, ""});
    report.save();
  }
  EXPECT_EQ(output.lines()[0], "# Writing JSON output to " + path + ".0");
  auto j = nlohmann::json::parse(std::ifstream(path + ".0"));
  for (const char* key : {"version", "start_time", "args", "env", "config", "results", "out_of_bounds",
                          "average_bus_bandwidth", "errors", "end_time"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_EQ(j["env"].size(), 2u);
  EXPECT_EQ(j["config"]["devices"].size(), 2u);
  for (const char* key : {"rank", "group", "pid", "hostname", "device"})
    EXPECT_TRUE(j["config"]["devices"][1].contains(key)) << key;
  auto& result = j["results"][0];
  EXPECT_EQ(result["size"], 1048576);
  EXPECT_EQ(result["count"], 262144);
  EXPECT_EQ(result["type"], "float");
  EXPECT_EQ(result["redop"], "sum");
  EXPECT_EQ(std::stoi(result["root"].get<std::string>()), -1);
  EXPECT_DOUBLE_EQ(result["out_of_place"]["time"], 12.5);
  EXPECT_DOUBLE_EQ(result["out_of_place"]["alg_bw"], 1.25);
  EXPECT_DOUBLE_EQ(result["out_of_place"]["bus_bw"], 2.5);
  EXPECT_EQ(result["out_of_place"]["nwrong"], 0);
  EXPECT_TRUE(result["in_place"]["nwrong"].is_null());
  EXPECT_EQ(j["out_of_bounds"]["count"], 0);
  EXPECT_EQ(j["out_of_bounds"]["okay"], "true");
  EXPECT_EQ(j["average_bus_bandwidth"]["bandwidth"], 2.5);
  EXPECT_EQ(j["average_bus_bandwidth"]["okay"], "unchecked");
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace weft::perf
