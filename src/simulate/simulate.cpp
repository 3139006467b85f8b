#include "simulate/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <queue>

#include "bind/schedule.hpp"
#include "plan/shape.hpp"

namespace weft {
namespace {

constexpr uint32_t kNone = SimulatedSpan::kNone;
constexpr double kMostOps = 60e6;  // of all simulated ranks: some gigabytes

double chunks(std::span<const Region> regions) {
  double count = 0;
  for (const Region& region : regions) count += region.count;
  return count;
}

// What leads out of, or into, a rank or a group.
struct Port {
  double free = 0, busy = 0;
  double byte_ns = 0;
  uint32_t last = kNone;  // span
};

struct Posted {
  double time = 0;
  uint32_t op = 0, tile = 0, cause = kNone;
};
// From one rank to another.
struct WireState {
  std::deque<Posted> sends, receives;
};

struct LaneState {
  const Schedule::Queue* queue = nullptr;
  Cursor cursor;
  uint32_t wire = 0;
};

struct RankState {
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<Schedule> schedule;
  std::vector<LaneState> lanes;
  std::vector<uint32_t> lane_of;         // by op; kNone: a copy
  std::vector<uint32_t> missing, cause;  // by tile of the window and op
  std::vector<uint32_t> left;            // by tile of the window
  uint32_t low = 0;
  double cpu = 0, slow = 1;
  uint32_t cpu_last = kNone;
};

class Simulator {
 public:
  Simulator(const Program& program, const Topology& topology, const Links& links, const SimulateOptions& options)
      : program_(program), tree_(topology.hierarchy), links_(links), options_(options) {}
  Result<Simulation> run();

 private:
  struct Event {
    double time = 0;
    uint64_t order = 0;
    uint32_t rank = 0, op = 0, tile = 0, span = kNone;
    enum class Kind : uint8_t { arrived, done } kind = Kind::done;
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : order > other.order; }
  };

  Result<std::shared_ptr<const Plan>> plan_of(int rank) const {
    const bool in_place = options_.in_place && program_.collective() != Collective::alltoallv;
    return expand(program_, {tree_.ranks(), rank, options_.root, in_place, &tree_});
  }
  Status make_ranks();
  Status make_symmetric();
  bool same_as_first(const Plan& other, const Schedule& schedule) const;
  void add(std::shared_ptr<const Plan> plan);
  void make_ports();

  void open_tile(uint32_t rank, uint32_t tile, double now);
  void advance(uint32_t rank, uint32_t lane, double now);
  void ready(uint32_t rank, uint32_t op, uint32_t tile, double now, uint32_t cause);
  void transfer(uint32_t wire);
  void arrived(const Event& event);
  void done(const Event& event);
  void settle(uint32_t rank, double now);
  void find_critical_path();
  void push(Event event) {
    event.order = order_++;
    events_.push(event);
  }
  uint32_t record(SimulatedSpan span) {
    if (!options_.record) return kNone;
    result_.spans.push_back(span);
    return static_cast<uint32_t>(result_.spans.size() - 1);
  }
  double work(RankState& state, double now, double microseconds, uint32_t* cause) {
    if (state.cpu > now && cause != nullptr) *cause = state.cpu_last;
    state.cpu = std::max(state.cpu, now) + microseconds * state.slow;
    return state.cpu;
  }

  size_t slot(const RankState& state, uint32_t op, uint32_t tile) const {
    return size_t{tile % window_} * state.plan->ops.size() + op;
  }
  double tile_chunk() const { return chunk_bytes_ / tiles_; }
  size_t port(int level, int rank) const {
    return first_port_[static_cast<size_t>(level)] +
           static_cast<size_t>(level == 0 ? rank : tree_.group(level - 1, rank));
  }

