#include "simulate/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>

#include "plan/shape.hpp"
#include "simulate/events.hpp"
#include "simulate/fair.hpp"
#include "simulate/partition.hpp"

namespace weft {
namespace simulation {
namespace {

// What leads out of, or into, a rank or a group.
struct Port {
  double free = 0, busy = 0;
  double byte_ns = 0;
  uint32_t last = kNone;  // span
};

// From one rank to another; both ends post them in the same order.
struct Message {
  double sent = 0, received = 0;
  uint32_t wire = 0, send_op = 0, receive_op = 0, tile = 0;
  uint32_t next = kNone;    // on the wire, while only one end has posted it
  uint32_t behind = kNone;  // the next that goes over the wire, where this one is on its way
  uint32_t cause = kNone, span = kNone;
  bool has_send = false, has_receive = false, landed = false;
};

// Messages of which only one end is posted.
struct Waiting {
  uint32_t first = kNone, last = kNone;
};

struct ActorState {
  const Outline* outline = nullptr;
  size_t first_slot = 0;  // in missing_
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
  Status make_actors();
  void make_ports();
  void weigh_ports();
  void start_links();

  void open_tile(uint32_t actor, uint32_t tile, double now);
  void advance(uint32_t actor, uint32_t queue, double now);
  void ready(uint32_t actor, uint32_t op, uint32_t tile, double now, uint32_t cause);
  void post(uint32_t wire, bool send, double time, uint32_t op, uint32_t tile, uint32_t cause, double now);
  void start(const Event& event);
  void join_flow(uint32_t number, double now);
  void flow(uint32_t number, double now);
  void flowed(uint32_t number, double now);
  double queue_up(double begin, const Message& message, double bytes, uint32_t* cause, double* left);
  void pass(uint32_t number, double left, double passed);
  void arrived(const Event& event);
  void take(uint32_t number, double now);
  void copy(uint32_t actor, uint32_t op, uint32_t tile, double now, uint32_t cause);
  void done(const Event& event);
  void settle(uint32_t actor, double now);
  void handle(const Event& event);
  void share(double now);
  Status finish();
  void find_critical_path();

  uint32_t record(const SimulatedSpan& span) {
    if (!options_.record) return kNone;
    result_.spans.push_back(span);
    return static_cast<uint32_t>(result_.spans.size() - 1);
  }
  double work(ActorState& state, double now, double microseconds, uint32_t* cause) {
    if (state.cpu > now) *cause = state.cpu_last;
    state.cpu = std::max(state.cpu, now) + microseconds * state.slow;
    return state.cpu;
  }
  size_t slot(const ActorState& state, uint32_t op, uint32_t tile) const {
    return state.first_slot + size_t{tile % window_} * state.outline->ops.size() + op;
  }
  // What leads out of, or into, the part of this level that an actor's rank is in.
  size_t port(int level, uint32_t actor) const {
    if (level == 0) return actor;
    const int group = tree_.group(level - 1, parts_.actors[actor].rank);
    return first_port_[static_cast<size_t>(level)] + group_[static_cast<size_t>(level)][static_cast<size_t>(group)];
  }
  double weight(int level, uint32_t actor) const { return weights_[static_cast<size_t>(level)][actor]; }
  bool is_fair() const { return options_.sharing == Sharing::fair; }
  const Link& link_of(const Message& message) const {
    return links_[static_cast<size_t>(parts_.wires[message.wire].level)];
  }

