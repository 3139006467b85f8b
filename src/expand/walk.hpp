// First half of expansion: runs the program for one rank and records what it asks for, op by op, with chunks still
// named as the program names them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/shape.hpp"
#include "program/ast.hpp"
#include "program/evaluator.hpp"

namespace weft {

// A chunk by number: those of `in`, then of `out`, of `scratch`, of `work`, and last a twin of each chunk of `out`
// (where an in-place all-to-all keeps what arrived too early).
using ChunkId = uint32_t;
struct ChunkSpace {
  uint32_t in = 0, out = 0, scratch = 0, work = 0;  // chunks of each
  uint32_t chunks_per_block = 1;

  ChunkId first(Space space) const {
    return space == Space::in ? 0 : space == Space::out ? in : space == Space::scratch ? in + out : in + out + scratch;
  }
  uint32_t size(Space space) const {
    return space == Space::in ? in : space == Space::out ? out : space == Space::scratch ? scratch : work;
  }
  ChunkId twin(uint32_t out_chunk) const { return in + out + scratch + work + out_chunk; }
  uint32_t total() const { return in + out + scratch + work + out; }

  bool is_in(ChunkId id) const { return id < in; }
  bool is_out(ChunkId id) const { return id >= in && id - in < out; }
  bool is_work(ChunkId id) const { return id >= first(Space::work) && id - first(Space::work) < work; }
};

// `lists` lists of `length` chunks each in RawOps::chunks, from `begin`: first dst (but for a send), then the sources.
struct RawOp {
  Verb verb = Verb::copy;
  bool reduce = false;
  uint16_t lane = 0;
  int32_t peer = -1;
  uint32_t step = 0;
  uint32_t lists = 0, length = 0;
  size_t begin = 0;
  uint32_t line = 0, column = 0;

  bool has_dst() const { return verb != Verb::send; }
  uint32_t sources() const { return lists - (has_dst() ? 1 : 0); }
};
struct RawOps {
  std::vector<RawOp> ops;  // by step, then by position in the program
  std::vector<ChunkId> chunks;
  ChunkSpace space;
  uint32_t steps = 0;
  uint16_t lanes = 1;

  ChunkId* list(const RawOp& op, uint32_t index) { return chunks.data() + op.begin + size_t{index} * op.length; }
  ChunkId* dst(const RawOp& op) { return list(op, 0); }
  ChunkId* source(const RawOp& op, uint32_t index) { return list(op, index + (op.has_dst() ? 1 : 0)); }
};

// Fails through the evaluator.
RawOps walk(const ParsedProgram& program, const Shape& shape, const Hierarchy& hierarchy, int rank, int root,
            Evaluator& evaluator);

}  // namespace weft
