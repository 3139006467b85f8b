// A plan: a program expanded for one rank. No bytes, no pointers, no types; cached by the communicator.
//
// Chunks. Each of the buffers `in` and `out` is a row of blocks, and every block is cut into `chunks_per_block` chunks:
// chunk i is part i % chunks_per_block of block i / chunks_per_block. An all-reduce has one block, an all-gather has
// one block in `in` and P in `out`. How many elements a block has, and where it starts, is the binding's knowledge
// (uniform counts, or a v-variant's counts and displacements). Scratch chunk i has the size of chunk i % (blocks *
// chunks_per_block) of the buffer with more blocks, and W tile slots instead of a full buffer: what is in it lives for
// one tile only.
//
// Tiles. A chunk is cut into tiles; each op runs once for each tile, on that tile of each of its chunks.
// For tile t, window W and S steps the ordering key of an op is floor(t/W)*max(S,W) + t mod W + step inside a node, and
// floor(t/W)*S + step where there are several (Order in bind/schedule.hpp); both ends of a wire order their messages by
// (key, tile, position in the program).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

enum class Collective : uint8_t {
  allreduce,
  reduce,
  broadcast,
  allgather,
  reducescatter,
  alltoall,
  gather,
  scatter,
  barrier,
  allgatherv,
  reducescatterv,
  alltoallv,
  gatherv,
  scatterv,
  sendrecv,  // point to point: made by the engine, never by a program
};
inline constexpr int kCollectives = 15;
const char* name_of(Collective collective);  // "allreduce", ...

enum class Buffer : uint8_t { in, out, scratch };
enum class Verb : uint8_t { send, recv, copy };

// Chunks [first, first + count) of a buffer.
struct Region {
  Buffer buffer = Buffer::in;
  uint32_t first = 0;
  uint32_t count = 0;
  bool operator==(const Region&) const = default;
};

// dst and src index Plan::regions. All operand lists of one op, and those of the matching send and recv, name chunks of
// the same sizes in the same order.
//   send: src is what is sent.
//   recv: dst is where it lands. With reduce, dst = src combined with what comes in.
//   copy: dst = src[0] combined with src[1] ... in that order; src holds `sources` lists of equal length one after the
//         other, and sources > 1 exactly when `reduce` is set. dst may be one of the sources, region for region.
struct Op {
  static constexpr uint32_t kNone = UINT32_MAX;
  Verb verb = Verb::copy;
  bool reduce = false;
  bool last = false;  // nobody writes the destination after it, and only sends read it; found by expand
  uint16_t lane = 0;
  uint16_t sources = 1;
  uint16_t line = 0;  // of the program's text; 0: it has none, or one that is too far down
  int32_t peer = -1;
  uint32_t step = 0;
  uint32_t dst = 0, dst_regions = 0;
  uint32_t src = 0, src_regions = 0;
  // What the engine may do better, found by expand. Of a receive with reduce: the send that waits for its result alone,
  // and passes it on as it is. Of a send: the plain receive from the same peer that waits for this send alone, and
  // lands in the same place.
  uint32_t forward = kNone, answer = kNone;
};

struct Plan {
  Collective collective = Collective::allreduce;
  std::string algorithm;
  int ranks = 1;
  int rank = 0;
  int root = 0;
  bool in_place = false;

  uint32_t chunks_per_block = 1;
  uint32_t in_blocks = 0, out_blocks = 0;  // 0: this rank has no such buffer (a non-root's)
  uint32_t scratch_chunks = 0;
  uint32_t steps = 0;  // S: the same on every rank
  uint16_t lanes = 1;

  std::vector<Op> ops;  // by step, then by position in the program
  std::vector<Region> regions;

  // Dependencies of ops inside one tile, inferred from regions (read after write, write after read, write after write),
  // with the aliasing that in_place brings. predecessors[i] counts them; op i's successors are
  // successors[successor_begin[i]] .. successors[successor_begin[i + 1]].
  std::vector<uint32_t> predecessors;
  std::vector<uint32_t> successor_begin;
  std::vector<uint32_t> successors;

  std::span<const Region> dst(const Op& op) const { return {regions.data() + op.dst, op.dst_regions}; }
  std::span<const Region> src(const Op& op) const { return {regions.data() + op.src, op.src_regions}; }
};

}  // namespace weft
