#include "trace/trace.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "log/log.hpp"

namespace weft {
namespace {

class Trace : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weft-trace-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    config_.trace_file = (dir_ / "trace.%r.json").string();
    config_.trace_events = 1000;
  }
  void TearDown() override {
    trace_reset();
    std::filesystem::remove_all(dir_);
  }
  nlohmann::json file(const char* name = "trace.3.json") {
    std::ifstream stream(dir_ / name);
    return nlohmann::json::parse(stream);
  }
  static void record(TraceKind kind, uint64_t begin, uint64_t end, int peer = -1) {
    TraceEvent event;
    event.kind = kind;
    event.rank = 3;
    event.peer = peer;
    event.begin = begin;
    event.end = end;
    event.bytes = 64;
    if (kind == TraceKind::operation) event.name = trace_name("allreduce");
    trace_event(event);
  }
  std::filesystem::path dir_;
  Config config_;
};

TEST_F(Trace, OffUnlessAFileIsNamed) {
  config_.trace_file.clear();
  {
    const TraceUser user(config_, 3);
    EXPECT_FALSE(trace_enabled());
    record(TraceKind::send, 1, 2, 1);  // nothing happens
  }
  EXPECT_TRUE(trace_write().ok());
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST_F(Trace, TheLastUserWritesAFileThatViewersRead) {
  {
    TraceUser first(config_, 3);
    EXPECT_TRUE(trace_enabled());
    {
      const TraceUser second(config_, 3);
      const uint64_t now = ticks_now();
      record(TraceKind::operation, now, now + 1000);
      record(TraceKind::send, now, now + 10, 1);
    }
    EXPECT_TRUE(std::filesystem::is_empty(dir_));
    TraceUser moved = std::move(first);
  }
  const auto json = file();
  EXPECT_EQ(json["otherData"]["dropped_events"], 0);
  std::map<std::string, int> kinds;
  std::set<std::string> rows;
  for (const auto& event : json["traceEvents"]) {
    EXPECT_EQ(event["pid"], 3);
    if (event["ph"] == "X") {
      ++kinds[event["name"]];
      EXPECT_GE(event["dur"], 0);
      EXPECT_EQ(event["args"]["bytes"], 64);
    } else {
      EXPECT_EQ(event["ph"], "M");
      rows.insert(event["args"]["name"]);
    }
  }
  EXPECT_EQ(kinds, (std::map<std::string, int>{{"allreduce", 1}, {"send", 1}}));
  EXPECT_TRUE(rows.contains("operations"));
  EXPECT_TRUE(rows.contains("send to 1"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "trace.3.json.part"));
}

// Events that overlap in one row would hide each other in the viewer.
TEST_F(Trace, OverlappingEventsGetRowsOfTheirOwn) {
  {
    const TraceUser user(config_, 3);
    const uint64_t now = ticks_now();
    for (uint64_t i = 0; i < 8; ++i) record(TraceKind::recv, now + i * 100, now + i * 100 + 250, 2);
  }
  std::map<int, std::vector<std::pair<double, double>>> rows;
  const auto json = file();
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X")
      rows[event["tid"]].emplace_back(event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  }
  EXPECT_EQ(rows.size(), 3u);
  for (const auto& [row, events] : rows) {
    for (size_t i = 1; i < events.size(); ++i) EXPECT_GE(events[i].first, events[i - 1].second - 1e-3);
  }
}

// B121: what did not fit is counted, in the file and in the log.
TEST_F(Trace, B121_DroppedEventsAreReported) {
  ::setenv("WEFT_DEBUG", "warn", 1);
  ::setenv("WEFT_DEBUG_FILE", (dir_ / "log").c_str(), 1);
  log_reset();
  reread_config();
  config_.trace_events = 16;
  {
    const TraceUser user(config_, 3);
    for (int i = 0; i < 100; ++i) record(TraceKind::copy, ticks_now(), ticks_now());
    EXPECT_EQ(trace_dropped(), 84u);
  }
  const auto json = file();
  EXPECT_EQ(json["otherData"]["dropped_events"], 84);
  EXPECT_EQ(std::count_if(json["traceEvents"].begin(), json["traceEvents"].end(),
                          [](const auto& event) { return event["ph"] == "X"; }),
            16);
  std::ifstream stream(dir_ / "log");
  const std::string logged{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_NE(logged.find("lacks 84 events"), std::string::npos) << logged;
  ::unsetenv("WEFT_DEBUG");
  ::unsetenv("WEFT_DEBUG_FILE");
  reread_config();
  log_reset();
}

TEST_F(Trace, ThreadsRecordAtOnce) {
  {
    const TraceUser user(config_, 3);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 500; ++i) record(TraceKind::send, ticks_now(), ticks_now(), t);
      });
    }
    EXPECT_TRUE(trace_write().ok());  // while they record
    for (auto& thread : threads) thread.join();
  }
  EXPECT_EQ(file()["otherData"]["dropped_events"], 1000);
}

TEST_F(Trace, AnUnwritableFileIsAnErrorWithItsName) {
  config_.trace_file = "/nonexistent/trace";
  const TraceUser user(config_, 3);
  const Status status = trace_write();
  EXPECT_EQ(status.code(), weftSystemError);
  EXPECT_NE(status.message().find("/nonexistent/trace"), std::string::npos) << status.message();
}

TEST_F(Trace, AProcessThatEndsWithoutLeavingStillWrites) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    [[maybe_unused]] static TraceUser* volatile user;  // never left, and still reachable
    user = new TraceUser(config_, 7);
    record(TraceKind::copy, ticks_now(), ticks_now());
    std::exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
  EXPECT_FALSE(file("trace.7.json")["traceEvents"].empty());
}

}  // namespace
}  // namespace weft
