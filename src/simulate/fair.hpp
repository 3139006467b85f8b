// Max-min fair sharing: flows that pass the same ports at the same time, none of which could be faster without making
// one slower that is no faster than it (Bertsekas and Gallager, Data Networks, 1987: progressive filling).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::simulation {

class FairLinks {
 public:
  // Bytes a microsecond of each port.
  explicit FairLinks(std::vector<double> capacities);

  // A flow stands for `weight` flows alike at a port.
  struct Use {
    uint32_t port = 0;
    double weight = 1;
  };
  struct Change {
    uint32_t flow = 0, version = 0;
    double end = 0;
  };

  // Begins a flow of more than no bytes over at least one port. Rates are right after share() only, which tells of all
  // flows whose end is another now. What begins and ends at the same time is shared out once.
  uint32_t begin(double now, double bytes, std::span<const Use> uses);
  void end(uint32_t flow);
  const std::vector<Change>& share(double now);
  bool unsettled() const { return !dirty_.empty(); }

  // Whether this is the last end that was told of a flow.
  bool is_current(uint32_t flow, uint32_t version) const { return flows_[flow].version == version; }
  double rate(uint32_t flow) const { return flows_[flow].rate; }

 private:
  struct Passage {
    uint32_t port = 0, place = 0;  // in the port's list
    double weight = 1;
  };
  struct Flow {
    double left = 0, rate = 0, since = 0, next = 0;
    uint32_t version = 0, mark = 0;
    bool fixed = false;
    std::vector<Passage> passages;
  };
  struct Port {
    double capacity = 0;
    std::vector<std::pair<uint32_t, uint32_t>> flows;  // flow, and which of its passages
    // While rates are found: what is left, for whom, and of whom it became known in this round.
    double left = 0, waiting = 0, fixed = 0;
    uint32_t mark = 0;
    bool dirty = false;
  };
  void touch(uint32_t port);
  void find_affected();
  void fill();

  std::vector<Port> ports_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> free_, dirty_;
  std::vector<uint32_t> affected_ports_, affected_flows_, touched_;
  std::vector<Change> changes_;
  uint32_t mark_ = 0;
};

}  // namespace weft::simulation
