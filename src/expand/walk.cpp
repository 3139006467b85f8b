#include "expand/walk.hpp"

#include <algorithm>
#include <iterator>

namespace weft {
namespace {

constexpr int64_t kMaxChunks = 1 << 24;
constexpr int64_t kMaxLanes = 1024;
constexpr size_t kMaxSources = 65535;

class Walker {
 public:
  Walker(const ParsedProgram& program, const Shape& shape, const Hierarchy& hierarchy, int rank, int root,
         Evaluator& evaluator)
      : ast_(program.ast()), shape_(shape), hierarchy_(hierarchy), rank_(rank), root_(root), evaluator_(evaluator) {}

  RawOps run() {
    attributes();
    if (evaluator_.ok()) run(ast_.body);
    // The columns of an `over` were walked one after the other, and happen at once.
    std::stable_sort(raw_.ops.begin(), raw_.ops.end(), [](const RawOp& a, const RawOp& b) { return a.step < b.step; });
    raw_.steps = step_;
    return std::move(raw_);
  }

 private:
  void attributes();
  int64_t attribute(bool given, ExprId id, int64_t standard, int64_t lowest, int64_t highest, const char* name);

  void run(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) {
      if (!evaluator_.spend(1, statement.line, statement.column)) return;
      run(statement);
    }
  }
  void run(const Statement& statement);
  void loop(const Statement& statement);
  void branch(const Statement& statement);
  void over(const Statement& statement);
  bool is_level(int64_t level, const Statement& statement);
  int peer(const Statement& statement);
  void operation(const Statement& statement);

  // How many steps statements take that this rank does not run. Their names that are local are not known here, and by
  // the parser's rules do not matter.
  uint32_t count(const std::vector<Statement>& statements);
  uint32_t count(const Statement& statement);
  uint32_t count_over(const Statement& statement);

  void append(const RegionList& list);
  void append(const RegionNode& node);
  void append_chunk(const RegionNode& node, int64_t index);
  template <typename Body>
  void generate(const Generator& generator, uint32_t line, uint32_t column, Body body);
  // Appends a list of chunks as an operand of `op`, and checks that it is as long as the others.
  void operand(RawOp& op, const RegionList& list);

