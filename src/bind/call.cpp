#include "bind/call.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include "plan/shape.hpp"

namespace weft {
namespace {

const std::byte* at(const void* base, size_t elements, weftDataType_t type) {
  return static_cast<const std::byte*>(base) + elements * type_bytes(type);
}

}  // namespace

bool in_place(const Call& call, int rank) {
  const auto r = static_cast<size_t>(rank);
  const bool at_root = call.root == rank;
  switch (call.collective) {
    case Collective::allreduce:
    case Collective::alltoall:
      return call.in == call.out;
    case Collective::reduce:
    case Collective::broadcast:
      return at_root && call.in == call.out;
    case Collective::allgather:
      return call.in == at(call.out, r * call.count, call.type);
    case Collective::reducescatter:
      return call.out == at(call.in, r * call.count, call.type);
    case Collective::gather:
      return at_root && call.in == at(call.out, r * call.count, call.type);
    case Collective::scatter:
      return at_root && call.out == at(call.in, r * call.count, call.type);
    case Collective::allgatherv:
      return call.out_counts[r] == 0 || call.in == at(call.out, call.out_displs[r], call.type);
    case Collective::reducescatterv:
      return call.in_counts[r] == 0 || call.out == at(call.in, call.in_displs[r], call.type);
    case Collective::gatherv:
      return at_root && (call.out_counts[r] == 0 || call.in == at(call.out, call.out_displs[r], call.type));
    case Collective::scatterv:
      return at_root && (call.in_counts[r] == 0 || call.out == at(call.in, call.in_displs[r], call.type));
    default:
      return false;
  }
}

uint32_t signature(const Call& call) {
  struct {
    uint64_t count;
    int32_t collective, type, op, root;
    uint32_t wide, scaled;
    uint64_t blocks;
  } agreed{};
  const bool v = call.collective >= Collective::allgatherv && call.collective <= Collective::scatterv;
  agreed.count = v ? 0 : call.count;
  agreed.collective = static_cast<int32_t>(call.collective);
  agreed.type = call.type;
  // Pre-multiplied sums are numbered per process: what matters is that both are one.
  agreed.op = call.reduces() ? (call.scaled ? weftNumOps : call.op) : -1;
  agreed.root = is_rooted(call.collective) ? call.root : call.registers ? -2 : -1;
  agreed.wide = call.wide;
  agreed.scaled = call.scaled;
  const std::vector<size_t>* counts = call.collective == Collective::allgatherv       ? &call.out_counts
                                      : call.collective == Collective::reducescatterv ? &call.in_counts
                                                                                      : nullptr;
  if (counts != nullptr) agreed.blocks = XXH64(counts->data(), counts->size() * sizeof(size_t), 0);
  return static_cast<uint32_t>(XXH64(&agreed, sizeof agreed, 0x77656674));
}

std::string describe(const Call& call) {
  std::string text;
  if (call.collective == Collective::sendrecv) {
    text = fmt::format("{} of {} {} {} rank {}", call.is_send ? "send" : "receive", call.count, kTypes[call.type].name,
                       call.is_send ? "to" : "from", call.root);
    return text;
  }
  if (call.registers) return kRegistration;
  text = name_of(call.collective);
  if (call.collective == Collective::barrier) return text;
  if (call.collective == Collective::alltoallv) {
    return fmt::format("{} of {}", text, kTypes[call.type].name);
  }
  text += fmt::format(" of {} {}", call.count, kTypes[call.type].name);
  if (call.reduces()) text += fmt::format(", {}", call.scaled ? "pre-multiplied sum" : kOps[call.op]);
  if (is_rooted(call.collective)) text += fmt::format(", root {}", call.root);
  return text;
}

}  // namespace weft
