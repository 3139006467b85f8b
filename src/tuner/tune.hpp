// Tune files: what was measured of a machine, as text (docs/algorithms.md has the format). algorithms/defaults.tune is
// compiled in; a user's own is named by WEFT_TUNE_FILE.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/plan.hpp"
#include "status/status.hpp"
#include "topology/topology.hpp"

namespace weft {

// Measurements of one kind say nothing about another.
enum class TopologyKind : uint8_t {
  shm,    // one host, and all ranks share its memory
  tcp,    // one host, over its network stack only
  hosts,  // several
};
inline constexpr int kTopologyKinds = 3;
const char* name_of(TopologyKind kind);
std::optional<TopologyKind> topology_kind_of(std::string_view name);
TopologyKind kind_of(const Topology& topology);
// The plainest topology of a kind, for those who ask what would be; of several hosts, with a rank on each.
Topology topology_of(TopologyKind kind, int ranks);

// Of one algorithm and one number of ranks: measured time over predicted time, by rising size of the call.
struct Correction {
  int ranks = 0;
  std::vector<std::pair<size_t, double>> factors;
};

// What was measured of one kind of topology.
struct KindTune {
  double alpha = 0;    // microseconds of a step on the critical path
  double message = 0;  // microseconds of a message
  double beta = 0;     // nanoseconds of a byte sent or received
  double gamma = 0;    // nanoseconds of a byte combined or copied
  int cores = 0;       // of the host that was measured: more ranks than that shared them; 0: not known
  std::map<std::pair<Collective, std::string>, std::vector<Correction>, std::less<>> corrections;  // by rising ranks

  // Interpolated in the logarithms of size, ranks and correction, the outermost value beyond what was measured. The
  // same bits on every machine. What ranks that shared cores took says nothing of those that need not. Nothing: the
  // algorithm was not measured.
  std::optional<double> correction(Collective collective, const std::string& algorithm, const Topology& topology,
                                   size_t bytes) const;
};

struct Tune {
  std::array<std::optional<KindTune>, kTopologyKinds> kinds;
  std::string text;  // what must be the same on every rank

  const KindTune& of(TopologyKind kind) const { return *kinds[static_cast<size_t>(kind)]; }
};
using TunePtr = std::shared_ptr<const Tune>;

// Errors are weftInvalidArgument with "file:line: reason; legal: ...".
Result<Tune> parse_tune(std::string_view text, const std::string& file);
// What is compiled in. Has every kind.
const TunePtr& default_tune();
// The file at `path`, and the default for the kinds that it says nothing of. An empty path: the default.
Result<TunePtr> read_tune(const std::string& path);

}  // namespace weft