  const Program& program_;
  const Hierarchy& tree_;
  const Links& links_;
  const SimulateOptions& options_;
  Partition parts_;
  double tile_chunk_ = 0;  // bytes
  uint32_t tiles_ = 1, window_ = 1;
  std::vector<ActorState> actors_;
  std::vector<Cursor> cursors_;    // by queue
  std::vector<uint32_t> missing_;  // by actor, tile of the window, and op
  std::vector<uint32_t> cause_;    // the same, where it is recorded
  std::vector<uint32_t> left_;     // by actor and tile of the window
  std::vector<Message> messages_;
  std::vector<uint32_t> free_messages_;
  std::vector<Waiting> waiting_;  // by wire
  std::vector<size_t> first_port_;
  std::vector<std::vector<size_t>> group_;    // by level and group: the one that stands for it
  std::vector<std::vector<double>> weights_;  // by level and actor: ranks that pass the port at once
  std::vector<Port> out_, in_;
  std::optional<FairLinks> fair_;
  std::vector<uint32_t> flow_message_;
  std::vector<Waiting> lines_;  // by wire: messages whose bytes move, or would if it were their turn
  std::vector<FairLinks::Use> uses_;
  EventQueue events_;
  double end_ = 0;
  uint32_t last_span_ = kNone;
  Simulation result_;
};

Status Simulator::make_actors() {
  auto first = plan_of(program_, tree_, options_, 0);
  if (!first.ok()) return first.status();
  const Shape shape = shape_of(program_.collective(), tree_.ranks(), 0, options_.root);
  const double chunk = static_cast<double>(options_.bytes) / (double((*first)->chunks_per_block) * shape.blocks());
  tiles_ = static_cast<uint32_t>(std::clamp(std::ceil(chunk / static_cast<double>(options_.tile_bytes)), 1.0, 1e6));
  tile_chunk_ = chunk / tiles_;
  window_ = std::max(1U, std::min(options_.window, tiles_));
  auto found = partition(program_, tree_, options_, window_, (*first)->ops.size());
  if (!found.ok()) return found.status();
  parts_ = std::move(*found);
  double slots = 0;
  for (const Actor& actor : parts_.actors)
    slots += static_cast<double>(parts_.outlines[actor.outline]->ops.size()) * window_;
  if (slots > kMostOps) {
    return error(weftInvalidArgument,
                 "{} {} of {} ranks in {} classes has {:.3g} operations in its window of {} tiles; legal: up to {:.3g}",
                 name_of(program_.collective()), program_.name(), tree_.ranks(), parts_.actors.size(), slots, window_,
                 kMostOps);
  }
  size_t used = 0;
  for (const Actor& actor : parts_.actors) {
    const Outline& outline = *parts_.outlines[actor.outline];
    actors_.push_back({.outline = &outline, .first_slot = used});
    for (const Schedule::Queue& queue : outline.schedule.queues) cursors_.emplace_back(outline.schedule, queue, tiles_);
    used += outline.ops.size() * window_;
  }
  missing_.resize(used);
  if (options_.record) cause_.assign(used, kNone);
  left_.resize(actors_.size() * window_);
  waiting_.resize(parts_.wires.size());
  for (const auto& [rank, factor] : options_.slow_ranks)
    actors_[parts_.actor_of[static_cast<size_t>(rank)]].slow = factor;
  return {};
}

// How many ranks of an actor's class are in its own group.
void Simulator::weigh_ports() {
  for (int level = 0; level < tree_.levels(); ++level) {
    auto& weights = weights_.emplace_back(actors_.size(), level == 0 ? 1.0 : 0.0);
    for (int rank = 0; level > 0 && rank < tree_.ranks(); ++rank) {
      const uint32_t actor = parts_.actor_of[static_cast<size_t>(rank)];
      if (tree_.group(level - 1, rank) == tree_.group(level - 1, parts_.actors[actor].rank)) ++weights[actor];
    }
  }
}

void Simulator::make_ports() {
  size_t count = 0;
  for (int level = 0; level < tree_.levels(); ++level) {
    first_port_.push_back(count);
    auto& groups = group_.emplace_back();
    count += level == 0 ? actors_.size() : static_cast<size_t>(tree_.groups(level - 1));
    out_.resize(count, {.byte_ns = links_[static_cast<size_t>(level)].byte_ns});
    if (level == 0) continue;
    // Groups that are made of the same classes are one: that of the actor of their first rank.
    groups.assign(static_cast<size_t>(tree_.groups(level - 1)), SIZE_MAX);
    for (int rank = 0; rank < tree_.ranks(); ++rank) {
      size_t& group = groups[static_cast<size_t>(tree_.group(level - 1, rank))];
      const Actor& actor = parts_.actors[parts_.actor_of[static_cast<size_t>(rank)]];
      if (group == SIZE_MAX) group = static_cast<size_t>(tree_.group(level - 1, actor.rank));
    }
  }
  for (const auto& slow : options_.slow_groups) {
    const auto level = static_cast<size_t>(slow.level) + 1;
    if (level < first_port_.size())
      out_[first_port_[level] + group_[level][static_cast<size_t>(slow.group)]].byte_ns *= slow.factor;
  }
  in_ = out_;
  weigh_ports();
  result_.levels.resize(static_cast<size_t>(tree_.levels()));
  if (is_fair()) start_links();
}

void Simulator::start_links() {
  std::vector<double> capacities;
  for (const auto* ports : {&out_, &in_}) {
    for (const Port& port : *ports) capacities.push_back(port.byte_ns > 0 ? 1000 / port.byte_ns : 0);
  }
  fair_.emplace(std::move(capacities));
  lines_.resize(parts_.wires.size());
}

Result<Simulation> Simulator::run() {
  WEFT_RETURN_IF_ERROR(make_actors());
  make_ports();
  const std::clock_t begin = std::clock();
  for (uint32_t actor = 0; actor < actors_.size(); ++actor) {
    for (uint32_t tile = 0; tile < window_; ++tile) open_tile(actor, tile, 0);
    const size_t queues = actors_[actor].outline->schedule.queues.size();
    for (uint32_t queue = 0; queue < queues; ++queue) advance(actor, queue, 0);
    settle(actor, 0);
  }
  while (!events_.empty()) {
    const double now = events_.top().time;
    while (!events_.empty() && events_.top().time == now) handle(events_.pop());
    if (fair_ && fair_->unsettled()) share(now);
  }
  result_.cpu_seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  WEFT_RETURN_IF_ERROR(finish());
  return std::move(result_);
}

void Simulator::handle(const Event& event) {
  if (event.kind == Event::Kind::ended && !fair_->is_current(event.item, event.second)) return;
  ++result_.events;
  switch (event.kind) {
    case Event::Kind::ended:
      fair_->end(event.item);
      return flowed(flow_message_[event.item], event.time);
    case Event::Kind::done:
      return done(event);
    case Event::Kind::arrived:
      return arrived(event);
    case Event::Kind::start:
      return start(event);
  }
}

Status Simulator::finish() {
  for (const ActorState& state : actors_) {
    if (state.low < tiles_) return error(weftInternalError, "the simulation of {} came to a halt", program_.file());
  }
  // Where one stands for all it is in the middle of those who queue up with it; the last is done when the port is free.
  for (uint32_t actor = 0; actor < actors_.size() && !is_fair(); ++actor) {
    for (int level = 1; level < tree_.levels(); ++level) {
      const double last = std::max(out_[port(level, actor)].free, in_[port(level, actor)].free);
      if (last > 0 && weight(level, actor) > 1)
        end_ = std::max(end_, last + links_[static_cast<size_t>(level)].latency_us);
    }
  }
  result_.microseconds = end_;
  result_.simulated_ranks = result_.classes = static_cast<int>(actors_.size());
  result_.sampled = parts_.sampled;
  for (int level = 0; level < tree_.levels() && end_ > 0; ++level) {
    auto& use = result_.levels[static_cast<size_t>(level)];
    const size_t begin = first_port_[static_cast<size_t>(level)];
    const size_t end = level + 1 < tree_.levels() ? first_port_[static_cast<size_t>(level) + 1] : out_.size();
    for (size_t i = begin; i < end; ++i) use.busiest = std::max({use.busiest, out_[i].busy / end_, in_[i].busy / end_});
  }
  find_critical_path();
  return {};
}

void Simulator::open_tile(uint32_t index, uint32_t tile, double now) {
  const ActorState& state = actors_[index];
  const Outline& outline = *state.outline;
  left_[size_t{index} * window_ + tile % window_] = static_cast<uint32_t>(outline.ops.size());
  const auto at = static_cast<std::ptrdiff_t>(slot(state, 0, tile));
  std::copy(outline.predecessors.begin(), outline.predecessors.end(), missing_.begin() + at);
  if (options_.record) std::fill_n(cause_.begin() + at, outline.ops.size(), kNone);
  for (const uint32_t op : outline.first_copies) copy(index, op, tile, now, kNone);
}

// Posts what can be posted next on a wire.
void Simulator::advance(uint32_t index, uint32_t queue, double now) {
  ActorState& state = actors_[index];
  const uint32_t at = parts_.actors[index].first_queue + queue;
  Cursor& cursor = cursors_[at];
  const uint32_t wire = parts_.wire_of[at];
  const bool sends = state.outline->schedule.queues[queue].verb == Verb::send;
  while (!cursor.at_end()) {
    const uint32_t op = cursor.op(), tile = cursor.tile();
    if (tile >= state.low + window_ || missing_[slot(state, op, tile)] > 0) return;
    cursor.next();
    uint32_t cause = options_.record ? cause_[slot(state, op, tile)] : kNone;
    double time = now;
    if (sends) {
      time = work(state, now, links_[static_cast<size_t>(parts_.wires[wire].level)].message_us, &cause);
    }
    post(wire, sends, time, op, tile, cause, now);
  }
}

// One end of a message. Those that are not eager begin when both are there.
void Simulator::post(uint32_t wire, bool send, double time, uint32_t op, uint32_t tile, uint32_t cause, double now) {
  Waiting& waiting = waiting_[wire];
  uint32_t number = waiting.first;
  if (number != kNone && (send ? !messages_[number].has_send : !messages_[number].has_receive)) {
    waiting.first = messages_[number].next;
  } else {
    if (free_messages_.empty()) {
      free_messages_.push_back(static_cast<uint32_t>(messages_.size()));
      messages_.emplace_back();
    }
    number = free_messages_.back();
    free_messages_.pop_back();
    messages_[number] = {.wire = wire, .tile = tile};
    (waiting.first == kNone ? waiting.first : messages_[waiting.last].next) = number;
    waiting.last = number;
  }
  Message& message = messages_[number];
  (send ? message.has_send : message.has_receive) = true;
  (send ? message.sent : message.received) = time;
  (send ? message.send_op : message.receive_op) = op;
  const Wire& ends = parts_.wires[wire];
  bool eager = false, begins = false;
  if (message.has_send) {
    const double bytes = actors_[ends.sender].outline->ops[message.send_op].chunks * tile_chunk_;
    eager = bytes <= static_cast<double>(options_.eager_bytes);
    begins = eager ? send : message.has_receive;
  }
  if (!eager && send && message.has_receive && message.received > message.sent) cause = message.cause;
  if (send || (message.has_send && !eager && message.received > message.sent)) message.cause = cause;
  if (begins) {
    events_.push({.time = eager ? message.sent : std::max(message.sent, message.received),
                  .kind = Event::Kind::start,
                  .first = message.send_op,
                  .second = ends.in_queue,
                  .tile = tile,
                  .who = wire,
                  .item = number});
    if (eager) {
      events_.push({.time = message.sent, .first = op, .tile = tile, .who = ends.sender, .item = kNone});
    }
  }
  if (!send && message.landed) take(number, now);
}

// The bytes of a message begin to move.
void Simulator::start(const Event& event) {
  const Message& message = messages_[event.item];
  const Wire& ends = parts_.wires[message.wire];
  const Outline::Operation& op = actors_[ends.sender].outline->ops[message.send_op];
  const double bytes = op.chunks * tile_chunk_;
  auto& use = result_.levels[static_cast<size_t>(ends.level)];
  use.bytes += bytes * parts_.actors[ends.sender].size;
  use.messages += parts_.actors[ends.sender].size;
  uint32_t cause = message.cause;
  double left = event.time, passed = event.time;
  if (!is_fair()) passed = queue_up(event.time, message, bytes, &cause, &left);
  messages_[event.item].span = record({.rank = ends.to,
                                       .peer = ends.from,
                                       .op = message.receive_op,
                                       .tile = message.tile,
                                       .step = op.step,
                                       .begin = event.time,
                                       .end = passed,
                                       .cause = cause});
  is_fair() ? join_flow(event.item, event.time) : pass(event.item, left, passed);
}

// First come, first served: when it has passed all ports, and when those of its sender.
double Simulator::queue_up(double begin, const Message& message, double bytes, uint32_t* cause, double* left) {
  const Wire& ends = parts_.wires[message.wire];
  double passed = begin;
  for (int level = std::min(ends.level, 1); level <= ends.level; ++level) {
    for (const bool outward : {true, false}) {
      const uint32_t actor = outward ? ends.sender : ends.receiver;
      Port& place = (outward ? out_ : in_)[port(level, actor)];
      const double alone = bytes * place.byte_ns / 1000, took = alone * weight(level, actor);
      const double from = std::max(place.free, begin), through = from + (alone + took) / 2;
      if (through > passed && place.free > begin) *cause = place.last;
      place.free = from + took;
      place.busy += took;
      if (outward) *left = std::max(*left, through);
      passed = std::max(passed, through);
      if (options_.record) place.last = static_cast<uint32_t>(result_.spans.size());
    }
  }
  return passed;
}

// Wires share what they pass; on each wire one message goes after the other.
void Simulator::join_flow(uint32_t number, double now) {
  Waiting& line = lines_[messages_[number].wire];
  (line.first == kNone ? line.first : messages_[line.last].behind) = number;
  line.last = number;
  if (line.first == number) flow(number, now);
}

void Simulator::flow(uint32_t number, double now) {
  const Message& message = messages_[number];
  const Wire& ends = parts_.wires[message.wire];
  const double bytes = actors_[ends.sender].outline->ops[message.send_op].chunks * tile_chunk_;
  uses_.clear();
  for (int level = std::min(ends.level, 1); level <= ends.level; ++level) {
    for (const bool outward : {true, false}) {
      const uint32_t actor = outward ? ends.sender : ends.receiver;
      const size_t index = port(level, actor);
      Port& place = (outward ? out_ : in_)[index];
      if (place.byte_ns <= 0) continue;
      place.busy += bytes * weight(level, actor) * place.byte_ns / 1000;
      uses_.push_back({static_cast<uint32_t>(outward ? index : index + out_.size()), weight(level, actor)});
    }
  }
  if (bytes <= 0 || uses_.empty()) return flowed(number, now);
  const uint32_t flow = fair_->begin(now, bytes, uses_);
  if (flow >= flow_message_.size()) flow_message_.resize(flow + 1);
  flow_message_[flow] = number;
}

void Simulator::flowed(uint32_t number, double now) {
  Waiting& line = lines_[messages_[number].wire];
  const uint32_t next = line.first = messages_[number].behind;
  pass(number, now, now);
  if (next != kNone) flow(next, now);
}

void Simulator::share(double now) {
  for (const FairLinks::Change& change : fair_->share(now)) {
    const Message& message = messages_[flow_message_[change.flow]];
    events_.push({.time = change.end,
                  .kind = Event::Kind::ended,
                  .first = message.send_op,
                  .second = change.version,
                  .tile = message.tile,
                  .who = message.wire,
                  .item = change.flow});
  }
}

// A message has left its sender, and passed all that is on its way.
void Simulator::pass(uint32_t number, double left, double passed) {
  const Message& message = messages_[number];
  const Wire& ends = parts_.wires[message.wire];
  const Outline::Operation& op = actors_[ends.sender].outline->ops[message.send_op];
  if (op.chunks * tile_chunk_ > static_cast<double>(options_.eager_bytes)) {
    events_.push(
        {.time = left, .first = message.send_op, .tile = message.tile, .who = ends.sender, .item = message.span});
  }
  events_.push({.time = passed + link_of(message).latency_us,
                .kind = Event::Kind::arrived,
                .first = ends.in_queue,
                .second = message.send_op,
                .tile = message.tile,
                .who = ends.receiver,
                .item = number});
}

void Simulator::arrived(const Event& event) {
  Message& message = messages_[event.item];
  message.landed = true;
  if (message.has_receive) take(event.item, event.time);
}

// A message is there and wanted: its receiver has to take it, and to combine it.
void Simulator::take(uint32_t number, double now) {
  const Message message = messages_[number];
  free_messages_.push_back(number);
  const uint32_t receiver = parts_.wires[message.wire].receiver;
  ActorState& state = actors_[receiver];
  const Outline::Operation& op = state.outline->ops[message.receive_op];
  uint32_t cause = kNone;
  const double combined = op.combined * tile_chunk_ * options_.combine_ns / 1000;
  const double end = work(state, now, link_of(message).message_us + combined, &cause);
  if (options_.record) {
    SimulatedSpan& span = result_.spans[message.span];
    span.op = message.receive_op;
    span.step = op.step;
    span.reduce = op.reduce;
    span.end = end;
    if (cause != kNone && cause != message.span) span.cause = cause;
    state.cpu_last = message.span;
  }
  events_.push({.time = end, .first = message.receive_op, .tile = message.tile, .who = receiver, .item = message.span});
}

void Simulator::ready(uint32_t index, uint32_t op, uint32_t tile, double now, uint32_t cause) {
  const ActorState& state = actors_[index];
  const Outline::Operation& operation = state.outline->ops[op];
  if (operation.verb == Verb::copy) return copy(index, op, tile, now, cause);
  if (options_.record) cause_[slot(state, op, tile)] = cause;
  advance(index, operation.queue, now);
}

void Simulator::copy(uint32_t index, uint32_t op, uint32_t tile, double now, uint32_t cause) {
  ActorState& state = actors_[index];
  const Outline::Operation& operation = state.outline->ops[op];
  const double begin = std::max(state.cpu, now);
  const double end = work(state, now, operation.combined * tile_chunk_ * options_.combine_ns / 1000, &cause);
  const uint32_t span = record({.rank = parts_.actors[index].rank,
                                .op = op,
                                .tile = tile,
                                .step = operation.step,
                                .reduce = operation.reduce,
                                .begin = begin,
                                .end = end,
                                .cause = cause});
  if (options_.record) state.cpu_last = span;
  events_.push({.time = end, .first = op, .tile = tile, .who = index, .item = span});
}

void Simulator::done(const Event& event) {
  const uint32_t op = event.first;
  ActorState& state = actors_[event.who];
  const Outline& outline = *state.outline;
  if (event.time >= end_) {
    end_ = event.time;
    last_span_ = event.item;
  }
  --left_[size_t{event.who} * window_ + event.tile % window_];
  for (uint32_t i = outline.successor_begin[op]; i < outline.successor_begin[op + 1]; ++i) {
    const uint32_t next = outline.successors[i];
    if (--missing_[slot(state, next, event.tile)] == 0) ready(event.who, next, event.tile, event.time, event.item);
  }
  settle(event.who, event.time);
}

// Moves the window past tiles of which everything is done.
void Simulator::settle(uint32_t index, double now) {
  ActorState& state = actors_[index];
  bool opened = false;
  while (state.low < tiles_ && left_[size_t{index} * window_ + state.low % window_] == 0) {
    const uint32_t tile = state.low + window_;
    ++state.low;
    if (tile < tiles_) open_tile(index, tile, now);
    opened = opened || tile < tiles_;
  }
  const size_t queues = state.outline->schedule.queues.size();
  for (uint32_t queue = 0; opened && queue < queues; ++queue) advance(index, queue, now);
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
}  // namespace simulation

Result<Simulation> simulate(const Program& program, const Topology& topology, const Links& links,
                            const SimulateOptions& options) {
  return simulation::Simulator(program, topology, links, options).run();
}

}  // namespace weft
