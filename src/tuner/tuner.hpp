// The tuner: which algorithm, tile and window a call uses. A function only of what every rank knows: the collective,
// the size of the call, the ranks, the agreed topology and configuration.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "bind/schedule.hpp"
#include "program/program.hpp"
#include "topology/topology.hpp"
#include "tuner/cost_model.hpp"
#include "tuner/tune.hpp"

namespace weft {

struct Choice {
  const Program* program = nullptr;
  uint32_t program_index = 0;  // in the tuner's table
  size_t tile_bytes = 0;       // a multiple of 64
  uint32_t window = 1;
  Order order = Order::waves;
  std::string_view reason;  // for the first call that took this program; lives as long as the tuner
};

class Tuner {
 public:
  // `forced`: "ring" or "allreduce:ring,broadcast:chain", or for sizes from one to below another
  // "allreduce:0-4K:flat,allreduce:64M-inf:ring"; the last that fits counts. What is not known is an error that lists
  // what is legal.
  static Result<Tuner> create(const Topology& topology, std::vector<ProgramPtr> programs, const std::string& forced,
                              size_t tile_bytes, uint32_t window, const TunePtr& tune = default_tune());

  // bytes: of the call's larger buffer on a rank (0 for the v-variants, which must not choose by their counts).
  // Empty program: no algorithm supports this rank count. Not for two threads at a time.
  Choice choose(Collective collective, size_t bytes) const;
  // Of point-to-point messages, and of all programs.
  size_t tile_bytes() const;
  uint32_t window() const;
  Order order() const { return topology_.nodes > 1 ? Order::steps : Order::waves; }
  const std::vector<ProgramPtr>& programs() const { return programs_; }

 private:
  struct Decision {
    Collective collective = Collective::sendrecv;  // nobody asks for it
    size_t bytes = 0;
    int index = -1;  // none
  };
  static constexpr size_t kDecisions = 64;
  static size_t slot_of(Collective collective, size_t bytes);
  Decision decide(Collective collective, size_t bytes) const;
  std::string explain(const Decision& decision, const Cost& best, int next, const Cost& second) const;

  Topology topology_;
  std::vector<ProgramPtr> programs_;
  struct Forced {
    size_t low = 0, high = SIZE_MAX;
    int index = -1;
  };
  Status force(const std::string& all, const std::string& item);
  int forced(Collective collective, size_t bytes) const;
  std::vector<Forced> forced_[kCollectives];
  size_t tile_bytes_ = 0;
  uint32_t window_ = 0;
  std::unique_ptr<CostModel> model_;
  mutable std::vector<std::string> reasons_;  // by program
  // The last decisions: large calls ask each time.
  mutable std::array<Decision, kDecisions> decisions_;
};

}  // namespace weft
