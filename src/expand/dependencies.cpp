#include "expand/dependencies.hpp"

#include <algorithm>
#include <string>

namespace weft {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

std::string describe(const Place& place) {
  constexpr std::string_view kNames[] = {"in", "out", "scratch"};
  return fmt::format("{}[{}]", kNames[static_cast<size_t>(place.buffer)], place.index);
}

// What the current step has done to some bytes. An operation may write what it reads itself, chunk for chunk (dst is
// one of the sources), if nobody else reads it.
struct Use {
  uint32_t read_step = kNone, written_step = kNone;
  uint32_t reader = 0, position = 0;
  bool several = false;
};

}  // namespace

void check_hygiene(Resolved& resolved, Evaluator& evaluator) {
  RawOps& raw = resolved.raw;
  std::vector<Use> uses(resolved.storages);
  for (size_t begin = 0, end = 0; begin < raw.ops.size(); begin = end) {
    const uint32_t step = raw.ops[begin].step;
    while (end < raw.ops.size() && raw.ops[end].step == step) ++end;
    for (size_t i = begin; i < end; ++i) {
      const RawOp& op = raw.ops[i];
      for (uint32_t s = 0; s < op.sources(); ++s) {
        for (uint32_t j = 0; j < op.length; ++j) {
          Use& use = uses[resolved.storage[raw.source(op, s)[j]]];
          use.several = use.read_step == step && (use.several || use.reader != i || use.position != j);
          use.read_step = step;
          use.reader = static_cast<uint32_t>(i);
          use.position = j;
        }
      }
    }
    for (size_t i = begin; i < end; ++i) {
      const RawOp& op = raw.ops[i];
      for (uint32_t j = 0; op.has_dst() && j < op.length; ++j) {
        const ChunkId dst = raw.dst(op)[j];
        Use& use = uses[resolved.storage[dst]];
        const bool own = !use.several && use.reader == i && use.position == j;
        const bool read = use.read_step == step && !own;
        if (read || use.written_step == step) {
          evaluator.fail(op.line, op.column,
                         fmt::format("step {} {} {}", step, read ? "both reads and writes" : "writes twice to",
                                     describe(resolved.places[dst])));
          return;
        }
        use.written_step = step;
      }
    }
  }
}

void add_dependencies(Resolved& resolved, Plan& plan) {
  RawOps& raw = resolved.raw;
  const auto count = static_cast<uint32_t>(raw.ops.size());
  struct Reader {
    uint32_t op, next;
  };
  struct Edge {
    uint32_t from, to;
  };
  // Of each storage: who wrote it last, and a linked list of those who have read it since.
  std::vector<uint32_t> writer(resolved.storages, kNone), readers(resolved.storages, kNone);
  std::vector<Reader> pool;
  std::vector<Edge> edges;
  std::vector<uint32_t> linked(count, kNone);  // the last op that was linked to this one: no edge twice
  pool.reserve(count);
  edges.reserve(size_t{count} * 2);

  plan.predecessors.assign(count, 0);
  plan.successor_begin.assign(size_t{count} + 1, 0);
  const auto link = [&](uint32_t from, uint32_t to) {
    if (from == to || linked[from] == to) return;
    linked[from] = to;
    edges.push_back({from, to});
    ++plan.predecessors[to];
    ++plan.successor_begin[from + 1];
  };

  for (uint32_t i = 0; i < count; ++i) {
    const RawOp& op = raw.ops[i];
    for (uint32_t s = 0; s < op.sources(); ++s) {
      for (uint32_t j = 0; j < op.length; ++j) {
        const uint32_t storage = resolved.storage[raw.source(op, s)[j]];
        if (writer[storage] != kNone) link(writer[storage], i);
        pool.push_back({i, readers[storage]});
        readers[storage] = static_cast<uint32_t>(pool.size() - 1);
      }
    }
    for (uint32_t j = 0; op.has_dst() && j < op.length; ++j) {
      const uint32_t storage = resolved.storage[raw.dst(op)[j]];
      // A reader since the last write already comes after that write.
      bool read = false;
      for (uint32_t at = readers[storage]; at != kNone; at = pool[at].next) {
        read |= pool[at].op != i;
        link(pool[at].op, i);
      }
      if (!read && writer[storage] != kNone) link(writer[storage], i);
      writer[storage] = i;
      readers[storage] = kNone;
    }
  }

  for (uint32_t i = 0; i < count; ++i) plan.successor_begin[i + 1] += plan.successor_begin[i];
  plan.successors.resize(edges.size());
  std::vector<uint32_t> fill(plan.successor_begin.begin(), plan.successor_begin.end() - 1);
  for (const Edge& edge : edges) plan.successors[fill[edge.from]++] = edge.to;

  for (uint32_t i = 0; i < count; ++i) {
    const RawOp& op = raw.ops[i];
    plan.ops[i].last = op.has_dst();
    for (uint32_t j = 0; op.has_dst() && j < op.length; ++j) {
      plan.ops[i].last &= writer[resolved.storage[raw.dst(op)[j]]] == i;
    }
  }
  for (const Edge& edge : edges) plan.ops[edge.from].last &= plan.ops[edge.to].verb == Verb::send;

  // List 0 of two ops: the same bytes in the same order.
  const auto same = [&](uint32_t a, uint32_t b) {
    const auto storage = [&](ChunkId chunk) { return resolved.storage[chunk]; };
    return std::ranges::equal(std::span(raw.list(raw.ops[a], 0), raw.ops[a].length),
                              std::span(raw.list(raw.ops[b], 0), raw.ops[b].length), {}, storage, storage);
  };
  for (const Edge& edge : edges) {
    Op& from = plan.ops[edge.from];
    const Op& to = plan.ops[edge.to];
    if (plan.predecessors[edge.to] != 1 || from.verb == Verb::copy || !same(edge.from, edge.to)) continue;
    if (from.verb == Verb::recv && from.reduce && to.verb == Verb::send) from.forward = edge.to;
    if (from.verb == Verb::send && to.verb == Verb::recv && !to.reduce && from.peer == to.peer) from.answer = edge.to;
  }
}

}  // namespace weft
