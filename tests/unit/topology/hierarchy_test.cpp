// The tree of groups, and the programs that are written over it.
#include "topology/hierarchy.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "hierarchies.hpp"
#include "program/program.hpp"
#include "verify/verify.hpp"

namespace weft {
namespace {

ProgramPtr builtin(Collective collective, const std::string& name) {
  for (const ProgramPtr& program : builtin_programs()) {
    if (program->collective() == collective && program->name() == name) return program;
  }
  ADD_FAILURE() << name;
  return nullptr;
}

TEST(Hierarchy, LevelsThatDivideNothingAreLeftOut) {
  EXPECT_EQ(Hierarchy::flat(5).levels(), 1);
  EXPECT_EQ(Hierarchy::flat(5).span(0), 5);
  EXPECT_EQ(hierarchy_of({{0, 1, 2, 3}}).levels(), 1);
  EXPECT_EQ(hierarchy_of({{7, 7, 7, 7}}).levels(), 1);
  const Hierarchy sites = hierarchy_of({{0, 1, 2, 3}, {5, 5, 5, 5}, {0, 0, 1, 1}});
  ASSERT_EQ(sites.levels(), 2);
  EXPECT_EQ(sites.name(0), "rack");
  EXPECT_EQ(sites.name(1), "world");
  // Each node is a rack of its own: the node's name stays.
  EXPECT_EQ(hierarchy_of({{0, 0, 1, 1}, {3, 3, 4, 4}}).name(0), "node");
}

TEST(Hierarchy, GroupsAreCutAtTheBordersOfHigherOnes) {
  const Hierarchy cut = hierarchy_of({{0, 0, 0, 1}, {0, 0, 1, 1}});
  ASSERT_EQ(cut.levels(), 3);
  EXPECT_EQ(cut.group(0, 0), cut.group(0, 1));
  EXPECT_NE(cut.group(0, 1), cut.group(0, 2));
  EXPECT_EQ(cut.groups(0), 3);
}

TEST(Hierarchy, EveryRankIsAtOnePieceAndOwnersAreInTheirGroups) {
  for (const auto& [what, tree] : some_hierarchies()) {
    SCOPED_TRACE(what);
    for (int root = 0; root < tree.ranks(); ++root) {
      std::set<int> found;
      for (int64_t piece = 0; piece < tree.tail(-1); ++piece) {
        const int rank = tree.at(piece, root);
        EXPECT_TRUE(rank < 0 || found.insert(rank).second) << rank;
      }
      EXPECT_EQ(static_cast<int>(found.size()), tree.ranks());
      EXPECT_EQ(tree.at(0, root), root);
      for (int level = 0; level < tree.levels(); ++level) {
        const int64_t columns = tree.tail(-1) / tree.tail(level - 1);
        for (int rank = 0; rank < tree.ranks(); ++rank) {
          std::set<int> positions;
          for (int part = 0; part < tree.parts(level, rank); ++part) {
            const int owner = tree.owner(level, rank, part, columns - 1, root);
            EXPECT_EQ(tree.group(level, owner), tree.group(level, rank));
            EXPECT_EQ(tree.position(level, owner, root), part);
            positions.insert(part);
          }
          EXPECT_EQ(static_cast<int>(positions.size()), tree.parts(level, rank));
        }
      }
      EXPECT_EQ(tree.position(tree.levels() - 1, root, root), 0);
    }
  }
}

// Rings leave a group only when they have met all of its ranks, whatever order is told.
TEST(Hierarchy, RingsGoGroupByGroup) {
  const Hierarchy interleaved = hierarchy_of({{0, 1, 0, 1}});
  EXPECT_EQ(interleaved.ring(), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_FALSE(interleaved.is_ordered());
  const Hierarchy told = Hierarchy::create(6, {{"node", {0, 0, 1, 1, 2, 2}}}, {5, 0, 2, 1, 3, 4});
  EXPECT_EQ(told.ring(), (std::vector<int>{5, 4, 0, 1, 2, 3}));
  EXPECT_TRUE(told.is_ordered());
  EXPECT_EQ(told.place(1), 3);
  EXPECT_EQ(told.position(1, 4, 0), 2);  // from the root's node on
  EXPECT_EQ(told.position(1, 2, 0), 1);
  EXPECT_EQ(Hierarchy::create(3, {}, {2, 0, 1}).ring(), (std::vector<int>{2, 0, 1}));
}

// Every program is right in every order.
TEST(Hierarchy, OrdersDoNotMakeProgramsWrong) {
  std::mt19937 random(9);
  for (const auto& levels : {std::vector<Hierarchy::Level>{},
                             {{"node", {0, 0, 0, 1, 1, 2, 3}}},
                             {{"node", {0, 1, 0, 1, 2, 2, 3}}, {"site", {0, 0, 0, 0, 1, 1, 1}}}}) {
    std::vector<int> order{0, 1, 2, 3, 4, 5, 6};
    std::shuffle(order.begin(), order.end(), random);
    const Hierarchy tree = Hierarchy::create(7, levels, order);
    for (const ProgramPtr& program : builtin_programs()) {
      const Status status = verify(*program, 7, {.roots = {0, 2, 6}, .hierarchy = &tree});
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

// A ring's messages go from each rank to the next in the order, and to nobody else.
TEST(Hierarchy, RingProgramsFollowTheOrder) {
  const std::vector<int> order{0, 2, 4, 1, 3};
  const Hierarchy tree = Hierarchy::create(5, {}, order);
  for (const Collective collective : {Collective::allreduce, Collective::allgather, Collective::reducescatter}) {
    for (int place = 0; place < 5; ++place) {
      auto plan = expand(*builtin(collective, "ring"),
                         {.ranks = 5, .rank = order[static_cast<size_t>(place)], .hierarchy = &tree});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      for (const Op& op : (*plan)->ops) {
        if (op.verb == Verb::copy) continue;
        EXPECT_EQ(op.peer, order[static_cast<size_t>((place + (op.verb == Verb::send ? 1 : 4)) % 5)]);
      }
    }
  }
}

TEST(Hierarchy, LevelBetween) {
  const Hierarchy tree = hierarchy_of({{0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}});
  EXPECT_EQ(tree.level_between(0, 1), 0);
  EXPECT_EQ(tree.level_between(1, 2), 1);
  EXPECT_EQ(tree.level_between(3, 4), 2);
}

// Every program that is made of levels, over every hierarchy, from every root, in place, not, and mixed.
TEST(Hierarchy, ProgramsAreRight) {
  int programs = 0;
  for (const ProgramPtr& program : builtin_programs()) {
    if (!program->name().starts_with("hierarchical")) continue;
    ++programs;
    int run = 0;
    for (const auto& [what, tree] : some_hierarchies()) {
      if (!program->supports(tree)) continue;
      ++run;
      std::vector<int> roots(static_cast<size_t>(tree.ranks()));
      std::iota(roots.begin(), roots.end(), 0);
      const Status status = verify(*program, tree.ranks(), {.roots = roots, .hierarchy = &tree});
      ASSERT_TRUE(status.ok()) << what << ": " << status.message();
    }
    EXPECT_GT(run, 9) << program->file();
  }
  EXPECT_GE(programs, 10);
}

// All others do not see the levels, and are as right over them.
TEST(Hierarchy, OtherProgramsDoNotCare) {
  const Hierarchy tree = hierarchy_of({{0, 1, 0, 1, 2, 2, 2}});
  for (const ProgramPtr& program : builtin_programs()) {
    const Status status = verify(*program, tree.ranks(), {.hierarchy = &tree});
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// What a rank sends out of its node, as a multiple of the vector: an all-reduce of nodes of m ranks sends (N-1)/N of
// 2/m of it, and a broadcast sends it into each node once.
double crossing(const Program& program, const Hierarchy& tree, int level) {
  double chunks = 0;
  double per_block = 1;
  for (int rank = 0; rank < tree.ranks(); ++rank) {
    auto plan = expand(program, {.ranks = tree.ranks(), .rank = rank, .hierarchy = &tree});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    per_block = (*plan)->chunks_per_block;
    for (const Op& op : (*plan)->ops) {
      if (op.verb != Verb::send || tree.level_between(rank, op.peer) < level) continue;
      for (const Region& region : (*plan)->src(op)) chunks += region.count;
    }
  }
  return chunks / per_block;
}

TEST(Hierarchy, WhatCrossesBetweenNodes) {
  for (const int nodes : {2, 3, 5}) {
    for (const int each : {2, 4}) {
      std::vector<int> node;
      for (int rank = 0; rank < nodes * each; ++rank) node.push_back(rank / each);
      const Hierarchy tree = hierarchy_of({node});
      const double n = nodes;
      EXPECT_NEAR(crossing(*builtin(Collective::allreduce, "hierarchical"), tree, 1), 2 * (n - 1), 1e-9);
      EXPECT_NEAR(crossing(*builtin(Collective::broadcast, "hierarchical"), tree, 1), n - 1, 1e-9);
      EXPECT_NEAR(crossing(*builtin(Collective::reduce, "hierarchical"), tree, 1), n - 1, 1e-9);
      // Blocks: each enters every other node once.
      EXPECT_NEAR(crossing(*builtin(Collective::allgather, "hierarchical"), tree, 1), n * each * (n - 1), 1e-9);
      EXPECT_NEAR(crossing(*builtin(Collective::reducescatter, "hierarchical"), tree, 1), n * each * (n - 1), 1e-9);
      EXPECT_NEAR(crossing(*builtin(Collective::alltoall, "hierarchical"), tree, 1), n * each * each * (n - 1), 1e-9);
    }
  }
}

std::string refusal(const std::string& text, const Hierarchy& tree) {
  auto program = Program::parse(text, "test.algo");
  if (!program.ok()) return program.status().message();
  return verify(**program, tree.ranks(), {.hierarchy = &tree}).message();
}

TEST(Over, SaysWhatIsWrong) {
  const Hierarchy tree = hierarchy_of({{0, 0, 1, 1}});
  const auto expect = [&](const std::string& text, const std::string& reason) {
    const std::string message = refusal(text, tree);
    EXPECT_NE(message.find(reason), std::string::npos) << text << "\n" << message;
  };
  expect("allreduce x\nover 2 step { }", "over level 2; legal are 0 to 1");
  expect("allreduce x\nover r step { }", "the level must be the same on all ranks");
  expect("allreduce x\nstep over 0 { }", "an 'over' cannot stand inside a step");
  expect("allreduce x\nover 0 { over 1 { } }", "an 'over' cannot stand inside an 'over'");
  expect("allreduce x\nover 0 send 2 out[0]", "the peer is 2; legal are the ranks 0 to 1 but this one");
  expect("allreduce x\nstep { send span(2) out[0] }", "level 2; legal are 0 to 1");
  expect("allreduce x\nstep { send at(4) out[0] }", "piece 4; legal are 0 to 3");
  expect("allreduce x\nover 0 as c for i in 0..c { step { } }", "the bounds of a loop over steps cannot depend on r");
  expect("allreduce x\nfor i in 0..parts(0) step { }", "the bounds of a loop over steps cannot depend on r");
  expect("allreduce x\nstep { send place(4) out[0] }", "the place of rank 4; legal are 0 to 3");
  expect("allreduce x\nlet levels = 3", "'levels' has a meaning in every program");
}

}  // namespace
}  // namespace weft
