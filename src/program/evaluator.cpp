#include "program/evaluator.hpp"

#include <algorithm>
#include <bit>

namespace weft {
namespace {

constexpr int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - static_cast<int64_t>(a % b != 0 && (a < 0) != (b < 0));
}

}  // namespace

Evaluator::Evaluator(const Ast& ast, const std::string& file, const Hierarchy& hierarchy, int rank, int root,
                     bool in_place)
    : ast_(ast),
      file_(file),
      hierarchy_(hierarchy),
      rank_(rank),
      root_(root),
      slots_(ast.slots, 0),
      budget_((1ULL << 20) + 512ULL * static_cast<uint64_t>(hierarchy.ranks())) {
  slots_[kSlotRank] = rank;
  slots_[kSlotRanks] = hierarchy.ranks();
  slots_[kSlotRoot] = root;
  slots_[kSlotInPlace] = in_place ? 1 : 0;
  slots_[kSlotLevels] = hierarchy.levels();
  slots_[kSlotRooted] = 1;
}

void Evaluator::fail(uint32_t line, uint32_t column, const std::string& reason) {
  if (!failure_.ok()) return;
  failure_ =
      error(weftInvalidArgument, "{}:{}:{}: {} (r={}, P={}, root={}{})", file_, line, column, reason, slots_[kSlotRank],
            slots_[kSlotRanks], slots_[kSlotRoot], slots_[kSlotInPlace] != 0 ? ", in place" : "");
}

bool Evaluator::spend(uint64_t work, uint32_t line, uint32_t column) {
  if (work > budget_) {
    fail(line, column, "the program takes too many steps for one rank: its work must not grow faster than P log P");
    return false;
  }
  budget_ -= work;
  return ok();
}

int64_t Evaluator::overflow(const Expr& expr) {
  fail(expr.line, expr.column, "the result does not fit 64 bits");
  return 0;
}

int64_t Evaluator::call(const Expr& expr) {
  const Function& function = ast_.functions[static_cast<size_t>(expr.value)];
  // All arguments first: an argument may call the same function.
  int64_t values[8] = {};
  for (size_t i = 0; i < expr.arguments.size(); ++i) values[i] = eval(expr.arguments[i]);
  for (size_t i = 0; i < expr.arguments.size(); ++i) slots_[function.parameters[i]] = values[i];
  return spend(1, expr.line, expr.column) ? eval(function.body) : 0;
}

int64_t Evaluator::eval(ExprId id) {
  const Expr& expr = ast_.exprs[id];
  switch (expr.op) {
    case Operator::number:
      return expr.value;
    case Operator::slot:
      return slots_[static_cast<size_t>(expr.value)];
    case Operator::call:
      return call(expr);
    case Operator::logical_and:
      return eval(expr.a) != 0 && eval(expr.b) != 0;
    case Operator::logical_or:
      return eval(expr.a) != 0 || eval(expr.b) != 0;
    case Operator::choose:
      return eval(expr.a) != 0 ? eval(expr.b) : eval(expr.c);
    case Operator::negate:
    case Operator::complement:
    case Operator::logical_not:
    case Operator::abs:
    case Operator::log2:
    case Operator::ceil_log2:
    case Operator::pow2floor:
    case Operator::pow2ceil:
    case Operator::lowbit:
    case Operator::is_pow2:
    case Operator::popcount:
      return unary(expr, eval(expr.a));
    case Operator::span:
    case Operator::tail:
    case Operator::at:
    case Operator::parts:
    case Operator::position:
      return topology(expr, eval(expr.a));
    case Operator::ring:
    case Operator::place:
      return around(expr, eval(expr.a));
    default: {
      const int64_t a = eval(expr.a);
      return binary(expr, a, eval(expr.b));
    }
  }
}