  const Program& program_;
  const Hierarchy& tree_;
  const Links& links_;
  const SimulateOptions& options_;
  bool symmetric_ = false;
  double chunk_bytes_ = 0;
  uint32_t tiles_ = 1, window_ = 1;
  std::vector<RankState> ranks_;
  std::vector<WireState> wires_;
  struct Ends {
    uint32_t sender = 0, receiver = 0;  // simulated ranks
    int from = 0, to = 0, level = 0;
  };
  std::vector<Ends> ends_;  // by wire
  std::vector<size_t> first_port_;
  std::vector<double> members_;  // by port: ranks that pass it at once, where one stands for all
  std::vector<Port> out_, in_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  double end_ = 0;
  uint32_t last_span_ = kNone;
  Simulation result_;
};

void Simulator::add(std::shared_ptr<const Plan> plan) {
  RankState state;
  state.plan = std::move(plan);
  state.schedule = std::make_unique<Schedule>(*state.plan, window_, options_.order);
  const size_t ops = state.plan->ops.size();
  state.lane_of.assign(ops, kNone);
  for (const Schedule::Queue& queue : state.schedule->queues) {
    for (const Schedule::Entry& entry : queue.entries)
      state.lane_of[entry.op] = static_cast<uint32_t>(state.lanes.size());
    state.lanes.push_back({&queue, Cursor(*state.schedule, queue, tiles_), 0});
  }
  const uint32_t slots = std::min(window_, tiles_);
  state.missing.resize(slots * ops);
  state.cause.assign(slots * ops, kNone);
  state.left.resize(slots);
  ranks_.push_back(std::move(state));
}

Status Simulator::make_ranks() {
  auto first = plan_of(0);
  if (!first.ok()) return first.status();
  const Shape shape = shape_of(program_.collective(), tree_.ranks(), 0, options_.root);
  chunk_bytes_ = static_cast<double>(options_.bytes) / (double((*first)->chunks_per_block) * shape.blocks());
  tiles_ =
      static_cast<uint32_t>(std::clamp(std::ceil(chunk_bytes_ / static_cast<double>(options_.tile_bytes)), 1.0, 1e6));
  window_ = std::max(1U, std::min(options_.window, tiles_));
  const double ops = static_cast<double>((*first)->ops.size()) * std::min(window_, tiles_) * tree_.ranks();
  add(*first);
  const bool plain = options_.slow_ranks.empty() && options_.slow_groups.empty() && !options_.record;
  if (plain && make_symmetric().ok()) return {};
  if (ops > kMostOps) {
    return error(weftInvalidArgument,
                 "{} {} of {} ranks has {:.3g} operations, and its ranks are not all alike; legal: up to {:.3g}",
                 name_of(program_.collective()), program_.name(), tree_.ranks(), ops, kMostOps);
  }
  symmetric_ = false;
  ranks_.resize(1);
  wires_.clear();
  ends_.clear();
  for (int rank = 1; rank < tree_.ranks(); ++rank) {
    auto plan = plan_of(rank);
    if (!plan.ok()) return plan.status();
    add(std::move(*plan));
  }
  std::map<std::pair<int, int>, uint32_t> numbers;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    for (LaneState& lane : ranks_[rank].lanes) {
      const bool sends = lane.queue->verb == Verb::send;
      const int from = sends ? static_cast<int>(rank) : lane.queue->peer,
                to = sends ? lane.queue->peer : static_cast<int>(rank);
      const auto [place, is_new] = numbers.try_emplace({from, to}, static_cast<uint32_t>(wires_.size()));
      if (is_new) {
        wires_.emplace_back();
        ends_.push_back(
            {static_cast<uint32_t>(from), static_cast<uint32_t>(to), from, to, tree_.level_between(from, to)});
      }
      lane.wire = place->second;
    }
  }
  return {};
}

// Whether another rank's plan is the first's but for the peers, each of which is on the same level from it.
bool Simulator::same_as_first(const Plan& other, const Schedule& schedule) const {
  const RankState& first = ranks_[0];
  const Plan& plan = *first.plan;
  if (other.ops.size() != plan.ops.size() || schedule.queues.size() != first.schedule->queues.size()) return false;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const Op &a = plan.ops[i], &b = other.ops[i];
    if (a.verb != b.verb || a.reduce != b.reduce || a.step != b.step || a.sources != b.sources) return false;
    if (chunks(plan.dst(a)) != chunks(other.dst(b)) || chunks(plan.src(a)) != chunks(other.src(b))) return false;
    if (a.verb != Verb::copy && tree_.level_between(0, a.peer) != tree_.level_between(other.rank, b.peer)) return false;
  }
  for (size_t q = 0; q < schedule.queues.size(); ++q) {
    const auto &a = first.schedule->queues[q].entries, &b = schedule.queues[q].entries;
    if (a.size() != b.size() || first.schedule->queues[q].verb != schedule.queues[q].verb) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].op != b[i].op) return false;
    }
  }
  return true;
}

