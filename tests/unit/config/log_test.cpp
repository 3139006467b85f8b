#include "log/log.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "config/config.hpp"

namespace weft {
namespace {

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t lines_of(const std::string& text) { return size_t(std::count(text.begin(), text.end(), '\n')); }

class Log : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weft-log-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override {
    std::filesystem::remove_all(dir_);
    for (const char* name : {"WEFT_DEBUG", "WEFT_DEBUG_FILE", "WEFT_RANK", "WEFT_TIMEOT"}) ::unsetenv(name);
    reread_config();
    log_reset();
  }
  // Runs `body` in a child whose standard output and error are files "out" and "err"; its environment is set first.
  void child(std::vector<std::pair<const char*, std::string>> environment, const std::function<void()>& body) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (std::freopen((dir_ / "out").c_str(), "w", stdout) == nullptr) ::_exit(2);
      if (std::freopen((dir_ / "err").c_str(), "w", stderr) == nullptr) ::_exit(2);
      for (const auto& [name, value] : environment) ::setenv(name, value.c_str(), 1);
      log_reset();
      reread_config();
      body();
      std::exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
  }
  std::filesystem::path dir_;
};

TEST_F(Log, SilentUnlessAsked) {
  child({}, [] { log(LogLevel::warn, "no {}", 1); });
  EXPECT_EQ(slurp(dir_ / "err"), "");
}

TEST_F(Log, LevelsIncludeThoseBelow) {
  child({{"WEFT_DEBUG", "INFO"}}, [] {
    log(LogLevel::warn, "one");
    log(LogLevel::info, "two {}", 2);
    log(LogLevel::debug, "three");
  });
  const std::string text = slurp(dir_ / "err");
  EXPECT_EQ(lines_of(text), 2u);
  EXPECT_NE(text.find(" weft WARN one\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" weft INFO two 2\n"), std::string::npos) << text;
}

// B81: standard output is the application's, whatever is logged and wherever to.
TEST_F(Log, B81_StdoutIsUntouchedAndTheFileHasEveryLineFromTheFirst) {
  for (const char* level : {"", "WARN", "DEBUG"}) {
    for (const bool to_file : {false, true}) {
      std::vector<std::pair<const char*, std::string>> environment;
      if (*level != '\0') environment.emplace_back("WEFT_DEBUG", level);
      if (to_file) environment.emplace_back("WEFT_DEBUG_FILE", (dir_ / "log.%p").string());
      environment.emplace_back("WEFT_TIMEOT", "1");  // its warning is the first line of all
      child(environment, [] {
        std::printf("{\"json\": 1}\n");
        for (int i = 0; i < 100; ++i) log(LogLevel::warn, "line {}", i);
      });
      EXPECT_EQ(slurp(dir_ / "out"), "{\"json\": 1}\n");
      std::string logged = slurp(dir_ / "err");
      for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
        if (entry.path().filename().string().starts_with("log.")) {
          EXPECT_EQ(logged, "");
          logged = slurp(entry.path());
          std::filesystem::remove(entry.path());
        }
      }
      EXPECT_EQ(lines_of(logged), *level == '\0' ? 0u : 101u);
      if (*level != '\0') {
        EXPECT_NE(logged.substr(0, logged.find('\n')).find("WEFT_TIMEOT"), std::string::npos) << logged;
      }
    }
  }
}

TEST_F(Log, LinesWaitForTheRankThatTheFileNameNeeds) {
  child({{"WEFT_DEBUG", "info"}, {"WEFT_DEBUG_FILE", (dir_ / "log.%r").string()}}, [] {
    log(LogLevel::info, "early");
    log_set_rank(5);
    log(LogLevel::info, "late");
  });
  const std::string text = slurp(dir_ / "log.5");
  EXPECT_EQ(lines_of(text), 2u);
  EXPECT_NE(text.find("early"), std::string::npos);
  EXPECT_NE(text.find(" rank 5 weft INFO late"), std::string::npos) << text;
  EXPECT_FALSE(std::filesystem::exists(dir_ / "log.x"));
}

TEST_F(Log, LinesOfAProcessThatNeverHadARankAreNotLost) {
  child({{"WEFT_DEBUG", "info"}, {"WEFT_DEBUG_FILE", (dir_ / "log.%r").string()}}, [] { log(LogLevel::info, "only"); });
  EXPECT_EQ(lines_of(slurp(dir_ / "log.x")), 1u);
}

TEST_F(Log, AFileThatCannotBeOpenedIsSaidOnce) {
  child({{"WEFT_DEBUG", "warn"}, {"WEFT_DEBUG_FILE", "/nonexistent/log"}}, [] {
    log(LogLevel::warn, "one");
    log(LogLevel::warn, "two");
  });
  const std::string text = slurp(dir_ / "err");
  EXPECT_EQ(lines_of(text), 3u);
  EXPECT_EQ(text.find("weft: WEFT_DEBUG_FILE=/nonexistent/log: No such file or directory"), 0u) << text;
}

TEST_F(Log, LinesOfThreadsStayWhole) {
  child({{"WEFT_DEBUG", "warn"}, {"WEFT_DEBUG_FILE", (dir_ / "log").string()}}, [] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 200; ++i) log(LogLevel::warn, "[{}]", std::string(50, char('a' + t)));
      });
    }
    for (auto& thread : threads) thread.join();
  });
  std::ifstream file(dir_ / "log");
  size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    EXPECT_EQ(line.back(), ']') << line;
    EXPECT_EQ(std::count(line.begin(), line.end(), '['), 1) << line;
  }
  EXPECT_EQ(count, 800u);
}

TEST_F(Log, PathsAreExpanded) {
  EXPECT_EQ(expand_path("a%%b.%r.%p", 3), "a%b.3." + std::to_string(::getpid()));
  EXPECT_EQ(expand_path("%r%", -1), "x%");
  EXPECT_EQ(expand_path("%q", 0), "%q");
}

}  // namespace
}  // namespace weft
