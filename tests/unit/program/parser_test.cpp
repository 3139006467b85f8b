#include <gtest/gtest.h>

#include "program/ast.hpp"
#include "program/evaluator.hpp"
#include "programs.hpp"

namespace weft {
namespace {

// The value of an expression at rank 2 of 7, root 3; or the error.
std::string value_of(const std::string& expression) {
  auto program = Program::parse("allreduce test\nlet f(x, y) = 10*x + y\nlet k = 5\nlet value = " + expression, "test");
  if (!program.ok()) return program.status().message();
  const Ast& ast = static_cast<const ParsedProgram&>(**program).ast();
  const Hierarchy flat = Hierarchy::flat(7);
  Evaluator evaluator(ast, "test", flat, 2, 3, true);
  int64_t value = 0;
  for (const Statement& statement : ast.body) evaluator.set(statement.slot, value = evaluator.eval(statement.a));
  return evaluator.ok() ? std::to_string(value) : evaluator.failure().message();
}

TEST(Expressions, MeanWhatTheySay) {
  const std::pair<const char*, int64_t> cases[] = {
      {"1 + 2 * 3", 7},
      {"(1 + 2) * 3", 9},
      {"r + P + root", 12},
      {"inplace", 1},
      {"-3 % 7", 4},  // the mathematical modulus
      {"(r-3) % P", 6},
      {"3 % -7", -4},
      {"-7 / 2", -4},  // the floor
      {"7 / -2", -4},
      {"-8 / 2", -4},
      {"10 - 2 - 3", 5},
      {"1 << 3 + 1", 16},
      {"6 & 3 == 2", 1},  // comparisons bind looser than bits
      {"5 ^ 1 | 8", 12},
      {"~0", -1},
      {"7 & ~3", 4},
      {"!0 + !5", 1},
      {"1 < 2 && 2 < 1 || 1", 1},
      {"1 ? 2 : 3 ? 4 : 5", 2},
      {"0 ? 2 : 0 ? 4 : 5", 5},
      {"0 && 1/0", 0},  // the right side is not evaluated
      {"1 || 1/0", 1},
      {"1 ? 7 : 1/0", 7},
      {"min(3, -4) + max(3, -4)", -1},
      {"abs(-9)", 9},
      {"log2(1) + log2(7) + log2(8)", 5},
      {"ceil_log2(1) + ceil_log2(7) + ceil_log2(8) + ceil_log2(9)", 10},
      {"pow2floor(7) + pow2ceil(7)", 12},
      {"pow2floor(8) + pow2ceil(8)", 16},
      {"lowbit(12)", 4},
      {"lowbit(0)", 0},
      {"is_pow2(8) + is_pow2(6) + is_pow2(0)", 1},
      {"popcount(13)", 3},
      {"f(1, k)", 15},
      {"f(f(1, 2), f(3, 4))", 154},  // arguments of a call may be calls of the same function
      {"-16 >> 2", -4},
      {"9223372036854775807", INT64_MAX},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(value_of(text), std::to_string(expected)) << text;
}

TEST(Expressions, FailWithPlaceAndReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"1 / 0", "test:4:15: a division by zero (r=2, P=7, root=3, in place)"},
      {"1 % (r-2)", "a division by zero"},
      {"1 << 63", "a shift by 63 bits; legal are 0 to 62"},
      {"1 >> -1", "a shift by -1 bits"},
      {"log2(0)", "the logarithm of 0, which is not positive"},
      {"9223372036854775807 + 1", "does not fit 64 bits"},
      {"4611686018427387904 << 1", "does not fit 64 bits"},
      {"9223372036854775807 * 2", "does not fit 64 bits"},
      {"-(0-9223372036854775807-1)", "does not fit 64 bits"},
      {"9223372036854775808", "test:4:13: the number 9223372036854775808 does not fit 64 bits"},
      {"1 < 2 < 3", "comparisons do not chain"},
      {"g(1)", "'g' is not defined here"},
      {"f(1)", "'f' takes 2 arguments, not 1"},
      {"log2(1, 2)", "'log2' takes 1 argument, not 2"},
      {"1 +", "test:4:16: expected a value, found the end of the file"},
      {"out[0]", "test:4:13: expected a value, found the buffer 'out'"},
      {"p + 1", "'p' is not defined here; every program knows r (my rank), P (ranks), root and inplace"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_NE(value_of(text).find(expected), std::string::npos) << text << ": " << value_of(text);
  }
}

TEST(Parser, ErrorsNameLineColumnAndReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "t:1:1: a program begins with its collective"},
      {"allreduc ring", "t:1:1: a program begins with its collective (allreduce, broadcast, ...), found 'allreduc'"},
      {"sendrecv x", "t:1:1: a program begins with its collective"},
      {"allreduce", "t:1:10: expected the algorithm's name after 'allreduce', found the end of the file"},
      {"allreduce\nfor k in 0..P { }", "t:2:1: expected the algorithm's name after 'allreduce', found 'for'"},
      {"allreduce x\nsend 1", "t:2:7: expected a region such as out[0], found the end of the file"},
      {"allreduce x\n  sned 1 out[0]", "t:2:3: expected a statement (let, for, if, over, step, send, recv or copy)"},
      {"allreduce x\nstep { step { } }", "t:2:8: a step cannot stand inside a step"},
      {"allreduce x\nsend 1 out[0", "t:2:13: expected ']' after the index"},
      {"allreduce x\nstep { send 1 out[0]", "expected '}' to close the block of line 2, found the end of the file"},
      {"allreduce x\nstep { } }", "t:2:10: there is no block for this '}' to close"},
      {"allreduce x\nstep { send 1 out[0]; }", "t:2:21: statements follow each other without ';'"},
      {"allreduce x\nif r = 0 send 1 out[0]", "t:2:6: '=' defines; to compare, write '=='"},
      {"allreduce x\nfor k in 0..r send 1 out[0]", "t:2:5: the bounds of a loop over steps cannot depend on r"},
      {"allreduce x\nlet v = r/2\nlet w(x) = x + v\nfor k in 0..w(1) step {}", "t:4:5: the bounds of a loop over"},
      {"allreduce x\nfor k in 0..inplace step { }", "cannot depend on r or inplace"},
      {"allreduce x chunks=r", "t:1:13: 'chunks' must be the same on all ranks"},
      {"allreduce x requires r < 3", "t:1:13: 'requires' may depend on P only"},
      {"broadcast x requires root == 0", "'requires' may depend on P only"},
      {"allreduce x chunks=1 chunks=2", "t:1:22: 'chunks' is given twice"},
      {"allreduce x\nsend 1 out[0]\nscratch=2", "t:3:1: 'scratch' must stand before the first operation"},
      {"allreduce x\nlet r = 1", "t:2:5: 'r' has a meaning in every program"},
      {"allreduce x\nlet out = 1", "t:2:5: 'out' is a word of the language"},
      {"allreduce x\ncode node { }", "t:2:1: 'code' is reserved for a later version"},
      {"allreduce x\nreplicate 2 { }", "'replicate' is reserved"},
      {"allreduce x\nif 1 { let k = 2 }\nsend k out[0]", "t:3:6: 'k' is not defined here"},
      {"allreduce x\nfor k in 0..2 { }\nsend k out[0]", "'k' is not defined here"},
      {"allreduce x\nlet f(a) = f(a)", "'f' is not defined here"},
      {"allreduce x\ncopy out[0] from in[0], in[0]", "write 'copy reduce' to combine several"},
      {"allreduce x\ncopy reduce out[0] from (in[i])", "expected 'for' inside the parentheses"},
      {"allreduce x\nsend 1 [in[i] for i in 0..2 in[0]]", "expected ']'"},
      {"allreduce x\nsend 1 out[0] $", "t:2:15: the character with code 36"},
  };
  for (const auto& [text, expected] : cases) {
    const auto program = Program::parse(text, "t");
    ASSERT_FALSE(program.ok()) << text;
    EXPECT_EQ(program.status().code(), weftInvalidArgument);
    EXPECT_NE(program.status().message().find(expected), std::string::npos) << text << "\n"
                                                                            << program.status().message();
  }
}

