// What a program would take on a topology: its plans, run by a clock instead of by machines.
//
// Each rank does what the engine does: it walks the messages of each wire in the order of their key, posts one when
// what it depends on is done and its tile is inside the window, and combines what arrives. What that takes is a model
// in the manner of LogGP (Alexandrov, Ionescu, Schauser and Scheiman, 1995) with a link for each level of the
// hierarchy:
// - a message costs its sender and its receiver message_us each, one after the other on each rank, and a combination or
// a copy
//   combine_ns for each byte;
// - its bytes pass what leads out of the sender and into the receiver; between nodes (racks, sites) what leads out of
//   the one and into the other, which all ranks of the node share, on every level on the way. There tiles go one after
//   the other, as they come (Sharing::fifo: over several tiles, a fair share for each), or those of different wires all
//   at once, each with its max-min fair share (Sharing::fair). A tile passes all of them at once, at the pace of the
//   slowest;
// - it arrives latency_us later. Tiles beyond `eager_bytes` leave when their receiver is ready for them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "bind/schedule.hpp"
#include "program/program.hpp"
#include "topology/topology.hpp"

namespace weft {

enum class Sharing : uint8_t { fifo, fair };
// Which ranks are simulated: one of each class of those that do the same, found in the plans of all ranks or, where
// that is too much, in a sample; never in a sample; every rank.
enum class Classes : uint8_t { sample, plans, none };

struct SimulateOptions {
  size_t bytes = 0;  // of the call's larger buffer on a rank
  size_t tile_bytes = 512 << 10;
  uint32_t window = 8;
  Order order = Order::steps;
  size_t eager_bytes = 8 << 10;
  int root = 0;
  bool in_place = true;
  double combine_ns = 0.1;  // for each byte
  bool record = false;      // spans and the critical path, of every rank; for small jobs
  Sharing sharing = Sharing::fifo;
  Classes classes = Classes::sample;

  // What if: how many times slower is a rank's own work, or what leads out of and into a group (level, group).
  std::vector<std::pair<int, double>> slow_ranks;
  struct SlowGroup {
    int level = 0, group = 0;
    double factor = 1;
  };
  std::vector<SlowGroup> slow_groups;
};

// One message, copy, or combination, with what it waited for.
struct SimulatedSpan {
  static constexpr uint32_t kNone = UINT32_MAX;
  int rank = 0, peer = -1;  // of a message: the receiver, and the sender
  uint32_t op = 0, tile = 0, step = 0;
  bool reduce = false;
  double begin = 0, end = 0;  // microseconds; a message begins when its bytes begin to move
  uint32_t cause = kNone;     // the span that held it up last
};

struct Simulation {
  double microseconds = 0;
  uint64_t events = 0;
  double cpu_seconds = 0;   // that the events took here, plans not counted
  int simulated_ranks = 0;  // one of each class, or every rank
  int classes = 0;          // of ranks that do the same; as many as ranks where they were not looked for or found
  bool sampled = false;     // classes were found in a sample
  struct Level {
    double bytes = 0;    // over links of this level, all ranks together
    double busiest = 0;  // of the time, the busiest of what leads out of a part
    uint64_t messages = 0;
  };
  std::vector<Level> levels;
  std::vector<SimulatedSpan> spans;     // where they are recorded
  std::vector<uint32_t> critical_path;  // of spans, from the first to the last
};

// Ranks that do the same as others (all those of a ring, or of an even hierarchy) are simulated once for all of them:
// simulate/partition.hpp. Errors: what expand() says; weftInvalidArgument for a program that is too large.
Result<Simulation> simulate(const Program& program, const Topology& topology, const Links& links,
                            const SimulateOptions& options);

}  // namespace weft
