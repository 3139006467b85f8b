// The tuner: which algorithm, tile and window a call uses. A function only of what every rank knows: the collective,
// the size of the call, the ranks, the agreed topology and configuration.
#pragma once

#include <string>
#include <vector>

#include "program/program.hpp"
#include "topology/topology.hpp"

namespace weft {

struct Choice {
  const Program* program = nullptr;
  uint32_t program_index = 0;  // in the tuner's table
  size_t tile_bytes = 0;       // a multiple of 64
  uint32_t window = 1;
  std::string_view reason;
};

class Tuner {
 public:
  // `forced`: "ring" or "allreduce:ring,broadcast:chain". An unknown name is an error that lists the legal ones.
  static Result<Tuner> create(const Topology& topology, std::vector<ProgramPtr> programs, const std::string& forced,
                              size_t tile_bytes, uint32_t window);

  // bytes: of the call's larger buffer on a rank (0 for the v-variants, which must not choose by their counts).
  // Empty program: no algorithm supports this rank count.
  Choice choose(Collective collective, size_t bytes) const;
  // Of point-to-point messages, and of all programs.
  size_t tile_bytes() const;
  uint32_t window() const;
  const std::vector<ProgramPtr>& programs() const { return programs_; }

 private:
  Topology topology_;
  std::vector<ProgramPtr> programs_;
  int forced_[kCollectives];
  size_t tile_bytes_ = 0;
  uint32_t window_ = 0;
};

}  // namespace weft
