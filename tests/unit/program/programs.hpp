// What the tests of programs share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "program/program.hpp"

namespace weft {

inline ProgramPtr parse(const std::string& text) {
  auto program = Program::parse(text, "test.algo");
  EXPECT_TRUE(program.ok()) << program.status().message();
  return program.ok() ? *program : nullptr;
}

inline ProgramPtr builtin(const std::string& collective, const std::string& name) {
  for (const ProgramPtr& program : builtin_programs()) {
    if (name_of(program->collective()) == collective && program->name() == name) return program;
  }
  ADD_FAILURE() << "no " << collective << " " << name;
  return nullptr;
}

inline std::string full_name(const Program& program) {
  return std::string(name_of(program.collective())) + " " + program.name();
}

inline std::shared_ptr<const Plan> plan_of(const Program& program, const ExpandOptions& options) {
  auto plan = expand(program, options);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? *plan : std::make_shared<Plan>();
}

inline std::string expand_error(const std::string& text, const ExpandOptions& options) {
  const ProgramPtr program = parse(text);
  if (!program) return "";
  auto plan = expand(*program, options);
  EXPECT_FALSE(plan.ok());
  return plan.status().message();
}

}  // namespace weft
