// One collective call as a value: every rank can run it and knows, from the serial reference alone, each byte of every
// buffer afterwards.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "program/program.hpp"
#include "ranks.hpp"
#include "reference.hpp"

namespace weft::testing {

struct Case {
  Collective collective = Collective::allreduce;
  int ranks = 1;
  weftDataType_t type = weftFloat32;
  weftRedOp_t op = weftSum;  // of reductions; weftNumOps stands for a pre-multiplied sum
  bool wide = false;         // as the communicator is configured
  reference::Pattern pattern = reference::Pattern::kExact;
  size_t count = 0;  // of a block; of the v-variants the most that a block has
  int root = 0;
  int peer = 0;           // of a message (sendrecv), which goes from root to peer
  uint32_t in_place = 0;  // a bit for each rank; without effect where it cannot be
  uint64_t seed = 0;      // contents, addresses, the v-variants' counts and displacements
  bool stream = false;
  bool shared_memory = false;            // buffers from weftMemAlloc
  const Hierarchy* hierarchy = nullptr;  // of the communicator's ranks; null: flat
};
std::string describe(const Case& call);

bool is_v(Collective collective);
bool reduces(Collective collective);
bool has_root(Collective collective);

// A block of a buffer: where it lies, and the number of its first element when a rank's blocks are counted through.
struct Block {
  size_t at = 0, first = 0, count = 0;
};
struct Side {
  bool exists = false;  // false: the argument is without meaning on this rank
  std::vector<Block> blocks;
  size_t extent = 0;  // elements
};
Side in_side(const Case& call, int rank);
Side out_side(const Case& call, int rank);

// What each rank's blocks of `out` hold afterwards, one behind the other. A reduction whose pattern is not exact is
// computed by following `program`, hop by hop.
class Expectation {
 public:
  Expectation(const Case& call, const Program* program);

  // Makes the call and checks all memory. `stream` is used where the case asks for it.
  void run(int rank, weftComm_t comm, weftStream_t stream) const;
  const Case& call() const { return call_; }
  const std::string& algorithm() const { return algorithm_; }
  const std::vector<std::byte>& result(int rank) const { return results_[static_cast<size_t>(rank)]; }

 private:
  Case call_;
  std::string algorithm_;
  std::vector<std::vector<std::byte>> results_;
};

// Memory that is handed out in pieces, each between painted bytes; for buffers inside a window.
class Arena {
 public:
  Arena(void* base, size_t bytes);
  // nullptr when it is used up.
  std::byte* take(size_t bytes, size_t shift);
  // Once nothing of it is in use any more. False: bytes that were not handed out have been written.
  bool give_back();

 private:
  std::byte *base_, *next_, *end_;
  std::vector<std::pair<std::byte*, std::byte*>> gaps_;
};

// One rank's part in a call: its buffers as they are before, the call, a look at all memory once it is over.
class Part {
 public:
  // Buffers come from the arena, where there is one and it has room.
  Part(const Expectation& expectation, int rank, Arena* arena = nullptr);
  ~Part();
  Part(Part&&) noexcept;
  weftResult_t issue(weftComm_t comm, weftStream_t stream);
  void check() const;
  const std::string& what() const;  // for messages

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The factor of a rank in a pre-multiplied sum.
reference::Bits scalar_of(const Case& call, int rank);
// The elements of a rank's input, blocks one behind the other.
std::vector<std::byte> input_of(const Case& call, int rank);
// The results of a reduction by all ranks' plans: one block for each rank that has one.
std::vector<std::vector<std::byte>> replay(const Program& program, const Case& call);

}  // namespace weft::testing
