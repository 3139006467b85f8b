// Plans without their peers: what ranks have in common.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "bind/schedule.hpp"
#include "program/program.hpp"
#include "simulate/simulate.hpp"
#include "status/status.hpp"

namespace weft::simulation {

inline constexpr uint32_t kNone = UINT32_MAX;

struct Outline {
  struct Operation {
    Verb verb = Verb::copy;
    bool reduce = false;
    uint32_t step = 0;
    uint32_t queue = kNone;  // of the schedule; kNone: a copy
    double chunks = 0;       // of the message
    double combined = 0;     // chunks that pass the rank's own hands
  };
  std::vector<Operation> ops;
  std::vector<uint32_t> predecessors, successor_begin, successors;
  std::vector<uint32_t> first_copies;  // that wait for nothing
  Schedule schedule;                   // its peers are those of one of the ranks

  Outline(const Plan& plan, uint32_t window, Order order);
};

// Expands plans, and keeps of each its peers, and of those alike one outline.
class Outlines {
 public:
  Outlines(const Program& program, const Hierarchy& tree, const SimulateOptions& options, uint32_t window)
      : program_(program), tree_(tree), options_(options), window_(window) {}

  struct Rank {
    uint32_t outline = 0;
    std::vector<int> peers;  // by queue of the outline's schedule
  };
  Result<Rank> of(int rank);
  const Outline& operator[](uint32_t index) const { return *all_[index]; }
  std::vector<std::unique_ptr<const Outline>> take() { return std::move(all_); }

 private:
  const Program& program_;
  const Hierarchy& tree_;
  const SimulateOptions& options_;
  const uint32_t window_;
  std::vector<std::unique_ptr<const Outline>> all_;
  std::unordered_map<uint64_t, uint32_t> known_;  // by fingerprint
  std::vector<uint32_t> words_, queue_of_;
};

// The plan of a rank, as it is simulated.
Result<std::shared_ptr<const Plan>> plan_of(const Program& program, const Hierarchy& tree,
                                            const SimulateOptions& options, int rank);

}  // namespace weft::simulation
