// Which ranks do the same, so that one of them can be simulated for all.
//
// Ranks are of one class where their plans have the same outline, and where the k-th wire of each leads to ranks of one
// class, to the same wire of those, over the same level; and, on every level, their groups are made of as many ranks of
// each class. Classes are found by refinement (Paige and Tarjan, 1987): they begin as coarse as the outlines allow and
// are split until they are stable. All ranks of a class then do the same at the same time, as long as what they share
// gives each the same. Where places have queues it does not; there, ranks at different positions of a group are of
// different classes.
#pragma once

#include <memory>
#include <vector>

#include "simulate/outline.hpp"

namespace weft::simulation {

inline constexpr double kMostOps = 2e8;  // of all ranks that are looked at, or simulated with their window: gigabytes

// A rank that stands for `size` ranks.
struct Actor {
  uint32_t outline = 0;
  int rank = 0;
  uint32_t size = 1;
  uint32_t first_queue = 0;  // in Partition::wire_of
};

struct Wire {
  uint32_t sender = 0, receiver = 0;  // actors
  uint32_t in_queue = 0;              // the receiver's
  int from = 0, to = 0, level = 0;    // ranks
};

struct Partition {
  std::vector<std::unique_ptr<const Outline>> outlines;
  std::vector<Actor> actors;       // by rank
  std::vector<Wire> wires;         // by the positions of their ends in their groups
  std::vector<uint32_t> wire_of;   // by Actor::first_queue + queue
  std::vector<uint32_t> actor_of;  // by rank
  bool sampled = false;
};

// Every rank's plan is expanded, looked at, and forgotten; but where options.classes lets a sample do, and `ops`, those
// of rank 0, are too many for that, ranks at the same positions of their groups are of one class if they look alike in
// the sample. Errors: what expand() says; weftInvalidArgument above
// kMostOps.
Result<Partition> partition(const Program& program, const Hierarchy& tree, const SimulateOptions& options,
                            uint32_t window, size_t ops);

}  // namespace weft::simulation
