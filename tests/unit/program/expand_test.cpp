#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "plan/print.hpp"
#include "programs.hpp"

namespace weft {
namespace {

// The operations alone.
std::string ops_of(const Plan& plan) {
  std::string text;
  for (const Op& op : plan.ops) text += std::to_string(op.step) + " " + to_text(plan, op) + "\n";
  return text;
}

TEST(Expand, RingOfFourIsTheTextbookRing) {
  const auto plan = plan_of(*builtin("allreduce", "ring"), {4, 1, 0, false});
  EXPECT_EQ(ops_of(*plan),
            "0 send to 2: in[1]\n"
            "0 recv reduce from 0: out[0] with in[0]\n"
            "1 send to 2: out[0]\n"
            "1 recv reduce from 0: out[3] with in[3]\n"
            "2 send to 2: out[3]\n"
            "2 recv reduce from 0: out[2] with in[2]\n"
            "3 send to 2: out[2]\n"
            "3 recv from 0: out[1]\n"
            "4 send to 2: out[1]\n"
            "4 recv from 0: out[0]\n"
            "5 send to 2: out[0]\n"
            "5 recv from 0: out[3]\n");
  EXPECT_EQ(plan->steps, 6U);
  EXPECT_EQ(plan->chunks_per_block, 4U);
  EXPECT_EQ(plan->scratch_chunks, 0U);
  // Each send waits for what came one step before; the last two receives wait for the sends of what they overwrite. In
  // place, so does the receive of step 3, for the send of in[1].
  const std::vector<uint32_t> predecessors = {0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1};
  EXPECT_EQ(plan->predecessors, predecessors);
  const auto in_place = plan_of(*builtin("allreduce", "ring"), {4, 1, 0, true});
  EXPECT_EQ(ops_of(*in_place), ops_of(*plan));
  EXPECT_EQ(in_place->predecessors[7], 1U);
}

// Out of place the sum is made as the other's vector comes in; in place `out` is what is being sent.
// What the engine may do better than one op after the other.
TEST(Expand, WhatIsLastIsForwardedAndComesBack) {
  const auto find = [](const Plan& plan, Verb verb, uint32_t step) {
    return static_cast<uint32_t>(
        std::ranges::find_if(plan.ops, [&](const Op& op) { return op.verb == verb && op.step == step; }) -
        plan.ops.begin());
  };
  for (const bool in_place : {false, true}) {
    const auto two = plan_of(*builtin("allreduce", "ring"), {2, 1, 0, in_place});
    ASSERT_EQ(two->ops.size(), 4U);
    const Op& combine = two->ops[find(*two, Verb::recv, 0)];
    EXPECT_TRUE(combine.last && combine.reduce);
    EXPECT_EQ(combine.forward, find(*two, Verb::send, 1));
    EXPECT_TRUE(two->ops[find(*two, Verb::recv, 1)].last);
    // Out of place the other rank's result comes to where nothing is read.
    EXPECT_EQ(two->ops[find(*two, Verb::send, 0)].answer, in_place ? find(*two, Verb::recv, 1) : Op::kNone);
  }
  // Of four ranks the first sums are passed on, and overwritten by the results.
  const auto four = plan_of(*builtin("allreduce", "ring"), {4, 1, 0, false});
  for (const uint32_t step : {0U, 1U, 2U}) {
    const Op& combine = four->ops[find(*four, Verb::recv, step)];
    EXPECT_EQ(combine.forward, find(*four, Verb::send, step + 1));
    EXPECT_EQ(combine.last, step == 2);
  }
}

TEST(Expand, SmallAllreducesOfTwoAreOneExchangeAndOneSum) {
  for (const char* name : {"flat", "recursive_doubling"}) {
    const auto plan = plan_of(*builtin("allreduce", name), {2, 1, 0, false});
    EXPECT_EQ(ops_of(*plan), "0 send to 0: in[0]\n0 recv reduce from 0: out[0] with in[0]\n");
    EXPECT_EQ(plan->steps, 2U);
    const auto in_place = plan_of(*builtin("allreduce", name), {2, 1, 0, true});
    ASSERT_EQ(in_place->ops.size(), 3U) << ops_of(*in_place);
    EXPECT_EQ(in_place->dst(in_place->ops[1])[0].buffer, Buffer::scratch);
    EXPECT_TRUE(in_place->ops[2].verb == Verb::copy && in_place->ops[2].reduce);
    EXPECT_EQ(in_place->steps, 2U);
  }
}

// What else uses the scratch, or what lies between, keeps a receive and its combination apart.
TEST(Expand, AReceiveCombinesAtOnceOnlyWhereNothingStandsInTheWay) {
  const std::string head = "allreduce x scratch=2\nstep { send 1-r in[0]  recv 1-r scratch[0] }\n";
  const auto copies = [&head](const std::string& rest) {
    const auto plan = plan_of(*parse(head + rest), {2, 0, 0, false});
    return std::count_if(plan->ops.begin(), plan->ops.end(), [](const Op& op) { return op.verb == Verb::copy; });
  };
  EXPECT_EQ(copies("copy reduce out[0] from in[0], scratch[0]"), 0);
  EXPECT_EQ(copies("copy reduce out[0] from scratch[0], in[0]"), 0);
  EXPECT_EQ(copies("copy scratch[1] from scratch[0]\ncopy reduce out[0] from in[0], scratch[0]"), 2);
  EXPECT_EQ(copies("copy out[0] from in[0]\ncopy reduce out[0] from out[0], scratch[0]"), 2);
  EXPECT_EQ(copies("copy scratch[1] from in[0]\ncopy reduce out[0] from scratch[1], scratch[0]"), 2);
}

TEST(Expand, FlatCombinesInTheOrderOfTheRanks) {
  const auto plan = plan_of(*builtin("allreduce", "flat"), {4, 2, 0, false});
  EXPECT_EQ(to_text(*plan, plan->ops.back()), "copy reduce out[0] from scratch[0], scratch[1], in[0], scratch[3]");
}

TEST(Expand, OutAliasesInUntilItIsWritten) {
  const ProgramPtr allgather = builtin("allgather", "ring");
  EXPECT_EQ(ops_of(*plan_of(*allgather, {3, 1, 0, false})),
            "0 send to 2: in[0]\n"
            "0 recv from 0: out[0]\n"
            "1 send to 2: out[0]\n"
            "1 recv from 0: out[2]\n"
            "1 copy out[1] from in[0]\n");
  EXPECT_EQ(ops_of(*plan_of(*allgather, {3, 1, 0, true})),
            "0 send to 2: in[0]\n"
            "0 recv from 0: out[0]\n"
            "1 send to 2: out[0]\n"
            "1 recv from 0: out[2]\n");
}

TEST(Expand, BuffersThatARankDoesNotHaveAreLentScratch) {
  const auto plan = plan_of(*builtin("reduce", "binomial"), {4, 3, 1, false});  // number 2 of the tree: one child
  EXPECT_EQ(ops_of(*plan),
            "0 recv reduce from 0: scratch[0] with in[0]\n"
            "1 send to 1: scratch[0]\n");
  EXPECT_EQ(plan->in_blocks, 1U);
  EXPECT_EQ(plan->out_blocks, 0U);
  EXPECT_EQ(plan->scratch_chunks, 1U);

  const auto scatter = plan_of(*builtin("scatter", "binomial"), {4, 2, 0, false});
  EXPECT_EQ(ops_of(*scatter),
            "0 recv from 0: out[0] scratch[0]\n"
            "1 send to 3: scratch[0]\n");
  EXPECT_EQ(scatter->in_blocks, 0U);
}

TEST(Expand, WorkThatLivesShortlySharesScratch) {
  EXPECT_EQ(plan_of(*builtin("reducescatter", "ring"), {16, 5, 0, false})->scratch_chunks, 2U);
  // Every block of a v-variant has a size of its own.
  EXPECT_EQ(plan_of(*builtin("reducescatterv", "ring"), {16, 5, 0, false})->scratch_chunks, 16U);
}

TEST(Expand, AlltoallInPlaceKeepsWhatArrivesTooEarly) {
  const ProgramPtr program = builtin("alltoall", "pairwise");
  const auto out_of_place = plan_of(*program, {4, 1, 0, false}), in_place = plan_of(*program, {4, 1, 0, true});
  EXPECT_EQ(out_of_place->steps, in_place->steps);
  EXPECT_EQ(out_of_place->scratch_chunks, 0U);
  EXPECT_LE(in_place->scratch_chunks, 2U);
  // The messages are the same in both.
  std::vector<std::string> wires[2];
  for (const auto* plan : {&out_of_place, &in_place}) {
    for (const Op& op : (*plan)->ops) {
      if (op.verb == Verb::copy) continue;
      wires[plan == &in_place ? 1 : 0].push_back(std::to_string(op.step) + name_of(op.verb) + std::to_string(op.peer));
    }
  }
  EXPECT_EQ(wires[0], wires[1]);
}

TEST(Expand, OneRankAloneCopiesItsInput) {
  for (const ProgramPtr& program : builtin_programs()) {
    const auto plan = plan_of(*program, {1, 0, 0, false});
    EXPECT_EQ(ops_of(*plan), "0 copy out[0] from in[0]\n") << full_name(*program);
    if (program->collective() != Collective::alltoallv) {
      EXPECT_TRUE(plan_of(*program, {1, 0, 0, true})->ops.empty()) << full_name(*program);
    }
  }
}

// B50: an `if` that only some ranks take must not shift the steps of the others.
TEST(Expand, BranchesPadToTheLongerSide) {
  const ProgramPtr program = parse(
      "broadcast x\n"
      "if r == root { send (r+1)%P out[0]  send (r+2)%P out[0] }\n"
      "else if r == (root+1)%P recv root out[0]\n"
      "else { if r == (root+2)%P { step { } recv root out[0] step { } } }\n"
      "step { if r == root send (r+3)%P out[0]  if r == (root+3)%P recv root out[0] }\n");
  for (int r = 0; r < 4; ++r) EXPECT_EQ(plan_of(*program, {4, r, 0, false})->steps, 4U);
  EXPECT_EQ(ops_of(*plan_of(*program, {4, 2, 0, false})), "1 recv from 0: out[0]\n");
  EXPECT_EQ(ops_of(*plan_of(*program, {4, 3, 0, false})), "3 recv from 0: out[0]\n");
}

TEST(Expand, RegionsWrapJoinAndChoose) {
  const std::pair<const char*, const char*> cases[] = {
      {"out[3 +: 4]", "in[3..5] in[0..2]"},
      {"out[-1 +: 2]", "in[4] in[0]"},
      {"out[7 +: 1]", "in[2]"},
      {"out[1..4]", "in[1..4]"},
      {"out[0] out[1] in[2]", "in[0..3]"},
      {"[out[2*i] for i in 0..3 if i != 1]", "in[0] in[4]"},
      {"[out[i] for i in 0..5]", "in[0..5]"},
      {"[[out[i+j] for j in 0..2] for i in 0..2]", "in[0..2] in[1..3]"},
      {"[r == 0 ? out[0] out[1] : out[2]]", "in[0..2]"},
      {"[i & 1 == 0 ? out[i] : in[4] for i in 0..3]", "in[0] in[4] in[2]"},
  };
  for (const auto& [region, expected] : cases) {
    const ProgramPtr program = parse("broadcast x chunks=5\nif r == root send 1 " + std::string(region));
    const auto plan = plan_of(*program, {2, 0, 0, true});
    ASSERT_EQ(plan->ops.size(), 1U) << region;
    EXPECT_EQ(to_text(plan->src(plan->ops[0])), expected) << region;
  }
}

TEST(Expand, ErrorsNamePlaceAndRank) {
  const std::pair<const char*, const char*> cases[] = {
      {"allreduce x\nsend 1 out[1]", "test.algo:2:8: out[1] is outside the 1 chunk of out (r=0, P=4, root=0)"},
      {"allreduce x\nsend r out[0]", "test.algo:2:1: the peer is 0; legal are the ranks 0 to 3 but this one"},
      {"allreduce x\nsend 4 out[0]", "the peer is 4"},
      {"allreduce x\nsend 1 lane 1 out[0]", "the lane is 1, of 1 lanes"},
      {"allreduce x\nsend 1 scratch[0]", "the program has no scratch"},
      {"allreduce x scratch=1\nsend 1 scratch[0]", "scratch[0] is read before anything is written to it"},
      {"allgather x\nsend 1 out[3]", "out[3] is read before anything is written to it"},
      {"allgather x\nstep { }", "nothing is ever written to out[1]"},
      {"allreduce x\nrecv 1 in[0]", "in[0] belongs to the caller and cannot be written"},
      {"allreduce x chunks=2\nrecv reduce 1 out[0..2] with in[0]", "operands of one operation have 2 and 1 chunks"},
      {"allreduce x chunks=0\nstep {}", "chunks is 0; legal are 1 to"},
      {"allreduce x\nstep { recv 1 out[0] recv 2 out[0] }", "step 0 writes twice to out[0]"},
      {"allreduce x\nrecv 1 out[0] step { send 1 out[0] recv 1 out[0] }", "step 1 both reads and writes out[0]"},
      {"allreduce x chunks=2\ncopy out[0..2] from in[0..2] copy out[0..2] from out[1] out[0]",
       "step 1 both reads and writes out[0]"},
      {"allreduce x\nfor k in 0..1<<40 step { }", "takes too many steps for one rank"},
      {"allreduce x\nstep { for k in 0..1<<40 { } }", "takes too many steps for one rank"},
      {"allreduce x\nif r == 1 { for k in 0..1<<40 step { } }", "takes too many steps for one rank"},
      {"allreduce x\nlet f(a) = a+a let g(a) = f(f(f(f(a)))) let h(a) = g(g(g(g(a)))) for k in 0..1<<18 { let z = h(k) "
       "}",
       "takes too many steps for one rank"},
  };
  for (const auto& [text, expected] : cases) {
    const std::string message = expand_error(text, {4, 0, 0, false});
    EXPECT_NE(message.find(expected), std::string::npos) << text << "\n" << message;
  }
}

TEST(Expand, RefusesWhatCannotBe) {
  const ProgramPtr program = builtin("allgather", "doubling");
  EXPECT_FALSE(expand(*program, {6, 0, 0, false}).ok());
  EXPECT_FALSE(expand(*program, {4, 4, 0, false}).ok());
  EXPECT_FALSE(expand(*program, {4, -1, 0, false}).ok());
  EXPECT_FALSE(expand(*program, {4, 0, 4, false}).ok());
  EXPECT_FALSE(expand(*program, {0, 0, 0, false}).ok());
  EXPECT_FALSE(expand(*builtin("alltoallv", "flat"), {4, 0, 0, true}).ok());
}

// Recomputes, from the regions alone, which pairs of operations conflict, and checks that the graph orders all of them,
// has no duplicates, and leads only to later steps.
void check_dependencies(const Plan& plan) {
  std::vector<std::set<uint32_t>> after(plan.ops.size());
  std::vector<uint32_t> counted(plan.ops.size(), 0);
  for (size_t i = plan.ops.size(); i-- > 0;) {
    for (uint32_t s = plan.successor_begin[i]; s < plan.successor_begin[i + 1]; ++s) {
      const uint32_t next = plan.successors[s];
      ASSERT_GT(plan.ops[next].step, plan.ops[i].step);
      ++counted[next];
      after[i].insert(next);
      after[i].insert(after[next].begin(), after[next].end());
    }
    ASSERT_EQ(std::set<uint32_t>(plan.successors.begin() + plan.successor_begin[i],
                                 plan.successors.begin() + plan.successor_begin[i + 1])
                  .size(),
              plan.successor_begin[i + 1] - plan.successor_begin[i]);
  }
  ASSERT_EQ(counted, plan.predecessors);
  const auto conflicts = [&](std::span<const Region> a, std::span<const Region> b) {
    for (const Region& x : a) {
      for (const Region& y : b) {
        if (x.buffer == y.buffer && x.first < y.first + y.count && y.first < x.first + x.count) return true;
      }
    }
    return false;
  };
  for (uint32_t i = 0; i < plan.ops.size(); ++i) {
    for (uint32_t j = i + 1; j < plan.ops.size(); ++j) {
      const Op &a = plan.ops[i], &b = plan.ops[j];
      if (a.step == b.step) continue;
      if (conflicts(plan.dst(a), plan.dst(b)) || conflicts(plan.dst(a), plan.src(b)) ||
          conflicts(plan.src(a), plan.dst(b))) {
        ASSERT_TRUE(after[i].contains(j)) << to_text(plan, a) << " before " << to_text(plan, b);
      }
    }
  }
}

TEST(Expand, DependenciesOrderEveryConflict) {
  for (const ProgramPtr& program : builtin_programs()) {
    for (const int ranks : {2, 3, 6, 8}) {
      if (!program->supports(ranks)) continue;
      for (int rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(full_name(*program) + " rank " + std::to_string(rank) + " of " + std::to_string(ranks));
        check_dependencies(*plan_of(*program, {ranks, rank, 1, false}));
        if (program->collective() != Collective::alltoallv) {
          check_dependencies(*plan_of(*program, {ranks, rank, 1, true}));
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Expand, PlansDoNotGrowFasterThanTheirRanks) {
  for (const ProgramPtr& program : builtin_programs()) {
    if (!program->supports(1024)) continue;
    const auto plan = plan_of(*program, {1024, 341, 0, false});
    EXPECT_LE(plan->ops.size(), 4U * 1024) << full_name(*program);
    EXPECT_LE(plan->regions.size(), 12U * 1024) << full_name(*program);
  }
}

}  // namespace
}  // namespace weft