// One rank for all: where it sends to a peer it is, as that peer, also who receives. Where those of its node pass the
// same place at the same time, it is in their middle.
Status Simulator::make_symmetric() {
  const Status no = error(weftInvalidArgument, "the ranks are not alike");
  for (int level = 0; level < tree_.levels(); ++level) {
    if (tree_.sizes(level).size() > 1) return no;
  }
  RankState& first = ranks_[0];
  std::vector<int> sample;
  for (const Schedule::Queue& queue : first.schedule->queues) sample.push_back(queue.peer);
  for (int i = 1; i <= 16; ++i) sample.push_back(static_cast<int>(int64_t{tree_.ranks() - 1} * i / 16));
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  constexpr size_t kMostPeers = 4096;
  if (sample.size() > kMostPeers) return no;
  for (LaneState& lane : first.lanes) lane.wire = kNone;
  for (const int other : sample) {
    if (other == 0) continue;
    auto plan = plan_of(other);
    if (!plan.ok()) return plan.status();
    const Schedule schedule(**plan, window_, options_.order);
    if (!same_as_first(**plan, schedule)) return no;
    for (LaneState& lane : first.lanes) {
      if (lane.queue->verb != Verb::send || lane.queue->peer != other) continue;
      for (size_t q = 0; q < schedule.queues.size(); ++q) {
        if (schedule.queues[q].verb != Verb::recv || schedule.queues[q].peer != 0) continue;
        if (first.lanes[q].wire != kNone) return no;
        lane.wire = first.lanes[q].wire = static_cast<uint32_t>(wires_.size());
        wires_.emplace_back();
        ends_.push_back({0, 0, 0, other, tree_.level_between(0, other)});
      }
    }
  }
  for (const LaneState& lane : first.lanes) {
    if (lane.wire == kNone) return no;
  }
  symmetric_ = true;
  return {};
}

void Simulator::make_ports() {
  size_t count = 0;
  for (int level = 0; level < tree_.levels(); ++level) {
    first_port_.push_back(count);
    count += static_cast<size_t>(level == 0 ? tree_.ranks() : tree_.groups(level - 1));
  }
  out_.resize(count);
  members_.assign(count, symmetric_ ? 0 : 1);
  for (int level = 0; level < tree_.levels(); ++level) {
    const size_t end = level + 1 < tree_.levels() ? first_port_[static_cast<size_t>(level) + 1] : count;
    for (size_t i = first_port_[static_cast<size_t>(level)]; i < end; ++i) {
      out_[i].byte_ns = links_[static_cast<size_t>(level)].byte_ns;
    }
    for (int rank = 0; symmetric_ && rank < tree_.ranks(); ++rank) ++members_[port(level, rank)];
  }
  for (const auto& [rank, factor] : options_.slow_ranks) ranks_[static_cast<size_t>(rank)].slow = factor;
  for (const auto& slow : options_.slow_groups) {
    if (slow.level + 1 < tree_.levels()) {
      out_[first_port_[static_cast<size_t>(slow.level) + 1] + static_cast<size_t>(slow.group)].byte_ns *= slow.factor;
    }
  }
  in_ = out_;
  result_.levels.resize(static_cast<size_t>(tree_.levels()));
}

Result<Simulation> Simulator::run() {
  WEFT_RETURN_IF_ERROR(make_ranks());
  make_ports();
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    for (uint32_t tile = 0; tile < std::min(window_, tiles_); ++tile) open_tile(rank, tile, 0);
    for (uint32_t lane = 0; lane < ranks_[rank].lanes.size(); ++lane) advance(rank, lane, 0);
    settle(rank, 0);
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    ++result_.events;
    event.kind == Event::Kind::arrived ? arrived(event) : done(event);
  }
  for (const RankState& state : ranks_) {
    if (state.low < tiles_) return error(weftInternalError, "the simulation of {} came to a halt", program_.file());
  }
  // Where one stands for all it is in the middle of those who pass a place with it; the last is done when it is free.
  for (int level = 0; symmetric_ && level < tree_.levels(); ++level) {
    const size_t at = port(level, 0);
    const double last = std::max(out_[at].free, in_[at].free);
    if (last > 0) end_ = std::max(end_, last + links_[static_cast<size_t>(level)].latency_us);
  }
  result_.microseconds = end_;
  result_.simulated_ranks = static_cast<int>(ranks_.size());
  for (int level = 0; level < tree_.levels() && end_ > 0; ++level) {
    auto& use = result_.levels[static_cast<size_t>(level)];
    const size_t begin = first_port_[static_cast<size_t>(level)];
    const size_t end = level + 1 < tree_.levels() ? first_port_[static_cast<size_t>(level) + 1] : out_.size();
    for (size_t i = begin; i < end; ++i) use.busiest = std::max({use.busiest, out_[i].busy / end_, in_[i].busy / end_});
    if (!symmetric_) continue;
    use.bytes *= tree_.ranks();
    use.messages *= static_cast<uint64_t>(tree_.ranks());
  }
  find_critical_path();
  return std::move(result_);
}

