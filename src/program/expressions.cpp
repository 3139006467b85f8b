// The expressions of the language: precedence climbing, and the functions that every program knows.
#include <algorithm>
#include <array>

#include "program/parser.hpp"

namespace weft {
namespace {

constexpr uint32_t kMaxDepth = 200;

struct BinaryOperator {
  std::string_view text;
  Operator op;
  int level;
};
// Comparisons bind looser than | ^ &, so that `x & d == 0` means what it says.
constexpr std::array<BinaryOperator, 18> kBinary = {{
    {"||", Operator::logical_or, 0},
    {"&&", Operator::logical_and, 1},
    {"==", Operator::equal, 2},
    {"!=", Operator::not_equal, 2},
    {"<", Operator::less, 2},
    {"<=", Operator::less_equal, 2},
    {">", Operator::greater, 2},
    {">=", Operator::greater_equal, 2},
    {"|", Operator::bit_or, 3},
    {"^", Operator::bit_xor, 4},
    {"&", Operator::bit_and, 5},
    {"<<", Operator::shift_left, 6},
    {">>", Operator::shift_right, 6},
    {"+", Operator::add, 7},
    {"-", Operator::subtract, 7},
    {"*", Operator::multiply, 8},
    {"/", Operator::divide, 8},
    {"%", Operator::modulo, 8},
}};
constexpr int kComparison = 2, kTightest = 8;

struct Builtin {
  std::string_view name;
  Operator op;
  size_t arguments;
  Scope scope = Scope::ranks;  // at least
};
constexpr std::array<Builtin, 17> kBuiltins = {{
    {"min", Operator::min, 2},
    {"max", Operator::max, 2},
    {"abs", Operator::abs, 1},
    {"log2", Operator::log2, 1},
    {"ceil_log2", Operator::ceil_log2, 1},
    {"pow2floor", Operator::pow2floor, 1},
    {"pow2ceil", Operator::pow2ceil, 1},
    {"lowbit", Operator::lowbit, 1},
    {"is_pow2", Operator::is_pow2, 1},
    {"popcount", Operator::popcount, 1},
    {"span", Operator::span, 1},
    {"tail", Operator::tail, 1},
    {"at", Operator::at, 1, Scope::root},
    {"parts", Operator::parts, 1, Scope::local},
    {"position", Operator::position, 1, Scope::local},
    {"ring", Operator::ring, 1},
    {"place", Operator::place, 1},
}};

}  // namespace

ExprId Parser::make(const Token& at, Operator op, Scope scope, ExprId a, ExprId b, ExprId c) {
  Expr expr;
  expr.op = op;
  expr.scope = scope;
  expr.line = at.line;
  expr.column = at.column;
  expr.a = a;
  expr.b = b;
  expr.c = c;
  uint32_t depth = 1;
  for (const ExprId operand : {a, b, c}) {
    if (operand < depths_.size()) depth = std::max(depth, depths_[operand] + 1);
  }
  // Operand 0 stands for "none" too; expression 0 is a leaf, so this cannot grow without end.
  if (depth > kMaxDepth) fail(at, "the expression is too long");
  ast_.exprs.push_back(std::move(expr));
  depths_.push_back(depth);
  return static_cast<ExprId>(ast_.exprs.size() - 1);
}

ExprId Parser::expression() {
  const Token at = peek();
  if (++depth_ > 100) fail(at, "this is nested too deeply");
  ExprId result = binary(0);
  if (failure_.ok() && accept("?")) {
    const ExprId first = expression();
    expect(":", "between the two values of '?'");
    const ExprId second = expression();
    if (failure_.ok()) {
      const Scope scope = std::max({scope_of(result), scope_of(first), scope_of(second)});
      result = make(at, Operator::choose, scope, result, first, second);
    }
  }
  --depth_;
  if (ast_.exprs.empty()) make(at, Operator::number, Scope::ranks);  // after an error: something to point at
  return result;
}

ExprId Parser::binary(int level) {
  if (level > kTightest) return unary();
  ExprId left = binary(level + 1);
  for (bool compared = false; failure_.ok();) {
    const Token token = peek();
    const auto* found = std::find_if(kBinary.begin(), kBinary.end(), [&](const BinaryOperator& candidate) {
      return candidate.level == level && token.kind == Token::Kind::symbol && candidate.text == token.text;
    });
    if (found == kBinary.end()) break;
    if (level == kComparison && compared) fail(token, "comparisons do not chain: join them with &&");
    compared = true;
    next();
    const ExprId right = binary(level + 1);
    if (failure_.ok()) left = make(token, found->op, std::max(scope_of(left), scope_of(right)), left, right);
  }
  return left;
}

ExprId Parser::unary() {
  const Token token = peek();
  const Operator op = token.is("-")   ? Operator::negate
                      : token.is("~") ? Operator::complement
                      : token.is("!") ? Operator::logical_not
                                      : Operator::number;
  if (op == Operator::number || token.kind != Token::Kind::symbol) return primary();
  next();
  if (++depth_ > 100) fail(token, "this is nested too deeply");
  const ExprId operand = unary();
  --depth_;
  return failure_.ok() ? make(token, op, scope_of(operand), operand) : 0;
}

ExprId Parser::primary() {
  const Token token = next();
  if (token.kind == Token::Kind::number) {
    const ExprId id = make(token, Operator::number, Scope::ranks);
    ast_.exprs[id].value = token.value;
    return id;
  }
  if (token.kind == Token::Kind::word) return named(token);
  if (token.is("(") && token.kind == Token::Kind::symbol) {
    const ExprId inner = expression();
    expect(")", "to close the parenthesis");
    return inner;
  }
  fail(token, fmt::format("expected a value, found {}", token.quoted()));
  return 0;
}

ExprId Parser::named(const Token& name) {
  const Symbol* symbol = find(name.text);
  if (symbol != nullptr && !symbol->is_function) {
    const ExprId id = make(name, Operator::slot, symbol->scope);
    ast_.exprs[id].value = symbol->index;
    return id;
  }
  if (symbol != nullptr) {
    const Symbol function = *symbol;
    std::vector<ExprId> arguments = call_arguments(name, ast_.functions[function.index].parameters.size());
    if (!failure_.ok()) return 0;
    Scope scope = function.scope;
    uint32_t depth = 0;
    for (const ExprId argument : arguments) {
      scope = std::max(scope, scope_of(argument));
      depth = std::max(depth, depths_[argument]);
    }
    const ExprId id = make(name, Operator::call, scope);
    ast_.exprs[id].value = function.index;
    ast_.exprs[id].arguments = std::move(arguments);
    depths_[id] = depth + 1;
    return id;
  }
  const auto* builtin = std::find_if(kBuiltins.begin(), kBuiltins.end(),
                                     [&](const Builtin& candidate) { return candidate.name == name.text; });
  if (name.is("in") || name.is("out") || name.is("scratch") || name.is("work")) {
    fail(name, fmt::format("expected a value, found the buffer '{}'", name.text));
    return 0;
  }
  if (builtin == kBuiltins.end()) {
    fail(name, fmt::format("'{}' is not defined here; every program knows r (my rank), P (ranks), root and inplace",
                           name.text));
    return 0;
  }
  const std::vector<ExprId> arguments = call_arguments(name, builtin->arguments);
  if (!failure_.ok()) return 0;
  const ExprId a = arguments[0], b = arguments.size() > 1 ? arguments[1] : 0;
  const Scope scope = std::max({builtin->scope, scope_of(a), arguments.size() > 1 ? scope_of(b) : Scope::ranks});
  return make(name, builtin->op, scope, a, b);
}

std::vector<ExprId> Parser::call_arguments(const Token& name, size_t expected) {
  std::vector<ExprId> arguments;
  expect("(", fmt::format("after the function '{}'", name.text));
  do {
    arguments.push_back(expression());
  } while (failure_.ok() && accept(","));
  expect(")", "after the arguments");
  if (failure_.ok() && arguments.size() != expected) {
    fail(name, fmt::format("'{}' takes {} argument{}, not {}", name.text, expected, expected == 1 ? "" : "s",
                           arguments.size()));
  }
  return arguments;
}

}  // namespace weft
