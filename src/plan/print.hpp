// Plans for people and for other programs: text, JSON, and a timeline as SVG.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "plan/plan.hpp"

namespace weft {

const char* name_of(Buffer buffer);
const char* name_of(Verb verb);
// "out[3]", "out[0..4] out[7]"
std::string to_text(std::span<const Region> regions);
// "recv reduce from 3: out[2] with in[2]"
std::string to_text(const Plan& plan, const Op& op);
// A line on the plan, then one for each operation, with its step.
std::string to_text(const Plan& plan);

// One object: everything in the plan, dependencies included where it has them.
std::string to_json(const Plan& plan);

using PlanList = std::span<const std::shared_ptr<const Plan>>;
// An array of plans.
std::string to_json(PlanList plans);
// Ranks are rows, steps are columns, messages are arrows (dark where the receiver reduces), copies are dots. One plan
// for each rank.
std::string to_svg(PlanList plans);

}  // namespace weft
