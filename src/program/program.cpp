#include "program/program.hpp"

#include "program/ast.hpp"
#include "program/evaluator.hpp"
#include "program/lexer.hpp"
#include "program/parser.hpp"

namespace weft {

Result<std::shared_ptr<const Program>> Program::parse(std::string_view text, const std::string& file) {
  std::string kept(text);
  auto tokens = tokenize(kept, file);
  if (!tokens.ok()) return tokens.status();
  auto ast = Parser(std::move(*tokens), file).parse();
  if (!ast.ok()) return ast.status();
  return std::shared_ptr<const Program>(std::make_shared<ParsedProgram>(std::move(*ast), file, std::move(kept)));
}

bool ParsedProgram::supports(const Hierarchy& hierarchy) const {
  if (hierarchy.ranks() == 1) return true;
  Evaluator evaluator(ast_, file_, hierarchy, 0, 0, false);
  for (const Statement& statement : ast_.body) {
    if (statement.kind != Statement::Kind::let) break;
    if (ast_.exprs[statement.a].scope == Scope::ranks) evaluator.set(statement.slot, evaluator.eval(statement.a));
  }
  // What a definition could not be computed from matters only where a requirement uses it, and then its own
  // requirement, tested first, says no.
  for (const ExprId condition : ast_.requirements) {
    if (evaluator.eval(condition) == 0) return false;
  }
  return evaluator.ok();
}

}  // namespace weft
