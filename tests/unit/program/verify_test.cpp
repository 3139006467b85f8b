#include "verify/verify.hpp"

#include <gtest/gtest.h>

#include <random>

#include "plan/shape.hpp"
#include "programs.hpp"

namespace weft {
namespace {

// B46, B50, B54: every program, every count up to 33, all roots up to 8, in place and not, and mixed.
TEST(Verify, EveryProgramIsRightForEveryCountTo33) {
  for (const ProgramPtr& program : builtin_programs()) {
    for (int ranks = 1; ranks <= 33; ++ranks) {
      const Status status = verify(*program, ranks);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST(Verify, ProgramsAreRightForLargeCounts) {
  for (const ProgramPtr& program : builtin_programs()) {
    for (const int ranks : {127, 128}) {
      const Status status = verify(*program, ranks, {.roots = {ranks / 3}, .mixtures = 1});
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
}

// Those that a job of this size would use: one message for each rank, or fewer.
TEST(Verify, ProgramsAreRightFor1024) {
  const std::pair<const char*, const char*> programs[] = {{"allreduce", "ring"},
                                                          {"allreduce", "recursive_doubling"},
                                                          {"allreduce", "halving_doubling"},
                                                          {"allreduce", "double_tree"},
                                                          {"broadcast", "chain"},
                                                          {"broadcast", "binomial"},
                                                          {"broadcast", "double_tree"},
                                                          {"reduce", "chain"},
                                                          {"reduce", "binomial"},
                                                          {"reduce", "double_tree"},
                                                          {"barrier", "dissemination"},
                                                          {"gather", "binomial"},
                                                          {"scatter", "binomial"},
                                                          {"allgather", "bruck"}};
  for (const auto& [collective, name] : programs) {
    const ProgramPtr program = builtin(collective, name);
    const Status status = verify(*program, 1024, {.roots = {5}, .mixtures = 0});
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

std::string refusal(const std::string& text, int ranks = 4) {
  const ProgramPtr program = parse(text);
  return program ? verify(*program, ranks).message() : "";
}
void expect_refusal(const std::string& text, const std::string& reason) {
  const std::string message = refusal(text);
  EXPECT_NE(message.find(reason), std::string::npos) << text << "\n" << message;
}

TEST(Verify, RefusesWithRankStepAndChunk) {
  expect_refusal("allreduce x\nstep { }", "rank 0: the result in out[0] is wrong");
  expect_refusal("allreduce x\nstep { if r == 0 send 1 out[0] }",
                 "step 0: rank 0 sends to rank 1, which does not receive in that step");
  expect_refusal("allreduce x\nif r == 0 send 1 out[0]\nif r == 1 recv 0 out[0]",
                 "step 0: rank 0 sends to rank 1, which does not receive in that step");
  expect_refusal("allreduce x\nstep if r == 1 recv 0 out[0]",
                 "step 0: rank 1 receives from rank 0, which does not send in that step");
  expect_refusal("allreduce x lanes=2\nstep { if r == 0 send 1 lane 1 out[0]  if r == 1 recv 0 out[0] }",
                 "step 0: rank 1 receives from rank 0, which does not send in that step");
  expect_refusal("allreduce x chunks=2\nstep { if r == 0 send 1 out[0]  if r == 1 recv 0 out[1] }", "differ in size");
  expect_refusal("allreduce x chunks=2\nstep { if r == 0 send 1 out[0..2]  if r == 1 recv 0 out[0] }",
                 "2 chunks, and rank 1 expects 1 chunks");
  expect_refusal("allreduce x chunks=2 scratch=2\ncopy scratch[0] from in[1]",
                 "a copy between chunks of different sizes");
  // Blocks of a v-variant do not fit each other.
  expect_refusal(
      "allgatherv x scratch=P\nstep { send (r+1)%P in[0] recv (r-1)%P scratch[r] }\ncopy out[0..P] from [scratch[r] "
      "for i in 0..P]",
      "differ in size");
  expect_refusal("alltoallv x\ncopy out[0..P] from [in[i] for i in 0..P]", "a copy between chunks of different sizes");
  expect_refusal("allreduce x scratch=1\nif inplace step { }\n", "the result in out[0] is wrong");
}

// In place and out of place must look the same to the others.
TEST(Verify, RefusesMessagesThatDependOnInPlace) {
  expect_refusal(
      "allgather x\nfor k in 0..P-1 step { send (r+1)%P out[(r-k)%P] recv (r-1)%P out[(r-k-1)%P] }\n"
      "step { if r == 0 && !inplace send 1 in[0]  if r == 1 && !inplace recv 0 out[0] }",
      "partly in place: step 3: rank");
}

TEST(Verify, RefusesOrdersThatDifferBetweenRanks) {
  expect_refusal(
      "allreduce x scratch=P\n"
      "step for k in 1..P { send (r+k)%P out[0] recv (r-k)%P scratch[(r-k)%P] }\n"
      "copy reduce out[0] from out[0], (scratch[(r+k)%P] for k in 1..P)",
      "combine out[0] in different orders");
}

TEST(Verify, RefusesABarrierThatDoesNotWaitForAll) {
  // Forwarding only the last message leaves ranks unheard.
  expect_refusal(
      "barrier x scratch=P\ncopy scratch[0] from in[0]\n"
      "for i in 0..ceil_log2(P) step { send (r + (1 << i)) % P scratch[i] recv (r - (1 << i)) % P scratch[i+1] }\n"
      "copy out[0] from scratch[ceil_log2(P)]",
      "the result in out[0] is wrong");
}

std::string replaced(std::string text, const std::string& from, const std::string& to, size_t nth = 0) {
  size_t at = text.find(from);
  while (nth-- > 0 && at != std::string::npos) at = text.find(from, at + 1);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Verify, MutationsOfTheTextsAreRefused) {
  struct Mutation {
    const char *collective, *name, *from, *to;
    size_t nth = 0;
  };
  const Mutation mutations[] = {
      {"allreduce", "ring", "recv reduce", "recv"},
      {"allreduce", "ring", "out[(r-k-1)%P]", "out[(r-k)%P]"},
      {"allreduce", "ring", "out[(r+1-k)%P]", "out[(r-k)%P]"},
      {"allreduce", "ring", "(r+1)%P", "(r+2)%P"},
      {"allreduce", "ring", "0..P-1", "0..P-2"},
      {"allreduce", "ring", "0..P-1", "0..P-2", 1},
      {"allreduce", "flat", "1..P", "1..P-1"},
      {"allreduce", "flat", "scratch[i] for i in 0..r", "scratch[i] for i in 1..r"},
      {"allreduce", "recursive_doubling", "else if paired recv reduce", "else if paired recv"},
      {"allreduce", "recursive_doubling", "from out[0], scratch[i]", "from scratch[i], scratch[i]"},
      {"allreduce", "halving_doubling", "recv reduce rank_of(q)  out[v & ~(d-1) +: d]",
       "recv rank_of(q) out[v & ~(d-1) +: d]"},
      {"allreduce", "halving_doubling", "out[q & ~(d-1) +: d]", "out[v & ~(d-1) +: d]", 1},
      {"allreduce", "double_tree", "recv reduce", "recv"},
      {"allreduce", "double_tree", "t == 0 ? r : turned(r)", "r"},
      {"reducescatter", "ring", "with in[r]", "with work[(r+1)%P]"},
      {"reducescatter", "halving", "begin(other+d)", "begin(other)+1"},
      {"allgather", "bruck", "min(d, P - d)", "d"},
      {"broadcast", "chain", "(r+1)%P out", "(r+2)%P out"},
      {"broadcast", "scatter_allgather", "if v != 0 ", "if 1 "},
      {"reduce", "binomial", "recv reduce", "recv"},
      {"alltoall", "bruck", "x < 2*d", "x < 4*d"},
      {"alltoall", "pairwise", "recv q  out[q]", "recv q  out[r]"},
      {"gather", "binomial", "out[r+d +: ", "out[r +: "},
      {"scatter", "binomial", "out[0] in[r+1 +: min(d, P-v) - 1]",
       "in[r +: min(d, P-v)]  copy out[0] from in[(r+1)%P]"},
      {"barrier", "dissemination", "0..ceil_log2(P)", "0..ceil_log2(P)-1"},
  };
  for (const Mutation& mutation : mutations) {
    const std::string text =
        replaced(builtin(mutation.collective, mutation.name)->text(), mutation.from, mutation.to, mutation.nth);
    const auto program = Program::parse(text, "mutant");
    if (!program.ok()) continue;  // refused even earlier
    bool refused = false;
    for (int ranks = 2; ranks <= 9 && !refused; ++ranks) refused = !verify(*program.value(), ranks).ok();
    EXPECT_TRUE(refused) << mutation.collective << " " << mutation.name << ": " << mutation.from << " -> "
                         << mutation.to;
  }
}

// Mutates the plans themselves, at random: no damage may pass for a right plan.
TEST(Verify, MutationsOfThePlansAreRefused) {
  std::mt19937 random(7);
  int tried = 0;
  for (const ProgramPtr& program : builtin_programs()) {
    for (int round = 0; round < 24; ++round) {
      const int ranks = 5 + static_cast<int>(random() % 4);
      if (!program->supports(ranks)) continue;
      std::vector<std::shared_ptr<const Plan>> plans;
      for (int r = 0; r < ranks; ++r) plans.push_back(plan_of(*program, {ranks, r, 1, false}));
      ASSERT_TRUE(verify_plans(plans).ok());
      const size_t victim = random() % plans.size();
      auto plan = std::make_shared<Plan>(*plans[victim]);
      if (plan->ops.empty()) continue;
      const size_t index = random() % plan->ops.size();
      Op& op = plan->ops[index];
      const std::string what =
          full_name(*program) + ", rank " + std::to_string(victim) + ", op " + std::to_string(index);
      switch (random() % 4) {
        case 0:
          plan->ops.erase(plan->ops.begin() + static_cast<std::ptrdiff_t>(index));
          break;
        case 1:
          if (op.verb != Verb::recv || !op.reduce) continue;
          op.reduce = false;
          break;
        case 2:
          if (op.verb == Verb::copy) continue;
          op.peer = (op.peer + 1) % ranks;
          break;
        default: {
          Region& region = plan->regions[op.verb == Verb::send ? op.src : op.dst];
          const uint32_t chunks = region.buffer == Buffer::in    ? plan->in_blocks * plan->chunks_per_block
                                  : region.buffer == Buffer::out ? plan->out_blocks * plan->chunks_per_block
                                                                 : 1;
          // A barrier's bytes all say the same, and scratch may land anywhere free.
          if (chunks < 2 || program->collective() == Collective::barrier) continue;
          region.first = (region.first + 1) % chunks;
        }
      }
      plans[victim] = plan;
      ++tried;
      EXPECT_FALSE(verify_plans(plans).ok()) << what;
    }
  }
  EXPECT_GT(tried, 200);
}

}  // namespace
}  // namespace weft
