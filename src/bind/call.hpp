// One call of the public interface, checked and in one form, on its way to the engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/types.hpp"
#include "plan/plan.hpp"

namespace weft {

// What a call with blocks of one size is.
struct CallHead {
  Collective collective = Collective::barrier;
  const void* in = nullptr;
  void* out = nullptr;
  // Elements: as the call in weft.h takes them (allgather: of one rank's block; the v-variants: the caller's own
  // block).
  size_t count = 0;
  weftDataType_t type = weftUint8;
  weftRedOp_t op = weftSum;  // as the user gave it, avg and pre-multiplied sums included
  int root = -1;             // or the peer of a point-to-point call
};

struct Call : CallHead {
  bool is_send = false;    // of the two point-to-point calls
  bool registers = false;  // the all-gather of weftCommWindowRegister: no all-gather of the user's is its match

  // The v-variants: one entry per rank; empty where the call has no such array on this rank. Copied at the call.
  std::vector<size_t> in_counts, in_displs, out_counts, out_displs;

  // A pre-multiplied sum's factor, one element of `type`; read from scalar_at when the call runs, where that is set.
  bool scaled = false;
  alignas(8) std::byte scalar[8] = {};
  const void* scalar_at = nullptr;
  // Partial results in fp32 (only set for fp16, bf16 and fp8 reductions).
  bool wide = false;

  bool reduces() const {
    return collective == Collective::allreduce || collective == Collective::reduce ||
           collective == Collective::reducescatter || collective == Collective::reducescatterv;
  }
};

// How messages and records call the operations of weftCommWindowRegister.
inline constexpr const char* kRegistration = "window registration";

// Whether the call's buffers stand in the legal in-place relation of weft.h on this rank.
bool in_place(const Call& call, int rank);
// Hash of what all ranks must agree on.
uint32_t signature(const Call& call);
// "allreduce of 1000 float, sum" for messages.
std::string describe(const Call& call);

}  // namespace weft
