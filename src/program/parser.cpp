#include "program/parser.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "plan/shape.hpp"

namespace weft {
namespace {

constexpr int kMaxNesting = 100;

constexpr std::array<std::string_view, 25> kReserved = {
    "for",  "in",    "down",   "if",       "else",   "step",   "send",     "recv",    "reduce",
    "copy", "from",  "with",   "out",      "work",   "lane",   "let",      "scratch", "over",
    "code", "lanes", "chunks", "requires", "encode", "decode", "replicate"};

bool is_reserved(std::string_view word) {
  return std::find(kReserved.begin(), kReserved.end(), word) != kReserved.end();
}

bool any_makes_steps(const std::vector<Statement>& statements) {
  return std::any_of(statements.begin(), statements.end(), [](const Statement& s) { return s.makes_steps; });
}

}  // namespace

const char* name_of(Space space) {
  constexpr std::array<const char*, 4> kNames = {"in", "out", "scratch", "work"};
  return kNames.at(static_cast<size_t>(space));
}

// Guards the recursion of statements and regions.
class Parser::Depth {
 public:
  explicit Depth(Parser& parser) : parser_(parser) {
    if (++parser_.depth_ > kMaxNesting) parser_.fail(parser_.peek(), "this is nested too deeply");
  }
  ~Depth() { --parser_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Parser& parser_;
};

Parser::Parser(std::vector<Token> tokens, const std::string& file) : tokens_(std::move(tokens)), file_(file) {
  blocks_.emplace_back();
  blocks_.back()["r"] = {false, kSlotRank, Scope::local};
  blocks_.back()["P"] = {false, kSlotRanks, Scope::ranks};
  blocks_.back()["root"] = {false, kSlotRoot, Scope::root};
  blocks_.back()["inplace"] = {false, kSlotInPlace, Scope::local};
  blocks_.back()["levels"] = {false, kSlotLevels, Scope::ranks};
  blocks_.back()["rooted"] = {false, kSlotRooted, Scope::local};
  ast_.slots = kFirstFreeSlot;
}

const Token& Parser::peek(size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }

Token Parser::next() {
  const Token token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::accept(std::string_view text) {
  if (done() || !peek().is(text)) return false;
  next();
  return true;
}

bool Parser::expect(std::string_view text, std::string_view why) {
  if (accept(text)) return true;
  fail(peek(), fmt::format("expected '{}' {}, found {}", text, why, peek().quoted()));
  return false;
}

void Parser::fail(const Token& at, const std::string& reason) {
  if (failure_.ok()) {
    failure_ = error(weftInvalidArgument, "{}:{}:{}: {}", file_, at.line, at.column, reason);
  }
  at_ = tokens_.size() - 1;
}

const Parser::Symbol* Parser::find(std::string_view name) const {
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    if (const auto found = block->find(name); found != block->end()) return &found->second;
  }
  return nullptr;
}

Token Parser::new_name(std::string_view what) {
  const Token name = next();
  if (name.kind != Token::Kind::word) {
    fail(name, fmt::format("expected the name of {}, found {}", what, name.quoted()));
  } else if (is_reserved(name.text)) {
    fail(name, fmt::format("'{}' is a word of the language and cannot name {}", name.text, what));
  } else if (const auto& outermost = blocks_.front(); outermost.contains(name.text) &&
                                                      outermost.at(name.text).index < kFirstFreeSlot &&
                                                      !outermost.at(name.text).is_function) {
    fail(name, fmt::format("'{}' has a meaning in every program and cannot name {}", name.text, what));
  }
  return name;
}

uint32_t Parser::define(const Token& name, Scope scope) {
  blocks_.back()[name.text] = {false, ast_.slots, scope};
  return ast_.slots++;
}

Result<Ast> Parser::parse() {
  header();
  while (!done()) {
    const Token& token = peek();
    if (token.is("chunks") || token.is("scratch") || token.is("lanes") || token.is("requires")) {
      attribute(next());
    } else if (auto parsed = statement()) {
      saw_op_ |= parsed->makes_steps;
      ast_.body.push_back(std::move(*parsed));
    }
  }
  if (!failure_.ok()) return failure_;
  return std::move(ast_);
}

void Parser::header() {
  const Token collective = next();
  const auto known = collective_of(collective.text);
  if (collective.kind != Token::Kind::word || !known || *known == Collective::sendrecv) {
    fail(collective, fmt::format("a program begins with its collective (allreduce, broadcast, ...), found {}",
                                 collective.quoted()));
    return;
  }
  ast_.collective = *known;
  const Token name = next();
  if (name.kind != Token::Kind::word || is_reserved(name.text)) {
    fail(name, fmt::format("expected the algorithm's name after '{}', found {}", collective.text, name.quoted()));
  }
  ast_.name = std::string(name.text);
}

void Parser::attribute(const Token& name) {
  if (saw_op_) {
    fail(name, fmt::format("'{}' must stand before the first operation", name.text));
    return;
  }
  if (name.is("requires")) {
    const ExprId condition = expression();
    if (failure_.ok() && scope_of(condition) != Scope::ranks) fail(name, "'requires' may depend on P only");
    ast_.requirements.push_back(condition);
    return;
  }
  bool& given = name.is("chunks") ? ast_.has_chunks : name.is("scratch") ? ast_.has_scratch : ast_.has_lanes;
  ExprId& value = name.is("chunks") ? ast_.chunks : name.is("scratch") ? ast_.scratch : ast_.lanes;
  if (std::exchange(given, true)) fail(name, fmt::format("'{}' is given twice", name.text));
  expect("=", fmt::format("after '{}'", name.text));
  value = expression();
  if (failure_.ok() && !name.is("scratch") && scope_of(value) == Scope::local) {
    fail(name, fmt::format("'{}' must be the same on all ranks, so it cannot depend on r", name.text));
  }
}

std::vector<Statement> Parser::block_or_statement() {
  std::vector<Statement> statements;
  const Block block(*this);
  const uint32_t line = peek().line;
  if (!accept("{")) {
    if (auto parsed = statement()) statements.push_back(std::move(*parsed));
    return statements;
  }
  while (!done() && !peek().is("}")) {
    if (auto parsed = statement()) statements.push_back(std::move(*parsed));
  }
  expect("}", fmt::format("to close the block of line {}", line));
  return statements;
}

// Nothing where the statement leaves no trace (the definition of a function) or there was an error.
std::optional<Statement> Parser::statement() {
  const Depth depth(*this);
  const Token token = next();
  std::optional<Statement> parsed;
  if (token.is("let")) {
    parsed = let();
  } else if (token.is("for")) {
    parsed = loop();
  } else if (token.is("if")) {
    parsed = branch();
  } else if (token.is("over")) {
    if (in_step_ || in_over_)
      fail(token, fmt::format("an 'over' cannot stand inside {}", in_step_ ? "a step" : "an 'over'"));
    parsed = over();
  } else if (token.is("step")) {
    if (in_step_) fail(token, "a step cannot stand inside a step");
    parsed = step();
  } else if (token.is("send")) {
    parsed = send();
  } else if (token.is("recv")) {
    parsed = receive();
  } else if (token.is("copy")) {
    parsed = copy();
  } else if (token.is("code") || token.is("encode") || token.is("decode") || token.is("replicate")) {
    fail(token, fmt::format("'{}' is reserved for a later version of the language", token.text));
  } else if (token.is(";")) {
    fail(token, "statements follow each other without ';'");
  } else if (token.is("}")) {
    fail(token, "there is no block for this '}' to close");
  } else {
    fail(token,
         fmt::format("expected a statement (let, for, if, over, step, send, recv or copy), found {}", token.quoted()));
  }
  if (!failure_.ok()) return std::nullopt;
  if (parsed) {
    parsed->line = token.line;
    parsed->column = token.column;
  }
  return parsed;
}

std::optional<Statement> Parser::let() {
  const Token name = new_name("a value");
  if (accept("(")) {
    function(name);
    return std::nullopt;
  }
  expect("=", "after the name");
  Statement statement;
  statement.kind = Statement::Kind::let;
  statement.a = expression();
  if (!failure_.ok()) return std::nullopt;
  statement.slot = define(name, scope_of(statement.a));
  return statement;
}

void Parser::function(const Token& name) {
  Function function;
  ExprId body = 0;
  {
    const Block block(*this);
    do {
      function.parameters.push_back(define(new_name("a parameter"), Scope::ranks));
    } while (accept(","));
    expect(")", "after the parameters");
    expect("=", "before the body of the function");
    body = expression();
  }
  if (function.parameters.size() > 8) fail(name, "a function has 8 parameters at most");
  if (ast_.functions.size() >= 64) fail(name, "a program has 64 functions at most");
  if (!failure_.ok()) return;
  function.body = body;
  blocks_.back()[name.text] = {true, static_cast<uint32_t>(ast_.functions.size()), scope_of(body)};
  ast_.functions.push_back(std::move(function));
}

Statement Parser::loop() {
  Statement statement;
  statement.kind = Statement::Kind::loop;
  const Token at = peek();
  const Token name = new_name("a loop's variable");
  statement.down = accept("down");
  if (!statement.down) expect("in", "or 'down' after the loop's variable");
  statement.a = expression();
  expect("..", "between the bounds");
  statement.b = expression();
  if (!failure_.ok()) return statement;
  const Scope scope = std::max(scope_of(statement.a), scope_of(statement.b));
  const Block block(*this);
  statement.slot = define(name, scope);
  statement.body = block_or_statement();
  statement.makes_steps = any_makes_steps(statement.body);
  if (statement.makes_steps && scope == Scope::local) {
    fail(at,
         "the bounds of a loop over steps cannot depend on r or inplace, because every rank must count the same steps: "
         "loop to a bound made of P and put an 'if' inside, or put the loop into a step");
  }
  return statement;
}

Statement Parser::branch() {
  Statement statement;
  statement.kind = Statement::Kind::branch;
  statement.a = expression();
  if (peek().is("=")) fail(peek(), "'=' defines; to compare, write '=='");
  statement.body = block_or_statement();
  if (accept("else")) statement.otherwise = block_or_statement();
  statement.makes_steps = any_makes_steps(statement.body) || any_makes_steps(statement.otherwise);
  return statement;
}

// `over LEVEL [as COLUMN] BODY`
Statement Parser::over() {
  Statement statement;
  statement.kind = Statement::Kind::over;
  const Token at = peek();
  statement.a = expression();
  if (failure_.ok() && scope_of(statement.a) == Scope::local) {
    fail(at, "the level must be the same on all ranks, so it cannot depend on r or inplace");
  }
  const Block block(*this);
  statement.slot = accept("as") ? define(new_name("a column"), Scope::local) : ast_.slots++;
  in_over_ = true;
  statement.body = block_or_statement();
  in_over_ = false;
  statement.makes_steps = any_makes_steps(statement.body);
  return statement;
}

Statement Parser::step() {
  Statement statement;
  statement.kind = Statement::Kind::step;
  statement.makes_steps = true;
  in_step_ = true;
  statement.body = block_or_statement();
  in_step_ = false;
  return statement;
}

void Parser::peer_and_lane(Statement& statement) {
  statement.a = expression();
  if (accept("lane")) {
    statement.has_lane = true;
    statement.lane = expression();
  }
}

Statement Parser::send() {
  Statement statement;
  statement.kind = Statement::Kind::send;
  statement.makes_steps = !in_step_;
  peer_and_lane(statement);
  statement.sources.push_back({regions(), false, {}});
  return statement;
}

Statement Parser::receive() {
  Statement statement;
  statement.kind = Statement::Kind::recv;
  statement.makes_steps = !in_step_;
  statement.reduce = accept("reduce");
  peer_and_lane(statement);
  statement.dst = regions();
  if (statement.reduce && accept("with")) statement.sources.push_back({regions(), false, {}});
  return statement;
}

Statement Parser::copy() {
  Statement statement;
  statement.kind = Statement::Kind::copy;
  statement.makes_steps = !in_step_;
  const Token at = peek();
  statement.reduce = accept("reduce");
  statement.dst = regions();
  expect("from", "after what is copied to");
  source(statement);
  while (accept(",")) source(statement);
  if (!statement.reduce && (statement.sources.size() > 1 || (failure_.ok() && statement.sources[0].generated))) {
    fail(at, "a copy has one source; write 'copy reduce' to combine several");
  }
  return statement;
}

// How far ahead the `for` of the bracket that was just opened stands; 0 when it has none.
size_t Parser::generator_ahead() const {
  int nesting = 1;
  for (size_t ahead = 0; peek(ahead).kind != Token::Kind::end; ++ahead) {
    if (peek(ahead).is("(") || peek(ahead).is("[")) ++nesting;
    if (peek(ahead).is(")") || peek(ahead).is("]")) --nesting;
    if (nesting == 0) return 0;
    if (nesting == 1 && peek(ahead).is("for")) return ahead;
  }
  return 0;
}

// One source, or `(regions for i in a..b)`: a source for each i.
void Parser::source(Statement& statement) {
  const Depth depth(*this);
  SourceNode source;
  if (!accept("(")) {
    source.regions = regions();
    statement.sources.push_back(std::move(source));
    return;
  }
  // The variable stands behind the regions that use it, so it is defined by looking ahead.
  const size_t ahead = generator_ahead();
  if (ahead == 0) {
    fail(peek(), "expected 'for' inside the parentheses: (regions for i in a..b)");
    return;
  }
  const Block block(*this);
  const size_t body = at_;
  at_ += ahead + 1;
  source.generated = true;
  source.generator = generator();
  const size_t behind = at_;
  if (!failure_.ok()) return;
  at_ = body;
  source.regions = regions();
  if (failure_.ok() && !peek().is("for")) fail(peek(), fmt::format("expected 'for', found {}", peek().quoted()));
  if (!failure_.ok()) return;
  at_ = behind;
  expect(")", "after the sources");
  statement.sources.push_back(std::move(source));
}

bool Parser::at_region() const {
  const Token& token = peek();
  if (token.is("scratch")) return !peek(1).is("=");  // the attribute
  return token.is("in") || token.is("out") || token.is("work") || token.is("[");
}

RegionList Parser::regions() {
  RegionList list;
  if (!at_region()) {
    fail(peek(), fmt::format("expected a region such as out[0], found {}", peek().quoted()));
    return list;
  }
  while (failure_.ok() && at_region()) list.push_back(region());
  return list;
}

RegionNode Parser::region() {
  const Depth depth(*this);
  if (peek().is("[")) return group();
  const Token token = next();
  RegionNode node;
  node.line = token.line;
  node.column = token.column;
  node.space = token.is("in")     ? Space::in
               : token.is("out")  ? Space::out
               : token.is("work") ? Space::work
                                  : Space::scratch;
  expect("[", fmt::format("after '{}'", token.text));
  node.a = expression();
  if (accept("..")) {
    node.kind = RegionNode::Kind::range;
    node.b = expression();
  } else if (accept("+:")) {
    node.kind = RegionNode::Kind::wrapped;
    node.b = expression();
  }
  expect("]", "after the index");
  return node;
}

// `[regions]`, `[condition ? regions : regions]`, either with a generator behind it.
RegionNode Parser::group() {
  RegionNode node;
  const Token open = next();
  node.kind = RegionNode::Kind::group;
  node.line = open.line;
  node.column = open.column;

  const Block block(*this);
  const size_t ahead = generator_ahead();
  size_t behind = 0;
  if (ahead != 0) {
    const size_t body = at_;
    at_ += ahead + 1;
    node.generated = true;
    node.generator = generator();
    behind = at_;
    if (!failure_.ok()) return node;
    at_ = body;
  }
  if (at_region()) {
    node.first = regions();
  } else {
    RegionNode choice;
    choice.kind = RegionNode::Kind::choice;
    choice.line = open.line;
    choice.column = open.column;
    choice.a = binary(0);
    expect("?", "after the condition");
    choice.first = regions();
    expect(":", "between the two choices");
    choice.second = regions();
    node.first.push_back(std::move(choice));
  }
  if (!failure_.ok()) return node;
  if (node.generated) {
    if (!peek().is("for")) {
      fail(peek(), fmt::format("expected 'for', found {}", peek().quoted()));
      return node;
    }
    at_ = behind;
  }
  expect("]", "after the regions");
  return node;
}

// After `for`: `i in a..b [if condition]`.
Generator Parser::generator() {
  Generator generator;
  const Token name = new_name("a variable");
  expect("in", "after the variable");
  generator.low = expression();
  expect("..", "between the bounds");
  generator.high = expression();
  if (!failure_.ok()) return generator;
  generator.slot = define(name, Scope::local);
  if (accept("if")) {
    generator.has_condition = true;
    generator.condition = expression();
  }
  return generator;
}

}  // namespace weft
