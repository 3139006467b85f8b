// Expansion with options that only the verifier needs.
#pragma once

#include "program/program.hpp"

namespace weft {

// A plan without its dependencies: cheaper, where nothing is going to run.
Result<std::shared_ptr<const Plan>> expand_ops(const Program& program, const ExpandOptions& options);

}  // namespace weft
