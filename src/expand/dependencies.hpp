// Dependencies between the operations of one rank, and step hygiene.
#pragma once

#include "expand/resolve.hpp"
#include "plan/plan.hpp"

namespace weft {

// Fails through the evaluator where a step reads and writes the same bytes, or writes them twice.
void check_hygiene(Resolved& resolved, Evaluator& evaluator);

// Fills predecessors, successor_begin and successors of a plan whose ops correspond one to one to resolved.raw.ops, and
// Op::last, Op::forward and Op::answer, which follow from them.
void add_dependencies(Resolved& resolved, Plan& plan);

}  // namespace weft