void Simulator::open_tile(uint32_t rank, uint32_t tile, double now) {
  RankState& state = ranks_[rank];
  const Plan& plan = *state.plan;
  state.left[tile % window_] = static_cast<uint32_t>(plan.ops.size());
  for (uint32_t op = 0; op < plan.ops.size(); ++op) {
    state.missing[slot(state, op, tile)] = plan.predecessors[op];
    state.cause[slot(state, op, tile)] = kNone;
  }
  for (uint32_t op = 0; op < plan.ops.size(); ++op) {
    if (plan.predecessors[op] == 0 && plan.ops[op].verb == Verb::copy) ready(rank, op, tile, now, kNone);
  }
}

// Posts what can be posted next on a wire.
void Simulator::advance(uint32_t rank, uint32_t lane_index, double now) {
  RankState& state = ranks_[rank];
  LaneState& lane = state.lanes[lane_index];
  while (!lane.cursor.at_end()) {
    const uint32_t op = lane.cursor.op(), tile = lane.cursor.tile();
    if (tile >= state.low + window_ || state.missing[slot(state, op, tile)] > 0) return;
    lane.cursor.next();
    uint32_t cause = state.cause[slot(state, op, tile)];
    WireState& wire = wires_[lane.wire];
    if (lane.queue->verb == Verb::send) {
      const Link& link = links_[static_cast<size_t>(ends_[lane.wire].level)];
      const double sent = work(state, now, link.message_us, &cause);
      wire.sends.push_back({sent, op, tile, cause});
    } else {
      wire.receives.push_back({now, op, tile, cause});
    }
    transfer(lane.wire);
  }
}

// Moves what has both its ends.
void Simulator::transfer(uint32_t number) {
  WireState& wire = wires_[number];
  const Ends& ends = ends_[number];
  while (!wire.sends.empty() && !wire.receives.empty()) {
    const Posted sent = wire.sends.front(), received = wire.receives.front();
    wire.sends.pop_front();
    wire.receives.pop_front();
    const Plan& plan = *ranks_[ends.sender].plan;
    const double bytes = chunks(plan.src(plan.ops[sent.op])) * tile_chunk();
    const bool eager = bytes <= static_cast<double>(options_.eager_bytes);
    const double begin = eager ? sent.time : std::max(sent.time, received.time);
    uint32_t cause = eager || sent.time >= received.time ? sent.cause : received.cause;
    double left = begin, passed = begin;
    auto& use = result_.levels[static_cast<size_t>(ends.level)];
    use.bytes += bytes;
    ++use.messages;
    const size_t last = result_.spans.size();
    for (int level = std::min(ends.level, 1); level <= ends.level; ++level) {
      for (const bool outward : {true, false}) {
        const size_t index = port(level, outward ? ends.from : ends.to);
        Port& port = (outward ? out_ : in_)[symmetric_ ? this->port(level, 0) : index];
        const double alone = bytes * port.byte_ns / 1000, took = alone * members_[index];
        const double from = std::max(port.free, begin), through = from + (alone + took) / 2;
        if (through > passed && port.free > begin) cause = port.last;
        port.free = from + took;
        port.busy += took;
        if (outward) left = std::max(left, through);
        passed = std::max(passed, through);
        if (options_.record) port.last = static_cast<uint32_t>(last);
      }
    }
    const double arrival = passed + links_[static_cast<size_t>(ends.level)].latency_us;
    const Op& op = ranks_[ends.receiver].plan->ops[received.op];
    const uint32_t span = record({.rank = ends.to,
                                  .peer = ends.from,
                                  .op = received.op,
                                  .tile = received.tile,
                                  .step = op.step,
                                  .reduce = op.reduce,
                                  .begin = begin,
                                  .end = std::max(arrival, received.time),
                                  .cause = cause});
    push({.time = eager ? sent.time : left, .rank = ends.sender, .op = sent.op, .tile = sent.tile, .span = span});
    push({.time = std::max(arrival, received.time),
          .rank = ends.receiver,
          .op = received.op,
          .tile = received.tile,
          .span = span,
          .kind = Event::Kind::arrived});
  }
}