  const Ast& ast_;
  const Shape& shape_;
  const Hierarchy& hierarchy_;
  const int rank_, root_;
  Evaluator& evaluator_;
  RawOps raw_;
  uint32_t step_ = 0;
  bool in_step_ = false;
  // Inside an `over`.
  int level_ = -1;
  int64_t column_ = 0;
};

int64_t Walker::attribute(bool given, ExprId id, int64_t standard, int64_t lowest, int64_t highest, const char* name) {
  if (!given) return standard;
  const int64_t value = evaluator_.eval(id);
  if (value < lowest || value > highest) {
    const Expr& at = ast_.exprs[id];
    evaluator_.fail(at.line, at.column, fmt::format("{} is {}; legal are {} to {}", name, value, lowest, highest));
    return lowest;
  }
  return value;
}

void Walker::attributes() {
  for (const Statement& statement : ast_.body) {
    if (statement.kind != Statement::Kind::let) break;
    run(statement);
  }
  ChunkSpace& space = raw_.space;
  const auto blocks = static_cast<int64_t>(shape_.blocks());
  const int64_t chunks = attribute(ast_.has_chunks, ast_.chunks, 1, 1, kMaxChunks / blocks, "chunks");
  space.chunks_per_block = static_cast<uint32_t>(chunks);
  space.in = shape_.in_blocks * space.chunks_per_block;
  space.out = shape_.out_blocks * space.chunks_per_block;
  space.work = space.in;
  space.scratch = static_cast<uint32_t>(attribute(ast_.has_scratch, ast_.scratch, 0, 0, kMaxChunks, "scratch"));
  raw_.lanes = static_cast<uint16_t>(attribute(ast_.has_lanes, ast_.lanes, 1, 1, kMaxLanes, "lanes"));
}

void Walker::run(const Statement& statement) {
  switch (statement.kind) {
    case Statement::Kind::let:
      evaluator_.set(statement.slot, evaluator_.eval(statement.a));
      break;
    case Statement::Kind::loop:
      loop(statement);
      break;
    case Statement::Kind::branch:
      branch(statement);
      break;
    case Statement::Kind::over:
      over(statement);
      break;
    case Statement::Kind::step:
      in_step_ = true;
      run(statement.body);
      in_step_ = false;
      ++step_;
      break;
    case Statement::Kind::send:
    case Statement::Kind::recv:
    case Statement::Kind::copy:
      operation(statement);
      if (!in_step_) ++step_;
      break;
  }
}

void Walker::loop(const Statement& statement) {
  const int64_t low = evaluator_.eval(statement.a), high = evaluator_.eval(statement.b);
  for (int64_t i = low; i < high && evaluator_.spend(1, statement.line, statement.column); ++i) {
    evaluator_.set(statement.slot, statement.down ? high - 1 - (i - low) : i);
    run(statement.body);
  }
}

// Every rank leaves the branch at the same step: the one where the longer side ends, if ranks may differ in the side
// they take.
void Walker::branch(const Statement& statement) {
  const bool taken = evaluator_.eval(statement.a) != 0;
  if (!evaluator_.ok()) return;
  const uint32_t begin = step_;
  run(taken ? statement.body : statement.otherwise);
  if (statement.makes_steps && ast_.exprs[statement.a].scope == Scope::local) {
    step_ = std::max(step_, begin + count(taken ? statement.otherwise : statement.body));
  }
}

bool Walker::is_level(int64_t level, const Statement& statement) {
  if (level >= 0 && level < hierarchy_.levels()) return evaluator_.ok();
  evaluator_.fail(statement.line, statement.column,
                  fmt::format("over level {}; legal are 0 to {}", level, hierarchy_.levels() - 1));
  return false;
}

// The parts of this rank's group at a level, each represented by the owner of one prefix of pieces: a column. A rank
// takes part in the columns of the prefixes that it owns. All happen at once, and all ranks leave after as many steps
// as the largest group takes.
void Walker::over(const Statement& statement) {
  const int64_t level = evaluator_.eval(statement.a);
  if (!is_level(level, statement)) return;
  const uint32_t begin = step_, steps = statement.makes_steps ? count_over(statement) : 0;
  constexpr uint32_t kChanged[] = {kSlotRank, kSlotRanks, kSlotRoot, kSlotRooted};
  int64_t before[std::size(kChanged)];
  for (size_t i = 0; i < std::size(kChanged); ++i) before[i] = evaluator_.get(kChanged[i]);
  level_ = static_cast<int>(level);
  const int position = hierarchy_.position(level_, rank_, root_);
  const int64_t inside[] = {position, hierarchy_.parts(level_, rank_), 0,
                            hierarchy_.group(level_, rank_) == hierarchy_.group(level_, root_)};
  const int64_t columns = hierarchy_.tail(-1) / hierarchy_.tail(level_ - 1);
  for (column_ = 0; column_ < columns && evaluator_.spend(1, statement.line, statement.column); ++column_) {
    if (hierarchy_.owner(level_, rank_, position, column_, root_) != rank_) continue;
    for (size_t i = 0; i < std::size(kChanged); ++i) evaluator_.set(kChanged[i], inside[i]);
    evaluator_.set(statement.slot, column_);
    step_ = begin;
    run(statement.body);
  }
  for (size_t i = 0; i < std::size(kChanged); ++i) evaluator_.set(kChanged[i], before[i]);
  level_ = -1;
  step_ = begin + steps;
}

uint32_t Walker::count_over(const Statement& statement) {
  const int64_t level = evaluator_.eval(statement.a);
  if (!is_level(level, statement)) return 0;
  const int64_t ranks = evaluator_.get(kSlotRanks);
  uint32_t steps = 0;
  for (const int size : hierarchy_.sizes(static_cast<int>(level))) {
    evaluator_.set(kSlotRanks, size);
    steps = std::max(steps, count(statement.body));
  }
  evaluator_.set(kSlotRanks, ranks);
  return steps;
}

uint32_t Walker::count(const std::vector<Statement>& statements) {
  uint32_t steps = 0;
  for (const Statement& statement : statements) {
    if (!evaluator_.spend(1, statement.line, statement.column)) break;
    steps += count(statement);
  }
  return steps;
}

uint32_t Walker::count(const Statement& statement) {
  const auto& exprs = ast_.exprs;
  if (statement.kind == Statement::Kind::let) {
    if (exprs[statement.a].scope != Scope::local) evaluator_.set(statement.slot, evaluator_.eval(statement.a));
    return 0;
  }
  if (!statement.makes_steps) return 0;
  if (statement.kind == Statement::Kind::branch) {
    if (exprs[statement.a].scope == Scope::local) return std::max(count(statement.body), count(statement.otherwise));
    return count(evaluator_.eval(statement.a) != 0 ? statement.body : statement.otherwise);
  }
  if (statement.kind == Statement::Kind::over) return count_over(statement);
  if (statement.kind != Statement::Kind::loop) return 1;
  uint32_t steps = 0;
  const int64_t low = evaluator_.eval(statement.a), high = evaluator_.eval(statement.b);
  for (int64_t i = low; i < high && evaluator_.spend(1, statement.line, statement.column); ++i) {
    evaluator_.set(statement.slot, statement.down ? high - 1 - (i - low) : i);
    steps += count(statement.body);
  }
  return steps;
}

// By rank: inside an `over`, programs number the parts.
int Walker::peer(const Statement& statement) {
  const int64_t peer = evaluator_.eval(statement.a), all = evaluator_.get(kSlotRanks);
  if (peer < 0 || peer >= all || peer == evaluator_.get(kSlotRank)) {
    evaluator_.fail(statement.line, statement.column,
                    fmt::format("the peer is {}; legal are the ranks 0 to {} but this one", peer, all - 1));
    return 0;
  }
  const auto number = static_cast<int>(peer);
  return level_ < 0 ? number : hierarchy_.owner(level_, rank_, number, column_, root_);
}

void Walker::operation(const Statement& statement) {
  RawOp op;
  op.verb = statement.kind == Statement::Kind::send   ? Verb::send
            : statement.kind == Statement::Kind::recv ? Verb::recv
                                                      : Verb::copy;
  op.reduce = statement.reduce;
  op.step = step_;
  op.begin = raw_.chunks.size();
  op.line = statement.line;
  op.column = statement.column;
  if (op.verb != Verb::copy) {
    op.peer = peer(statement);
    const int64_t lane = statement.has_lane ? evaluator_.eval(statement.lane) : 0;
    if (lane < 0 || lane >= raw_.lanes) {
      evaluator_.fail(op.line, op.column, fmt::format("the lane is {}, of {} lanes", lane, raw_.lanes));
    }
    op.lane = static_cast<uint16_t>(lane);
  }
  if (op.has_dst()) operand(op, statement.dst);
  for (const SourceNode& source : statement.sources) {
    if (!source.generated) {
      operand(op, source.regions);
    } else {
      generate(source.generator, op.line, op.column, [&] { operand(op, source.regions); });
    }
  }
  // `recv reduce q out[0]` is short for `recv reduce q out[0] with out[0]`.
  if (op.verb == Verb::recv && op.reduce && statement.sources.empty()) operand(op, statement.dst);
  if (!evaluator_.ok()) return;
  if (op.lists - (op.has_dst() ? 1 : 0) > kMaxSources) {
    evaluator_.fail(op.line, op.column, fmt::format("{} sources are more than {}", op.lists - 1, kMaxSources));
  }
  if (op.verb == Verb::copy && op.sources() == 0) evaluator_.fail(op.line, op.column, "a copy without a source");
  if (op.length == 0) {
    raw_.chunks.resize(op.begin);
    return;
  }
  raw_.ops.push_back(op);
}

void Walker::operand(RawOp& op, const RegionList& list) {
  const size_t before = raw_.chunks.size();
  append(list);
  const size_t length = raw_.chunks.size() - before;
  if (op.lists == 0) {
    op.length = static_cast<uint32_t>(length);
  } else if (length != op.length && evaluator_.ok()) {
    evaluator_.fail(op.line, op.column,
                    fmt::format("the operands of one operation have {} and {} chunks", op.length, length));
  }
  ++op.lists;
}

template <typename Body>
void Walker::generate(const Generator& generator, uint32_t line, uint32_t column, Body body) {
  const int64_t low = evaluator_.eval(generator.low), high = evaluator_.eval(generator.high);
  for (int64_t i = low; i < high && evaluator_.spend(1, line, column); ++i) {
    evaluator_.set(generator.slot, i);
    if (!generator.has_condition || evaluator_.eval(generator.condition) != 0) body();
  }
}

void Walker::append(const RegionList& list) {
  for (const RegionNode& node : list) {
    if (!evaluator_.ok()) return;
    append(node);
  }
}

void Walker::append(const RegionNode& node) {
  switch (node.kind) {
    case RegionNode::Kind::group:
      if (node.generated) {
        generate(node.generator, node.line, node.column, [&] { append(node.first); });
      } else {
        append(node.first);
      }
      return;
    case RegionNode::Kind::choice:
      append(evaluator_.eval(node.a) != 0 ? node.first : node.second);
      return;
    case RegionNode::Kind::one:
      append_chunk(node, evaluator_.eval(node.a));
      return;
    default:
      break;
  }
  const int64_t first = evaluator_.eval(node.a), second = evaluator_.eval(node.b);
  const auto size = static_cast<int64_t>(raw_.space.size(node.space));
  if (node.kind == RegionNode::Kind::range) {
    for (int64_t i = first; i < second && evaluator_.spend(1, node.line, node.column); ++i) append_chunk(node, i);
    return;
  }
  if (second < 0 || second > size) {
    evaluator_.fail(node.line, node.column,
                    fmt::format("{} chunks of {}, which has {}", second, name_of(node.space), size));
    return;
  }
  for (int64_t i = 0; i < second && evaluator_.spend(1, node.line, node.column); ++i) {
    append_chunk(node, ((first % size) + i + size) % size);
  }
}

void Walker::append_chunk(const RegionNode& node, int64_t index) {
  const uint32_t size = raw_.space.size(node.space);
  if (!evaluator_.ok()) return;
  if (size == 0) {
    evaluator_.fail(node.line, node.column, "the program has no scratch; 'scratch=' says how many chunks of it");
    return;
  }
  if (index < 0 || index >= static_cast<int64_t>(size)) {
    evaluator_.fail(node.line, node.column,
                    fmt::format("{}[{}] is outside the {} chunk{} of {}", name_of(node.space), index, size,
                                size == 1 ? "" : "s", name_of(node.space)));
    return;
  }
  raw_.chunks.push_back(raw_.space.first(node.space) + static_cast<uint32_t>(index));
}

}  // namespace

RawOps walk(const ParsedProgram& program, const Shape& shape, const Hierarchy& hierarchy, int rank, int root,
            Evaluator& evaluator) {
  return Walker(program, shape, hierarchy, rank, root, evaluator).run();
}

}  // namespace weft
