#include "config/config.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

namespace weft {
namespace {

Result<Config> parse(std::map<std::string, std::string> values) {
  return parse_config([&](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  });
}

std::string problem(const std::string& name, const std::string& value) {
  const auto result = parse({{name, value}});
  if (result.ok()) return "accepted";
  EXPECT_EQ(result.status().code(), weftInvalidArgument);
  return result.status().message();
}

TEST(Config, AbsentMeansDefault) {
  auto config = parse({});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rank, -1);
  EXPECT_EQ(config->timeout_ms, 300'000);
  EXPECT_EQ(config->socket_family, "any");
  EXPECT_EQ(config->shm_ring_bytes, 512 * 1024);
  EXPECT_TRUE(config->shm_cma);
  EXPECT_EQ(config->root, "");
}

TEST(Config, ReadsEveryKind) {
  auto config = parse({{"WEFT_RANK", "3"},
                       {"WEFT_TIMEOUT", "0.25"},
                       {"WEFT_TILE", "2m"},
                       {"WEFT_SHM_CMA", "Off"},
                       {"WEFT_DEBUG", "INFO"},
                       {"WEFT_SPIN", "-1"},
                       {"WEFT_ROOT", "host:1"}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rank, 3);
  EXPECT_EQ(config->timeout_ms, 250);
  EXPECT_EQ(config->tile_bytes, 2 << 20);
  EXPECT_FALSE(config->shm_cma);
  EXPECT_EQ(config->debug, "info");
  EXPECT_EQ(config->spin, -1);
  EXPECT_EQ(config->root, "host:1");
}

// B02, B10: an error names variable, value and what is legal.
TEST(Config, B02_B10_WrongValuesAreErrorsThatSayWhatIsLegal) {
  EXPECT_EQ(problem("WEFT_TIMEOUT", "abc"), "WEFT_TIMEOUT=abc: not a number of seconds; legal: 0.1..2147483");
  EXPECT_EQ(problem("WEFT_TIMEOUT", "0"), "WEFT_TIMEOUT=0: out of range; legal: 0.1..2147483");
  EXPECT_EQ(problem("WEFT_RANK", "1x"), "WEFT_RANK=1x: not an integer; legal: 0..1048575");
  EXPECT_EQ(problem("WEFT_RANK", "-1"), "WEFT_RANK=-1: out of range; legal: 0..1048575");
  EXPECT_EQ(problem("WEFT_RANK", ""), "WEFT_RANK=: not an integer; legal: 0..1048575");
  EXPECT_EQ(problem("WEFT_WORLD_SIZE", "0"), "WEFT_WORLD_SIZE=0: out of range; legal: 1..1048576");
  EXPECT_EQ(problem("WEFT_ACCUM", "wde"), "WEFT_ACCUM=wde: not known; legal: narrow|wide");
  EXPECT_EQ(problem("WEFT_SHM_CMA", "maybe"), "WEFT_SHM_CMA=maybe: not a flag; legal: 0|1|true|false|yes|no|on|off");
  EXPECT_EQ(problem("WEFT_TILE", "2G"), "WEFT_TILE=2G: out of range; legal: 0..1G");
}

TEST(Config, NumbersThatOverflowOrAreNoneAreRefused) {
  for (const char* value : {"99999999999999999999", "1e3", " 1", "1 ", "0x10", "+1", "1.0"})
    EXPECT_NE(problem("WEFT_RANK", value), "accepted") << value;
  for (const char* value : {"9223372036854775807G", "K", "-1K", "1KB", "1T", "", "1.5M"})
    EXPECT_NE(problem("WEFT_TILE", value), "accepted") << value;
  for (const char* value : {"inf", "nan", "-1", "1e9", "1s", "", ".", "99999999999999999999999"})
    EXPECT_NE(problem("WEFT_TIMEOUT", value), "accepted") << value;
  EXPECT_NE(problem("WEFT_ACCUM", "narrow|wide"), "accepted");
  EXPECT_NE(problem("WEFT_ACCUM", ""), "accepted");
}

// The table itself: every default is legal or means "not set", every line has help, no name twice.
TEST(Config, TableIsSound) {
  std::set<std::string_view> names;
  for (const Variable& variable : variables()) {
    EXPECT_TRUE(names.insert(variable.name).second) << variable.name;
    EXPECT_EQ(variable.name.substr(0, 5), "WEFT_");
    EXPECT_TRUE(variable.help.ends_with('.')) << variable.name;
    if (variable.kind == "text" || variable.standard == "-1") continue;
    EXPECT_EQ(problem(std::string(variable.name), std::string(variable.standard)), "accepted");
  }
}

// B10: a mistyped name is warned of once, with the nearest one.
TEST(Config, B10_UnknownNamesComeWithTheNearest) {
  const std::vector<std::string> names = {"WEFT_TIMEOT",     "WEFT_TIMEOUT",   "PATH",
                                          "WEFT_NET_PLUGIN", "WEFT_TEST_SEED", "WEFT_ALGOS"};
  const auto lines = unknown_names(names);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "WEFT_TIMEOT is not a variable of Weft and has no effect; did you mean WEFT_TIMEOUT?");
  EXPECT_NE(lines[1].find("WEFT_ALGO?"), std::string::npos) << lines[1];
}

TEST(Config, TheEnvironmentIsReadOnceAndAgainOnDemand) {
  ::setenv("WEFT_WINDOW", "7", 1);
  const auto& first = reread_config();
  ASSERT_TRUE(first.ok());
  ::setenv("WEFT_WINDOW", "8", 1);
  EXPECT_EQ(config().value().window, 7);
  EXPECT_EQ(reread_config().value().window, 8);
  EXPECT_EQ(first.value().window, 7);  // still valid
  ::setenv("WEFT_WINDOW", "many", 1);
  EXPECT_FALSE(reread_config().ok());
  ::unsetenv("WEFT_WINDOW");
  EXPECT_EQ(reread_config().value().window, 0);
}

}  // namespace
}  // namespace weft
