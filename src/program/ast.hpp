// A parsed program. Names are resolved: a variable is a slot of the evaluator's frame.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "program/program.hpp"

namespace weft {

// On what an expression's value depends. Whatever decides how many steps a program has must not be local.
enum class Scope : uint8_t { ranks, root, local };  // on P only; also on the root; also on r or on `inplace`

enum class Operator : uint8_t {
  number,
  slot,
  call,
  negate,
  complement,
  logical_not,
  add,
  subtract,
  multiply,
  divide,
  modulo,
  shift_left,
  shift_right,
  bit_and,
  bit_or,
  bit_xor,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,
  logical_or,
  choose,
  min,
  max,
  abs,
  log2,
  ceil_log2,
  pow2floor,
  pow2ceil,
  lowbit,
  is_pow2,
  popcount,
  span,
  tail,
  at,
  parts,
  position,
  ring,
  place,
};

using ExprId = uint32_t;
struct Expr {
  Operator op = Operator::number;
  Scope scope = Scope::ranks;
  uint32_t line = 0, column = 0;
  int64_t value = 0;              // number; slot: the slot; call: the function
  ExprId a = 0, b = 0, c = 0;     // operands
  std::vector<ExprId> arguments;  // call
};

// `let name(parameters) = body`. It can only use what was defined before it, so it cannot recurse, and a slot for each
// parameter is frame enough.
struct Function {
  std::vector<uint32_t> parameters;
  ExprId body = 0;
};

// `for slot in low..high [if condition]`, inside regions and sources.
struct Generator {
  uint32_t slot = 0;
  ExprId low = 0, high = 0;
  bool has_condition = false;
  ExprId condition = 0;
};

enum class Space : uint8_t { in, out, scratch, work };
const char* name_of(Space space);

struct RegionNode;
using RegionList = std::vector<RegionNode>;
struct RegionNode {
  enum class Kind : uint8_t { one, range, wrapped, group, choice };
  Kind kind = Kind::one;
  Space space = Space::in;
  uint32_t line = 0, column = 0;
  ExprId a = 0, b = 0;  // one: [a]; range: [a..b]; wrapped: [a +: b]; choice: a is the condition
  bool generated = false;
  Generator generator;       // group
  RegionList first, second;  // group: first; choice: first or second
};

struct SourceNode {
  RegionList regions;
  bool generated = false;
  Generator generator;
};

struct Statement {
  enum class Kind : uint8_t { let, loop, branch, over, step, send, recv, copy };
  Kind kind = Kind::let;
  uint32_t line = 0, column = 0;
  bool makes_steps = false;

  uint32_t slot = 0;    // let, loop; over: the column
  bool down = false;    // loop
  ExprId a = 0, b = 0;  // let: value; loop: low, high; branch: condition; over: level; send, recv: peer
  std::vector<Statement> body, otherwise;

  bool reduce = false;
  bool has_lane = false;
  ExprId lane = 0;
  RegionList dst;                   // recv, copy
  std::vector<SourceNode> sources;  // send: one; recv reduce ... with: one; copy: all
};

struct Ast {
  Collective collective = Collective::allreduce;
  std::string name;
  std::vector<Expr> exprs;
  std::vector<Function> functions;
  uint32_t slots = 0;
  bool has_chunks = false, has_scratch = false, has_lanes = false;
  ExprId chunks = 0, scratch = 0, lanes = 0;
  std::vector<ExprId> requirements;
  std::vector<Statement> body;
};

// Slots of the names that every program knows.
enum : uint32_t { kSlotRank, kSlotRanks, kSlotRoot, kSlotInPlace, kSlotLevels, kSlotRooted, kFirstFreeSlot };

class ParsedProgram final : public Program {
 public:
  ParsedProgram(Ast ast, std::string file, std::string text)
      : ast_(std::move(ast)), file_(std::move(file)), text_(std::move(text)) {}

  Collective collective() const override { return ast_.collective; }
  const std::string& name() const override { return ast_.name; }
  const std::string& file() const override { return file_; }
  const std::string& text() const override { return text_; }
  bool supports(const Hierarchy& hierarchy) const override;
  const Ast& ast() const { return ast_; }

 private:
  Ast ast_;
  std::string file_, text_;
};

}  // namespace weft
