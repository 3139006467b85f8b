// Recursive descent over the tokens of a program; docs/algorithms.md has the grammar.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "program/ast.hpp"
#include "program/lexer.hpp"
#include "status/status.hpp"

namespace weft {

// The first error sticks, and moves the parser to the end of the text, where every loop stops by itself.
class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& file);
  Result<Ast> parse();

 private:
  struct Symbol {
    bool is_function = false;
    uint32_t index = 0;  // slot or function
    Scope scope = Scope::ranks;
  };
  // Names live until the end of the block that they were defined in.
  class Block {
   public:
    explicit Block(Parser& parser) : parser_(parser) { parser_.blocks_.emplace_back(); }
    ~Block() { parser_.blocks_.pop_back(); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

   private:
    Parser& parser_;
  };
  class Depth;

  // tokens
  const Token& peek(size_t ahead = 0) const;
  Token next();
  bool accept(std::string_view text);
  bool expect(std::string_view text, std::string_view why);
  bool done() const { return peek().kind == Token::Kind::end; }
  void fail(const Token& at, const std::string& reason);

  // names
  const Symbol* find(std::string_view name) const;
  uint32_t define(const Token& name, Scope scope);
  Token new_name(std::string_view what);

  // expressions, loosest binding first
  ExprId expression();
  ExprId binary(int level);
  ExprId unary();
  ExprId primary();
  ExprId named(const Token& name);
  std::vector<ExprId> call_arguments(const Token& name, size_t expected);
  ExprId make(const Token& at, Operator op, Scope scope, ExprId a = 0, ExprId b = 0, ExprId c = 0);
  Scope scope_of(ExprId id) const { return ast_.exprs[id].scope; }

  // statements
  void header();
  void attribute(const Token& name);
  std::vector<Statement> block_or_statement();
  std::optional<Statement> statement();
  std::optional<Statement> let();
  Statement loop();
  Statement branch();
  Statement over();
  Statement step();
  Statement send();
  Statement receive();
  Statement copy();
  void peer_and_lane(Statement& statement);
  void function(const Token& name);

  // regions
  bool at_region() const;
  size_t generator_ahead() const;
  RegionList regions();
  RegionNode region();
  RegionNode group();
  Generator generator();
  void source(Statement& statement);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::string file_;
  Status failure_;
  Ast ast_;
  std::vector<uint32_t> depths_;  // of each expression
  std::vector<std::unordered_map<std::string_view, Symbol>> blocks_;
  int depth_ = 0;
  bool in_step_ = false, in_over_ = false;
  bool saw_op_ = false;
};

}  // namespace weft
