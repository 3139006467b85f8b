#include "verify/verify.hpp"

#include <algorithm>
#include <tuple>

#include "expand/expand.hpp"
#include "verify/run.hpp"

namespace weft {
namespace {

using symbolic::Heard;
using symbolic::Plans;

std::vector<int> roots_to_try(const Program& program, int ranks, const VerifyOptions& options) {
  if (!is_rooted(program.collective())) return {0};
  std::vector<int> roots = options.roots;
  if (!roots.empty()) return roots;
  for (int root = 0; root < ranks; ++root) {
    if (ranks <= 8 || root < 2 || root == ranks - 1 || root == ranks / 2 || root == ranks / 3) roots.push_back(root);
  }
  return roots;
}

// *line: where in the program a failure is, 0 for nowhere in particular.
Status run_all(const Plans& plans, Heard* heard, uint32_t* line) {
  const auto ranks = static_cast<int>(plans.size());
  const bool barrier = ranks > 0 && plans[0]->collective == Collective::barrier;
  for (int first = 0; first < ranks; first += barrier ? 128 : ranks) {
    symbolic::Run run(plans, first, heard);
    const Status status = run.run();
    *line = run.line();
    if (!status.ok()) return status;
  }
  return {};
}

// A rank's messages follow from its own form of the call (in place or not) and from what it has received. If all
// messages are the same whether all ranks are in place or none is, then, step by step, they are the same in every
// mixture: each rank there sees what it saw in the one run or the other, and ends as it did there.
Status compare(const Heard& apart, const Heard& in_place, uint32_t* line) {
  const auto& a = apart.messages;
  const auto& b = in_place.messages;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const auto place = [](const Heard::Entry& entry) { return std::tuple(entry.step, entry.from, entry.to); };
    const bool only_apart = i >= b.size() || (i < a.size() && place(a[i]) < place(b[i]));
    const bool only_in_place = i >= a.size() || (i < b.size() && place(b[i]) < place(a[i]));
    if (!only_apart && !only_in_place && a[i].digest == b[i].digest) continue;
    const Heard::Entry& entry = only_in_place ? b[i] : a[i];
    *line = entry.line;
    return error(weftInvalidArgument, "step {}: rank {} sends rank {} {}", entry.step, entry.from, entry.to,
                 only_apart      ? "a message that it does not send in place"
                 : only_in_place ? "a message that it sends in place only"
                                 : "something else in place than out of place");
  }
  if (apart.results != in_place.results) {
    return error(weftInvalidArgument, "rank 0 combines in another order in place, so its bits may differ from others'");
  }
  return {};
}

}  // namespace

Status verify_plans(const std::vector<std::shared_ptr<const Plan>>& plans) {
  uint32_t line = 0;
  return run_all(plans, nullptr, &line);
}

Status verify(const Program& program, int ranks, const VerifyOptions& options) {
  if (options.hierarchy != nullptr ? !program.supports(*options.hierarchy) : !program.supports(ranks)) return {};
  const bool in_place =
      shape_of(program.collective(), ranks, 0, 0).shared > 0 && program.collective() != Collective::barrier;
  Plans plans(static_cast<size_t>(ranks));
  for (const int root : roots_to_try(program, ranks, options)) {
    uint32_t line = 0;
    const auto refusal = [&](const char* what, const Status& reason) {
      return error(weftInvalidArgument, "{}{}: {} {} for {} ranks, {}{}: {}", program.file(),
                   line > 0 ? fmt::format(":{}", line) : "", name_of(program.collective()), program.name(), ranks,
                   is_rooted(program.collective()) ? fmt::format("root {}, ", root) : "", what, reason.message());
    };
    Heard heard[2];
    for (const bool here : {false, true}) {
      if (here && !in_place) continue;
      for (int r = 0; r < ranks; ++r) {
        auto plan = expand_ops(program, {ranks, r, root, here, options.hierarchy});
        if (!plan.ok()) return plan.status();
        plans[static_cast<size_t>(r)] = *plan;
      }
      const Status status = run_all(plans, in_place ? &heard[here] : nullptr, &line);
      if (!status.ok()) return refusal(here ? "in place" : "out of place", status);
    }
    line = 0;
    const Status same = in_place ? compare(heard[0], heard[1], &line) : Status();
    if (!same.ok()) return refusal("partly in place", same);
  }
  return {};
}

}  // namespace weft
