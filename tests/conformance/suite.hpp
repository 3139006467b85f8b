// One suite over all transports, with ranks as threads and as processes.
#pragma once

#include <sys/wait.h>

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <tuple>

#include "tests/conformance/ranks.hpp"

namespace weft::testing {

using Case = std::tuple<TransportEntry, Mode>;

inline bool one_process_only(std::string_view transport) { return transport == "loop"; }

inline std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const TransportEntry& entry : transports()) {
    cases.emplace_back(entry, Mode::threads);
    if (!one_process_only(entry.name)) cases.emplace_back(entry, Mode::processes);
  }
  return cases;
}

inline std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(std::get<0>(info.param).name) +
         (std::get<1>(info.param) == Mode::threads ? "_threads" : "_processes");
}

class Suite : public ::testing::TestWithParam<Case> {
 protected:
  // What need not be there is skipped where it is not.
  void SetUp() override {
    static std::map<std::string_view, std::string> known;
    if (!entry().optional) return;
    const auto [at, first] = known.try_emplace(entry().name);
    if (first) at->second = unusable(entry());
    if (!at->second.empty()) GTEST_SKIP() << at->second;
  }
  const TransportEntry& entry() const { return std::get<0>(GetParam()); }
  Mode mode() const { return std::get<1>(GetParam()); }
  void run(int size, const Body& body) { run_ranks(entry(), mode(), size, body); }
};

#define WEFT_CONFORMANCE(name) INSTANTIATE_TEST_SUITE_P(All, name, ::testing::ValuesIn(cases()), case_name)

}  // namespace weft::testing
