#include "expand/expand.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "expand/dependencies.hpp"
#include "expand/fuse.hpp"
#include "expand/resolve.hpp"
#include "expand/walk.hpp"

namespace weft {
namespace {

Status check(const Program& program, const Hierarchy& hierarchy, const ExpandOptions& options) {
  for (const auto& [name, value] : {std::pair("rank", options.rank), std::pair("root", options.root)}) {
    if (value >= 0 && value < options.ranks) continue;
    return error(weftInvalidArgument, "{}: {} {} of {} ranks; legal are 0 to {}", program.file(), name, value,
                 options.ranks, options.ranks - 1);
  }
  if (!program.supports(hierarchy)) {
    return error(weftInvalidArgument, "{}: {} {} is not for {} ranks{}, by its 'requires'", program.file(),
                 name_of(program.collective()), program.name(), options.ranks,
                 hierarchy.levels() == 1 ? "" : fmt::format(" in {} levels", hierarchy.levels()));
  }
  if (options.in_place && program.collective() == Collective::alltoallv) {
    return error(weftInvalidArgument, "{}: an alltoallv cannot be in place", program.file());
  }
  return {};
}

// Runs of chunks that follow each other in all operands of an op become regions, cut at the same points in all.
void add_regions(Resolved& resolved, const RawOp& raw, Op& op, Plan& plan) {
  std::vector<std::pair<uint32_t, uint32_t>> runs;  // first position, length
  RawOps& ops = resolved.raw;
  for (uint32_t i = 0; i < raw.length; ++i) {
    bool follows = i > 0;
    for (uint32_t l = 0; follows && l < raw.lists; ++l) {
      const Place before = resolved.places[ops.list(raw, l)[i - 1]], here = resolved.places[ops.list(raw, l)[i]];
      follows = before.buffer == here.buffer && before.index + 1 == here.index;
    }
    if (follows) {
      ++runs.back().second;
    } else {
      runs.emplace_back(i, 1);
    }
  }
  const auto count = static_cast<uint32_t>(runs.size());
  op.dst = op.src = static_cast<uint32_t>(plan.regions.size());
  if (raw.has_dst()) {
    op.dst_regions = count;
    op.src += count;
  }
  op.src_regions = count * raw.sources();
  for (uint32_t l = 0; l < raw.lists; ++l) {
    for (const auto& [first, length] : runs) {
      const Place place = resolved.places[ops.list(raw, l)[first]];
      plan.regions.push_back({place.buffer, place.index, length});
    }
  }
}

struct Expansion {
  std::shared_ptr<Plan> plan;
  Resolved resolved;
};

Result<Expansion> run(const Program& program, const ExpandOptions& options) {
  if (options.ranks < 1)
    return error(weftInvalidArgument, "{}: {} ranks; legal are 1 and more", program.file(), options.ranks);
  std::optional<Hierarchy> flat;
  if (options.hierarchy == nullptr) flat = Hierarchy::flat(options.ranks);
  const Hierarchy& hierarchy = flat ? *flat : *options.hierarchy;
  WEFT_RETURN_IF_ERROR(check(program, hierarchy, options));
  const auto& parsed = static_cast<const ParsedProgram&>(program);  // there is no other kind
  const int root = is_rooted(program.collective()) ? options.root : 0;
  Shape shape = shape_of(program.collective(), options.ranks, options.rank, root);
  Evaluator evaluator(parsed.ast(), program.file(), hierarchy, options.rank, root, options.in_place);

  RawOps raw;
  if (options.ranks == 1) {
    // One rank alone needs no program: its result is its input.
    raw.space = {.in = 1, .out = 1};
    shape.aliases = true;
    shape.shared = 1;
  } else {
    raw = walk(parsed, shape, hierarchy, options.rank, root, evaluator);
  }
  if (!evaluator.ok()) return evaluator.failure();
  Expansion expansion;
  expansion.resolved = resolve(std::move(raw), program.collective(), shape, options.in_place, evaluator);
  if (!evaluator.ok()) return evaluator.failure();
  check_hygiene(expansion.resolved, evaluator);
  if (!evaluator.ok()) return evaluator.failure();
  fuse(expansion.resolved);

  auto plan = std::make_shared<Plan>();
  const RawOps& ops = expansion.resolved.raw;
  plan->collective = program.collective();
  plan->algorithm = program.name();
  plan->ranks = options.ranks;
  plan->rank = options.rank;
  plan->root = options.root;
  plan->in_place = options.in_place;
  plan->chunks_per_block = ops.space.chunks_per_block;
  plan->in_blocks = shape.has_in ? shape.in_blocks : 0;
  plan->out_blocks = shape.has_out ? shape.out_blocks : 0;
  plan->scratch_chunks = expansion.resolved.scratch;
  plan->steps = ops.steps;
  plan->lanes = ops.lanes;
  plan->ops.reserve(ops.ops.size());
  plan->regions.reserve(ops.ops.size() * 2);
  for (const RawOp& from : ops.ops) {
    Op op;
    op.verb = from.verb;
    op.reduce = from.reduce;
    op.lane = from.lane;
    op.sources = static_cast<uint16_t>(std::max(from.sources(), 1U));
    op.line = static_cast<uint16_t>(from.line <= UINT16_MAX ? from.line : 0);
    op.peer = from.peer;
    op.step = from.step;
    add_regions(expansion.resolved, from, op, *plan);
    plan->ops.push_back(op);
  }
  expansion.plan = std::move(plan);
  return expansion;
}

}  // namespace

Result<std::shared_ptr<const Plan>> expand(const Program& program, const ExpandOptions& options) {
  auto expansion = run(program, options);
  if (!expansion.ok()) return expansion.status();
  add_dependencies(expansion->resolved, *expansion->plan);
  return std::shared_ptr<const Plan>(std::move(expansion->plan));
}

Result<std::shared_ptr<const Plan>> expand_ops(const Program& program, const ExpandOptions& options) {
  auto expansion = run(program, options);
  if (!expansion.ok()) return expansion.status();
  return std::shared_ptr<const Plan>(std::move(expansion->plan));
}

}  // namespace weft
