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

// That a mixture is right is concluded, not tried: here it is tried.
TEST(Verify, MixturesOfInPlaceAndOutOfPlaceAreRight) {
  std::mt19937 random(11);
  for (const ProgramPtr& program : builtin_programs()) {
    if (program->collective() == Collective::alltoallv) continue;
    for (int ranks = 2; ranks <= 12; ++ranks) {
      if (!program->supports(ranks)) continue;
      const int root = static_cast<int>(random() % static_cast<uint32_t>(ranks));
      std::vector<std::shared_ptr<const Plan>> plans;
      for (int r = 0; r < ranks; ++r) plans.push_back(plan_of(*program, {ranks, r, root, (random() & 1) != 0}));
      const Status status = verify_plans(plans);
      EXPECT_TRUE(status.ok()) << full_name(*program) << " for " << ranks << " ranks: " << status.message();
    }
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
  expect_refusal("allreduce x chunks=2\nstep { if r == 0 send 1 out[0]  if r == 1 recv 0 out[1] }",
                 "of what rank 0 sends rank 1, chunk number 0 has another size than where it is received");
  expect_refusal("allreduce x chunks=2\nstep { if r == 0 send 1 out[0..2]  if r == 1 recv 0 out[0] }",
                 "step 0: rank 0 sends rank 1 2 chunks, where it receives 1");
  expect_refusal("allreduce x chunks=2 scratch=2\ncopy scratch[0] from in[1]",
                 "a copy between chunks of different sizes");
  // Blocks of a v-variant do not fit each other.
  expect_refusal(
      "allgatherv x scratch=P\nstep { send (r+1)%P in[0] recv (r-1)%P scratch[r] }\ncopy out[0..P] from [scratch[r] "
      "for i in 0..P]",
      "has another size");
  expect_refusal("alltoallv x\ncopy out[0..P] from [in[i] for i in 0..P]", "a copy between chunks of different sizes");
  expect_refusal("allreduce x scratch=1\nif inplace step { }\n", "the result in out[0] is wrong");
}

// The line of the program, and of a wrong result the one that wrote it last, and in what it is wrong.
TEST(Verify, NamesTheLineAndTheMistake) {
  expect_refusal("allreduce x\n\nstep { if r == 0 send 1 out[0] }",
                 "test.algo:3: allreduce x for 4 ranks, out of place: step 0: rank 0 sends to rank 1");
  const std::string star =
      "allreduce x\nfor k in 1..{} step {{\n  if r == k%P send 0 in[0]\n  if r == 0 recv reduce k%P out[0]\n}}\n"
      "step {{\n  if r == 0 {{ for k in 1..P send k out[0] }}\n  else recv 0 out[0]\n}}";
  expect_refusal(fmt::format(fmt::runtime(star), "P-1"),
                 "test.algo:4: allreduce x for 4 ranks, out of place: rank 0: the result in out[0] is wrong: rank 3's "
                 "contribution is missing");
  const std::string again = "step { if r == 2 send 0 in[0]  if r == 0 recv reduce 2 out[0] }";
  expect_refusal("reduce x\nfor k in 1..P step { if r == k send 0 in[0]  if r == 0 recv reduce k out[0] }\n" + again,
                 "test.algo:3: reduce x for 4 ranks, root 0, out of place: rank 0: the result in out[0] is wrong: rank "
                 "2's contribution is in it twice");
  expect_refusal(
      "alltoall x\nstep for k in 1..P { send (r+k)%P in[(r+k)%P]  recv (r-k)%P out[(r+k)%P] }\n"
      "copy out[r] from in[r]",
      "rank 0: the result in out[1] is wrong: it holds rank 3's in[0]");
  expect_refusal("barrier x\nstep { if r == 0 send 1 out[0]  if r == 1 recv reduce 0 out[0] }",
                 "rank 0: the result in out[0] is wrong: nothing of rank 1 is in it");
}

// In place and out of place must look the same to the others.
TEST(Verify, RefusesMessagesThatDependOnInPlace) {
  expect_refusal(
      "allgather x\nfor k in 0..P-1 step { send (r+1)%P out[(r-k)%P] recv (r-1)%P out[(r-k-1)%P] }\n"
      "step { if r == 0 && !inplace send 1 in[0]  if r == 1 && !inplace recv 0 out[0] }",
      "partly in place: step 3: rank 0 sends rank 1 a message that it does not send in place");
  expect_refusal(
      "allgather x scratch=1\nfor k in 0..P-1 step { send (r+1)%P out[(r-k)%P] recv (r-1)%P out[(r-k-1)%P] }\n"
      "step { if r == 2 && inplace send 3 in[0]  if r == 3 && inplace recv 2 scratch[0] }",
      "partly in place: step 3: rank 2 sends rank 3 a message that it sends in place only");
  expect_refusal(
      "allgather x scratch=1\nfor k in 0..P-1 step { send (r+1)%P out[(r-k)%P] recv (r-1)%P out[(r-k-1)%P] }\n"
      "step { if r == 2 send 3 out[inplace]  if r == 3 recv 2 scratch[0] }",
      "partly in place: step 3: rank 2 sends rank 3 something else in place than out of place");
  expect_refusal(
      "allreduce x scratch=P\n"
      "step for k in 1..P { send (r+k)%P out[0] recv (r-k)%P scratch[(r-k)%P] }\ncopy scratch[r] from out[0]\n"
      "copy reduce out[0] from (scratch[inplace ? P-1-i : i] for i in 0..P)",
      "rank 0 combines in another order in place");
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
      {"allreduce", "ring", "out[(me-k-1)%P]", "out[(me-k)%P]"},
      {"allreduce", "ring", "out[(me+1-k)%P]", "out[(me-k)%P]"},
      {"allreduce", "ring", "ring(me+1)", "ring(me+2)"},
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
      {"reducescatter", "bruck", "min(d, P - d)", "d"},
      {"reducescatter", "bruck", "with work[r]", "with in[r]"},
      {"allgather", "bruck", "min(d, P - d)", "d"},
      {"broadcast", "chain", "+1) out", "+2) out"},
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
