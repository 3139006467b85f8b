// What a call would take. The tuner takes the program with the least.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "tuner/features.hpp"
#include "tuner/tune.hpp"

namespace weft {

struct Cost {
  double microseconds = 0;
  bool measured = false;  // by measurements of this program, not only by the model
};

// As is known of each level; else inside nodes as ranks that share memory, above them as what lies between nodes.
Links links_of(const Tune& tune, const Topology& topology);

// For one communicator. The same on all its ranks, to the last bit.
class CostModel {
 public:
  virtual ~CostModel() = default;
  // Of a program that supports the number of ranks, in a call of `bytes` (of the larger buffer of a rank).
  virtual Cost cost(const Program& program, size_t bytes) = 0;
};

// Alpha-beta-gamma (Hockney, 1994; Thakur, Rabenseifner and Gropp, 2005) over the program's features, with tiles that
// follow each other, times the correction that was measured. What a correction would make faster than a smaller call is
// taken to be as fast. Ranks in several levels of groups (nodes, sites), and hosts whose links are known, have a link
// for each level and no corrections.
class AlphaBetaModel : public CostModel {
 public:
  AlphaBetaModel(TunePtr tune, const Topology& topology, size_t tile_bytes);
  Cost cost(const Program& program, size_t bytes) override;

  // What alpha, message, beta and gamma are multiplied with; of several levels, already multiplied, but for gamma. The
  // steps are infinite for a program without a plan.
  struct Terms {
    double steps = 0, messages = 0, moved_kb = 0, combined_kb = 0;
  };
  Terms terms(const Program& program, size_t bytes);
  // Measurements of whole collectives are of one host, or of hosts of which nothing else is known.
  bool by_measurements() const {
    const Hierarchy& tree = topology_.hierarchy;
    return tree.levels() == 1 && (kind_ != TopologyKind::hosts || !topology_.links.contains(tree.name(0)));
  }

 private:
  struct Known {
    Features features;
    std::vector<double> floors;  // by k: the highest time of calls of 1, 2, 4, ... 2^k bytes
  };
  Known& known(const Program& program);
  double corrected(const Program& program, const Features& features, size_t bytes) const;

  TunePtr tune_;
  TopologyKind kind_;
  Topology topology_;
  size_t tile_bytes_;
  Links links_;  // of several levels: what they weigh, in microseconds and nanoseconds
  std::unordered_map<const Program*, Known> known_;
};

}  // namespace weft
