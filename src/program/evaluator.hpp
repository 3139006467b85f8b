// Evaluates a program's integer expressions. The first failure sticks: values after it are 0, and the caller asks ok()
// at its next statement.
#pragma once

#include <string>
#include <vector>

#include "program/ast.hpp"
#include "status/status.hpp"
#include "topology/hierarchy.hpp"

namespace weft {

class Evaluator {
 public:
  Evaluator(const Ast& ast, const std::string& file, const Hierarchy& hierarchy, int rank, int root, bool in_place);

  int64_t eval(ExprId id);
  int64_t get(uint32_t slot) const { return slots_[slot]; }
  void set(uint32_t slot, int64_t value) { slots_[slot] = value; }

  bool ok() const { return failure_.ok(); }
  const Status& failure() const { return failure_; }
  // Records "file:line:column: reason (r=1, P=4)" unless something failed before.
  void fail(uint32_t line, uint32_t column, const std::string& reason);
  // Counts work, and fails when a program does more than a rank of a sane algorithm ever would.
  bool spend(uint64_t work, uint32_t line, uint32_t column);

 private:
  int64_t binary(const Expr& expr, int64_t a, int64_t b);
  int64_t unary(const Expr& expr, int64_t a);
  int64_t call(const Expr& expr);
  int64_t topology(const Expr& expr, int64_t argument);
  int64_t around(const Expr& expr, int64_t argument);
  int64_t overflow(const Expr& expr);

  const Ast& ast_;
  const std::string file_;
  const Hierarchy& hierarchy_;
  const int rank_, root_;
  std::vector<int64_t> slots_;
  uint64_t budget_;
  Status failure_;
};

}  // namespace weft