// A message is there: its receiver has to take it, and to combine it.
void Simulator::arrived(const Event& event) {
  RankState& state = ranks_[event.rank];
  const Op& op = state.plan->ops[event.op];
  const Link& link = links_[static_cast<size_t>(ends_[state.lanes[state.lane_of[event.op]].wire].level)];
  const double bytes = op.reduce ? chunks(state.plan->dst(op)) * tile_chunk() : 0;
  uint32_t cause = kNone;
  Event next = event;
  next.kind = Event::Kind::done;
  next.time = work(state, event.time, link.message_us + bytes * options_.combine_ns / 1000, &cause);
  if (options_.record) {
    SimulatedSpan& span = result_.spans[event.span];
    span.end = next.time;
    if (cause != kNone && cause != event.span) span.cause = cause;
    state.cpu_last = event.span;
  }
  push(next);
}

// A copy can be made.
void Simulator::ready(uint32_t rank, uint32_t op_index, uint32_t tile, double now, uint32_t cause) {
  RankState& state = ranks_[rank];
  const Op& op = state.plan->ops[op_index];
  if (op.verb != Verb::copy) {
    state.cause[slot(state, op_index, tile)] = cause;
    advance(rank, state.lane_of[op_index], now);
    return;
  }
  const double bytes = chunks(state.plan->dst(op)) * tile_chunk() * op.sources;
  const double begin = std::max(state.cpu, now);
  const double end = work(state, now, bytes * options_.combine_ns / 1000, &cause);
  const uint32_t span = record({.rank = static_cast<int>(rank),
                                .op = op_index,
                                .tile = tile,
                                .step = op.step,
                                .reduce = op.reduce,
                                .begin = begin,
                                .end = end,
                                .cause = cause});
  if (options_.record) state.cpu_last = span;
  push({.time = end, .rank = rank, .op = op_index, .tile = tile, .span = span});
}

void Simulator::done(const Event& event) {
  RankState& state = ranks_[event.rank];
  const Plan& plan = *state.plan;
  if (event.time >= end_) {
    end_ = event.time;
    last_span_ = event.span;
  }
  --state.left[event.tile % window_];
  for (uint32_t i = plan.successor_begin[event.op]; i < plan.successor_begin[event.op + 1]; ++i) {
    const uint32_t next = plan.successors[i];
    if (--state.missing[slot(state, next, event.tile)] == 0)
      ready(event.rank, next, event.tile, event.time, event.span);
  }
  settle(event.rank, event.time);
}

// Moves the window past tiles of which everything is done.
void Simulator::settle(uint32_t rank, double now) {
  RankState& state = ranks_[rank];
  bool opened = false;
  while (state.low < tiles_ && state.left[state.low % window_] == 0) {
    const uint32_t tile = state.low + window_;
    ++state.low;
    if (tile < tiles_) open_tile(rank, tile, now);
    opened = true;
  }
  for (uint32_t lane = 0; opened && lane < state.lanes.size(); ++lane) advance(rank, lane, now);
}

// From the last span back to what held it up last, and so on.
void Simulator::find_critical_path() {
  auto& spans = result_.spans;
  for (uint32_t at = last_span_; at != kNone && result_.critical_path.size() < spans.size();) {
    result_.critical_path.push_back(at);
    const uint32_t cause = spans[at].cause;
    at = cause != kNone && spans[cause].end <= spans[at].end ? cause : kNone;
  }
  std::reverse(result_.critical_path.begin(), result_.critical_path.end());
}

}  // namespace

Result<Simulation> simulate(const Program& program, const Topology& topology, const Links& links,
                            const SimulateOptions& options) {
  return Simulator(program, topology, links, options).run();
}

}  // namespace weft