int64_t Evaluator::topology(const Expr& expr, int64_t argument) {
  const int64_t low = expr.op == Operator::tail ? -1 : 0;
  const int64_t high = expr.op == Operator::at ? hierarchy_.tail(-1) : hierarchy_.levels();
  if (argument < low || argument >= high) {
    fail(
        expr.line, expr.column,
        fmt::format("{} {}; legal are {} to {}", expr.op == Operator::at ? "piece" : "level", argument, low, high - 1));
    return 0;
  }
  const auto level = static_cast<int>(argument);
  switch (expr.op) {
    case Operator::span:
      return hierarchy_.span(level);
    case Operator::tail:
      return hierarchy_.tail(level);
    case Operator::at:
      return hierarchy_.at(argument, root_);
    case Operator::parts:
      return hierarchy_.parts(level, rank_);
    default:
      return hierarchy_.position(level, rank_, root_);
  }
}

// The order of rings: who is at a place, counted on and on, and where a rank is.
int64_t Evaluator::around(const Expr& expr, int64_t argument) {
  const int64_t ranks = hierarchy_.ranks();
  if (expr.op == Operator::ring)
    return hierarchy_.ring()[static_cast<size_t>(argument - floor_divide(argument, ranks) * ranks)];
  if (argument < 0 || argument >= ranks) {
    fail(expr.line, expr.column, fmt::format("the place of rank {}; legal are 0 to {}", argument, ranks - 1));
    return 0;
  }
  return hierarchy_.place(static_cast<int>(argument));
}

int64_t Evaluator::unary(const Expr& expr, int64_t a) {
  const auto bits = static_cast<uint64_t>(a);
  switch (expr.op) {
    case Operator::complement:
      return ~a;
    case Operator::logical_not:
      return a == 0;
    case Operator::lowbit:
      return static_cast<int64_t>(bits & (~bits + 1));
    case Operator::is_pow2:
      return a > 0 && std::has_single_bit(bits);
    case Operator::popcount:
      return std::popcount(bits);
    case Operator::negate:
      return a == INT64_MIN ? overflow(expr) : -a;
    case Operator::abs:
      return a == INT64_MIN ? overflow(expr) : std::abs(a);
    default:
      break;
  }
  if (a < 1) {
    fail(expr.line, expr.column, fmt::format("the logarithm of {}, which is not positive", a));
    return 0;
  }
  switch (expr.op) {
    case Operator::log2:
      return std::bit_width(bits) - 1;
    case Operator::ceil_log2:
      return std::bit_width(bits - 1);
    case Operator::pow2floor:
      return static_cast<int64_t>(std::bit_floor(bits));
    default:
      return bits > (1ULL << 62) ? overflow(expr) : static_cast<int64_t>(std::bit_ceil(bits));
  }
}

int64_t Evaluator::binary(const Expr& expr, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (expr.op) {
    case Operator::add:
      return __builtin_add_overflow(a, b, &result) ? overflow(expr) : result;
    case Operator::subtract:
      return __builtin_sub_overflow(a, b, &result) ? overflow(expr) : result;
    case Operator::multiply:
      return __builtin_mul_overflow(a, b, &result) ? overflow(expr) : result;
    case Operator::divide:
    case Operator::modulo:
      if (b == 0) {
        fail(expr.line, expr.column, "a division by zero");
        return 0;
      }
      if (b == -1) return expr.op == Operator::modulo ? 0 : (a == INT64_MIN ? overflow(expr) : -a);
      return expr.op == Operator::divide ? floor_divide(a, b) : a - floor_divide(a, b) * b;
    case Operator::shift_left:
    case Operator::shift_right:
      if (b < 0 || b > 62) {
        fail(expr.line, expr.column, fmt::format("a shift by {} bits; legal are 0 to 62", b));
        return 0;
      }
      if (expr.op == Operator::shift_right) return a >> b;
      return __builtin_mul_overflow(a, int64_t{1} << b, &result) ? overflow(expr) : result;
    case Operator::bit_and:
      return a & b;
    case Operator::bit_or:
      return a | b;
    case Operator::bit_xor:
      return a ^ b;
    case Operator::equal:
      return a == b;
    case Operator::not_equal:
      return a != b;
    case Operator::less:
      return a < b;
    case Operator::less_equal:
      return a <= b;
    case Operator::greater:
      return a > b;
    case Operator::greater_equal:
      return a >= b;
    case Operator::min:
      return std::min(a, b);
    case Operator::max:
      return std::max(a, b);
    default:
      return 0;
  }
}

}  // namespace weft