TEST(Parser, RefusesNestingThatWouldExhaustTheStack) {
  const std::string many(100000, '(');
  EXPECT_FALSE(Program::parse("allreduce x let a = " + many, "t").ok());
  std::string sum = "allreduce x let a = 1";
  for (int i = 0; i < 10000; ++i) sum += "+1";
  EXPECT_FALSE(Program::parse(sum, "t").ok());
  std::string loops = "allreduce x ";
  for (int i = 0; i < 10000; ++i) loops += "if 1 ";
  EXPECT_FALSE(Program::parse(loops, "t").ok());
  EXPECT_FALSE(Program::parse("allreduce x send 0 " + std::string(10000, '['), "t").ok());
  EXPECT_FALSE(Program::parse("allreduce x let a = " + std::string(10000, '-') + "1", "t").ok());
  EXPECT_FALSE(Program::parse("allreduce x let a = " + std::string(10000, '!') + "1", "t").ok());
}

TEST(Parser, RequirementsDecideTheRankCounts) {
  const ProgramPtr program = parse("allgather x\nlet half = P/2\nrequires is_pow2(P)\nrequires half < 8");
  EXPECT_TRUE(program->supports(1));
  EXPECT_TRUE(program->supports(8));
  EXPECT_FALSE(program->supports(6));
  EXPECT_FALSE(program->supports(16));
  EXPECT_FALSE(program->supports(0));
}

TEST(Parser, TheRingOfTheDesignIsValidAsItStands) {
  const ProgramPtr program = parse(
      "allreduce ring chunks=P\n"
      "for k in 0..P-1  step { send (r+1)%P out[(r-k)%P]\n"
      "                        recv reduce (r-1)%P out[(r-k-1)%P] }\n"
      "for k in 0..P-1  step { send (r+1)%P out[(r+1-k)%P]\n"
      "                        recv (r-1)%P out[(r-k)%P] }\n");
  EXPECT_EQ(program->collective(), Collective::allreduce);
  EXPECT_EQ(program->name(), "ring");
}

}  // namespace
}  // namespace weft
