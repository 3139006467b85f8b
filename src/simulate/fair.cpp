#include "simulate/fair.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace weft::simulation {

FairLinks::FairLinks(std::vector<double> capacities) : ports_(capacities.size()) {
  for (size_t i = 0; i < ports_.size(); ++i) ports_[i].capacity = capacities[i];
}

void FairLinks::touch(uint32_t port) {
  if (!std::exchange(ports_[port].dirty, true)) dirty_.push_back(port);
}

uint32_t FairLinks::begin(double now, double bytes, std::span<const Use> uses) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(flows_.size()));
    flows_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  Flow& flow = flows_[index];
  flow.left = bytes;
  flow.rate = 0;
  flow.since = now;
  flow.passages.clear();
  for (const Use& use : uses) {
    auto& list = ports_[use.port].flows;
    list.emplace_back(index, static_cast<uint32_t>(flow.passages.size()));
    flow.passages.push_back({use.port, static_cast<uint32_t>(list.size() - 1), use.weight});
    touch(use.port);
  }
  return index;
}

void FairLinks::end(uint32_t index) {
  Flow& flow = flows_[index];
  for (const Passage& passage : flow.passages) {
    auto& list = ports_[passage.port].flows;
    const auto last = list.back();
    list[passage.place] = last;
    flows_[last.first].passages[last.second].place = passage.place;
    list.pop_back();
    touch(passage.port);
  }
  flow.passages.clear();
  ++flow.version;
  free_.push_back(index);
}

// All that shares a port with what began or ended, and what shares one with that, and so on.
void FairLinks::find_affected() {
  ++mark_;
  affected_flows_.clear();
  affected_ports_ = std::exchange(dirty_, {});
  for (const uint32_t port : affected_ports_) {
    ports_[port].mark = mark_;
    ports_[port].dirty = false;
  }
  for (size_t i = 0; i < affected_ports_.size(); ++i) {
    for (const auto& [index, passage] : ports_[affected_ports_[i]].flows) {
      Flow& flow = flows_[index];
      if (flow.mark == mark_) continue;
      flow.mark = mark_;
      affected_flows_.push_back(index);
      for (const Passage& other : flow.passages) {
        if (std::exchange(ports_[other.port].mark, mark_) != mark_) affected_ports_.push_back(other.port);
      }
    }
  }
}

// All rates rise together until a port is full; the flows through it are done, and the others go on. What a round takes
// from a port is subtracted at once, so that the result depends on no order.
void FairLinks::fill() {
  for (const uint32_t index : affected_ports_) {
    Port& port = ports_[index];
    port.left = port.capacity;
    port.waiting = port.fixed = 0;
    for (const auto& [flow, passage] : port.flows) port.waiting += flows_[flow].passages[passage].weight;
  }
  for (const uint32_t index : affected_flows_) flows_[index].fixed = false;
  for (size_t open = affected_flows_.size(); open > 0;) {
    double share = std::numeric_limits<double>::max();
    for (const uint32_t index : affected_ports_) {
      const Port& port = ports_[index];
      if (port.waiting > 0) share = std::min(share, std::max(port.left, 0.0) / port.waiting);
    }
    touched_.clear();
    for (const uint32_t index : affected_ports_) {
      const Port& port = ports_[index];
      if (port.waiting <= 0 || port.left / port.waiting > share * (1 + 1e-12)) continue;
      for (const auto& [at, unused] : port.flows) {
        Flow& flow = flows_[at];
        if (std::exchange(flow.fixed, true)) continue;
        flow.next = share;
        --open;
        for (const Passage& passage : flow.passages) {
          if (ports_[passage.port].fixed == 0) touched_.push_back(passage.port);
          ports_[passage.port].fixed += passage.weight;
        }
      }
    }
    for (const uint32_t index : touched_) {
      Port& port = ports_[index];
      port.left -= share * port.fixed;
      port.waiting -= std::exchange(port.fixed, 0);
    }
  }
}

const std::vector<FairLinks::Change>& FairLinks::share(double now) {
  changes_.clear();
  find_affected();
  fill();
  for (const uint32_t index : affected_flows_) {
    Flow& flow = flows_[index];
    if (flow.next == flow.rate) continue;
    flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.since));
    flow.since = now;
    flow.rate = flow.next;
    changes_.push_back({index, ++flow.version, now + flow.left / flow.rate});
  }
  return changes_;
}

}  // namespace weft::simulation
