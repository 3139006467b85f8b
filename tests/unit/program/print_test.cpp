#include "plan/print.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "programs.hpp"

namespace weft {
namespace {

std::vector<std::shared_ptr<const Plan>> plans_of(const Program& program, int ranks) {
  std::vector<std::shared_ptr<const Plan>> plans;
  for (int r = 0; r < ranks; ++r) plans.push_back(plan_of(program, {ranks, r, 0, false}));
  return plans;
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(Print, TextNamesEveryOperation) {
  const auto plan = plan_of(*builtin("reducescatter", "halving"), {4, 1, 0, false});
  EXPECT_EQ(
      to_text(*plan),
      "reducescatter halving: rank 1 of 4, root 0, out of place, 1 chunk(s) per block, 2 scratch chunk(s), 3 step(s)\n"
      "    0  send to 3: in[2..4]\n"
      "    0  recv reduce from 3: scratch[0..2] with in[0..2]\n"
      "    1  send to 0: scratch[0]\n"
      "    1  recv reduce from 0: scratch[1] with scratch[1]\n"
      "    2  copy out[0] from scratch[1]\n");
}

TEST(Print, JsonHasTheWholePlan) {
  const auto plan = plan_of(*builtin("allreduce", "flat"), {3, 1, 0, true});
  const auto json = nlohmann::json::parse(to_json(*plan));
  EXPECT_EQ(json["collective"], "allreduce");
  EXPECT_EQ(json["algorithm"], "flat");
  EXPECT_EQ(json["in_place"], true);
  ASSERT_EQ(json["ops"].size(), plan->ops.size());
  const auto& last = json["ops"].back();
  EXPECT_EQ(last["verb"], "copy");
  EXPECT_EQ(last["reduce"], true);
  EXPECT_EQ(last["sources"].size(), 3U);
  EXPECT_EQ(last["predecessors"], 4U);
  EXPECT_EQ(nlohmann::json::parse(to_json(plans_of(*builtin("allreduce", "flat"), 3))).size(), 3U);
}

TEST(Print, TimelineHasAnArrowForEachMessage) {
  const std::string svg = to_svg(plans_of(*builtin("allreduce", "ring"), 4));
  EXPECT_EQ(count(svg, "marker-end"), 4U * 6);
  EXPECT_EQ(count(svg, "class=\"reduce\""), 4U * 3);
  EXPECT_EQ(count(svg, ">rank "), 4U * 7);  // a label for each row, a title for each arrow
  EXPECT_EQ(count(svg, "<svg"), count(svg, "</svg>"));
  EXPECT_EQ(to_svg({}), "");
}

}  // namespace
}  // namespace weft
