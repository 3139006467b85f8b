#include "plan/plan.hpp"

#include <array>

#include "plan/shape.hpp"

namespace weft {
namespace {

constexpr std::array<const char*, kCollectives> kNames = {
    "allreduce", "reduce",     "broadcast",      "allgather", "reducescatter", "alltoall", "gather",  "scatter",
    "barrier",   "allgatherv", "reducescatterv", "alltoallv", "gatherv",       "scatterv", "sendrecv"};

}  // namespace

const char* name_of(Collective collective) { return kNames.at(static_cast<size_t>(collective)); }

std::optional<Collective> collective_of(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Collective>(i);
  }
  return std::nullopt;
}

bool is_rooted(Collective collective) {
  switch (collective) {
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::gather:
    case Collective::scatter:
    case Collective::gatherv:
    case Collective::scatterv:
      return true;
    default:
      return false;
  }
}

Shape shape_of(Collective collective, int ranks, int rank, int root) {
  const auto all = static_cast<uint32_t>(ranks);
  const auto mine = static_cast<uint32_t>(rank);
  Shape shape;
  switch (collective) {
    case Collective::allreduce:
    case Collective::barrier:
      shape.shared = 1;
      shape.reduces = true;
      break;
    case Collective::reduce:
      shape.shared = 1;
      shape.reduces = true;
      shape.has_out = rank == root;
      break;
    case Collective::broadcast:
      shape.shared = 1;
      shape.has_in = rank == root;
      break;
    case Collective::allgatherv:
    case Collective::gatherv:
      shape.per_block_sizes = true;
      [[fallthrough]];
    case Collective::allgather:
    case Collective::gather:
      shape.out_blocks = all;
      shape.out_first = mine;
      shape.shared = 1;
      shape.has_out = !is_rooted(collective) || rank == root;
      break;
    case Collective::reducescatterv:
    case Collective::scatterv:
      shape.per_block_sizes = true;
      [[fallthrough]];
    case Collective::reducescatter:
    case Collective::scatter:
      shape.in_blocks = all;
      shape.in_first = mine;
      shape.shared = 1;
      shape.has_in = !is_rooted(collective) || rank == root;
      shape.reduces = !is_rooted(collective);
      break;
    case Collective::alltoall:
      shape.in_blocks = shape.out_blocks = shape.shared = all;
      shape.aliases = false;
      break;
    case Collective::alltoallv:
      shape.in_blocks = shape.out_blocks = all;
      shape.aliases = false;
      shape.per_block_sizes = true;
      break;
    case Collective::sendrecv:
      break;
  }
  return shape;
}

}  // namespace weft
