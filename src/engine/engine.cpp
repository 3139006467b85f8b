#include "engine/engine.hpp"

#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/comm.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

void prepare_memory(void* comm, const Piece& memory) { static_cast<Comm*>(comm)->prepare(memory); }

Wire* wire_of(void* comm, int peer) { return static_cast<Comm*>(comm)->wire(peer); }

// Elements from a buffer's start to the end of its last block.
size_t extent(const std::vector<size_t>& counts, const std::vector<size_t>& displs) {
  size_t end = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) end = std::max(end, displs[i] + counts[i]);
  }
  return end;
}

// Where the input lies: gaps between a v-variant's blocks are not ours to read.
template <typename Visit>
void each_run(const Call& call, size_t elements, Visit visit) {
  if (call.in_counts.empty()) {
    visit(size_t{0}, elements);
    return;
  }
  for (size_t i = 0; i < call.in_counts.size(); ++i) {
    if (call.in_counts[i] > 0) visit(call.in_displs[i], call.in_counts[i]);
  }
}

size_t in_elements(const Call& call, int ranks) {
  if (call.collective == Collective::reducescatter) return call.count * static_cast<size_t>(ranks);
  if (call.collective == Collective::reducescatterv) return extent(call.in_counts, call.in_displs);
  return call.count;
}

// What the tuner goes by: bytes of the larger buffer, 0 where ranks may differ.
size_t tuner_bytes(const Call& call, int ranks) {
  const size_t block = call.count * type_bytes(call.type);
  switch (call.collective) {
    case Collective::allreduce:
    case Collective::reduce:
    case Collective::broadcast:
      return block;
    case Collective::allgather:
    case Collective::reducescatter:
    case Collective::alltoall:
    case Collective::gather:
    case Collective::scatter:
      return block * static_cast<size_t>(ranks);
    default:
      return 0;
  }
}

// As the recorder calls them.
const char* name_of_pair(bool sends) { return sends ? "send" : "recv"; }

// As describe(Call) had it.
std::string describe_call(const OpSnapshot& op) {
  if (op.collective == "barrier" || op.collective == kRegistration) return op.collective;
  std::string text = op.collective == "alltoallv" ? fmt::format("alltoallv of {}", op.type)
                                                  : fmt::format("{} of {} {}", op.collective, op.count, op.type);
  if (!op.op.empty()) text += ", " + op.op;
  if (op.root >= 0) text += fmt::format(", root {}", op.root);
  return text;
}

// Bytes of an output from which on results that the collective reads no more bypass the caches.
constexpr size_t kStreamResults = 4 << 20;

weftRedOp_t base_op(const Call& call) { return call.scaled || call.op == weftAvg ? weftSum : call.op; }

}  // namespace

Engine::Engine(Comm& comm)
    : comm_(comm),
      send_sequence_(static_cast<size_t>(comm.size())),
      recv_sequence_(static_cast<size_t>(comm.size())),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      spins_(comm.config().spin >= 0          ? comm.config().spin
             : comm.topology().oversubscribed ? 1
                                              : 4000) {
  if (bell_) (void)comm_.poller().add(bell_.get(), EPOLLIN);
}

Engine::~Engine() = default;

// ---- Submission

OperationPtr Engine::create(Call call) {
  auto operation = std::make_shared<Operation>();
  operation->id.signature = signature(call);
  if (call.collective == Collective::sendrecv) {
    turns_.fetch_add(kUnstarted);
    std::lock_guard lock(inbox_mutex_);
    auto& sequences = call.is_send ? send_sequence_ : recv_sequence_;
    operation->id.sequence = MessageId::kPointToPoint | (sequences[static_cast<size_t>(call.root)]++ & 0x7fffffff);
  } else {
    operation->id.sequence = static_cast<uint32_t>(turns_.fetch_add(kUnstarted + 1) & 0x7fffffff);
  }
  operation->call = std::move(call);
  return operation;
}

void Engine::submit(const OperationPtr& operation) {
  {
    std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(operation);
    inbox_size_.store(inbox_.size());
  }
  if (sleeping_.load()) wake();
}

bool Engine::take_inbox() {
  if (inbox_size_.load(std::memory_order_acquire) == 0) return false;
  std::vector<OperationPtr> taken;
  {
    std::lock_guard lock(inbox_mutex_);
    taken.swap(inbox_);
    inbox_size_.store(0);
  }
  for (const OperationPtr& operation : taken) {
    start(operation);
    turns_.fetch_sub(kUnstarted);
  }
  return true;
}

Status Engine::wait_all(const std::vector<std::pair<Comm*, OperationPtr>>& operations) {
  struct Place {
    Comm* comm;
    std::unique_lock<std::mutex> lock;
    Wait wait;
  };
  std::vector<Place> places;
  for (const auto& [comm, operation] : operations) {
    const auto same = [comm = comm](const Place& place) { return place.comm == comm; };
    if (std::any_of(places.begin(), places.end(), same)) continue;
    places.push_back({comm, std::unique_lock(comm->engine().mutex_, std::defer_lock), Wait(comm->engine().spins_)});
  }
  // One that waits for several communicators must not sleep long in one of them.
  if (places.size() > 1) {
    for (Place& place : places) place.wait = Wait(10, 1);
  }
  // The lock of a communicator is only tried: another thread that has it moves our operations on, and may have to wait
  // for what we do next once they are done.
  const auto all_done = [&] {
    return std::all_of(operations.begin(), operations.end(),
                       [](const auto& entry) { return entry.second->done.load(); });
  };
  for (int idle = 0; !all_done();) {
    bool moved = false, driving = false;
    for (Place& place : places) {
      if (place.comm->engine().guests_.load() > 0) {
        if (place.lock.owns_lock()) place.lock.unlock();
        continue;
      }
      if (!place.lock.owns_lock() && !place.lock.try_lock()) continue;
      driving = true;
      moved |= place.comm->engine().progress();
    }
    idle = moved ? 0 : idle + 1;
    if (!driving) {
      idle < 1000 ? static_cast<void>(::sched_yield()) : std::this_thread::sleep_for(std::chrono::microseconds(50));
      continue;
    }
    for (Place& place : places) {
      if (!place.lock.owns_lock()) continue;
      if (moved) {
        place.wait.moved();
      } else {
        place.comm->engine().pause(place.wait, nullptr);
      }
    }
  }
  for (const auto& [comm, operation] : operations) {
    if (!operation->result.ok()) return operation->result;
  }
  return {};
}

// ---- Starting

void Engine::start(const OperationPtr& operation) {
  operation->since = Clock::now();
  if (comm_.failed()) {
    finish(*operation, comm_.status());
    return;
  }
  if (operation->call.collective == Collective::sendrecv && operation->call.root == comm_.rank()) {
    match_own(operation);
    return;
  }
  Status status = prepare(*operation);
  if (status.ok()) {
    status =
        operation->call.collective == Collective::sendrecv ? launch_point_to_point(*operation) : launch(*operation);
  }
  if (!status.ok()) {
    // Nothing of it has reached the others, which cannot go on without us.
    comm_.fail(status, true);
    finish(*operation, status);
    return;
  }
  if (operation->flow->done()) {
    complete_output(*operation);
    finish(*operation, {});
  } else {
    active_.push_back(operation);
  }
}

// Widened and pre-multiplied inputs are made in work memory; the plan then reads and writes there.
Status Engine::prepare(Operation& operation) {
  const Call& call = operation.call;
  operation.in = const_cast<std::byte*>(static_cast<const std::byte*>(call.in));
  operation.out = static_cast<std::byte*>(call.out);
  operation.type = call.type;
  if (call.collective == Collective::barrier) {  // its one byte is the operation's own
    operation.in = operation.call.scalar;
    operation.out = operation.call.scalar + 1;
  }
  if (!call.wide && !call.scaled) return {};
  const size_t elements = in_elements(call, comm_.size());
  if (elements == 0) return {};
  if (call.scalar_at != nullptr) std::memcpy(operation.call.scalar, call.scalar_at, type_bytes(call.type));
  operation.work = std::make_unique<Scratch>();
  const size_t element = call.wide ? sizeof(float) : type_bytes(call.type);
  std::byte* work = operation.work->get(elements * element);
  if (work == nullptr) return error(weftSystemError, "no memory for {} bytes of partial results", elements * element);
  if (call.wide) operation.type = weftFloat32;
  each_run(call, elements, [&](size_t first, size_t count) {
    const std::byte* from = operation.in + first * type_bytes(call.type);
    std::byte* to = work + first * element;
    if (!call.wide) {
      scale(to, from, call.scalar, count, call.type);
      return;
    }
    widen(reinterpret_cast<float*>(to), from, count, call.type);
    if (!call.scaled) return;
    float factor;
    widen(&factor, call.scalar, 1, call.type);
    scale(to, to, &factor, count, weftFloat32);
  });
  operation.in = work;
  if (call.wide && operation.out != nullptr) {
    // In place in the work memory: the result is narrowed from there.
    size_t own = 0;
    if (call.collective == Collective::reducescatter) own = call.count * static_cast<size_t>(comm_.rank());
    if (call.collective == Collective::reducescatterv) own = call.in_displs[static_cast<size_t>(comm_.rank())];
    operation.out = work + own * sizeof(float);
  }
  return {};
}

void Engine::complete_output(Operation& operation) {
  const Call& call = operation.call;
  const bool has_output =
      call.reduces() && call.out != nullptr && (call.collective != Collective::reduce || call.root == comm_.rank());
  if (!has_output || call.count == 0) return;
  if (call.op == weftAvg) divide(operation.out, operation.out, comm_.size(), call.count, operation.type);
  if (call.wide) narrow(call.out, reinterpret_cast<const float*>(operation.out), call.count, call.type);
}

Result<PlanEntry> Engine::plan(const Choice& choice, Collective, int root, bool in_place) {
  const uint64_t key = uint64_t{choice.program_index} << 32 | uint64_t{static_cast<uint32_t>(root + 1)} << 1 | in_place;
  if (auto found = plans_.find(key); found != plans_.end()) return found->second;
  ExpandOptions options{.ranks = comm_.size(),
                        .rank = comm_.rank(),
                        .root = std::max(root, 0),
                        .in_place = in_place,
                        .hierarchy = &comm_.topology().hierarchy};
  auto expanded = expand(*choice.program, options);
  if (!expanded.ok()) return expanded.status();
  PlanEntry entry{*expanded, std::make_shared<Schedule>(**expanded, choice.window, choice.order)};
  constexpr size_t kMostPlans = 512;
  if (plans_.size() >= kMostPlans) plans_.clear();  // flows in flight keep theirs
  plans_[key] = entry;
  log(LogLevel::info, "{}: {} with tiles of {} bytes ({})", name_of(choice.program->collective()),
      choice.program->name(), choice.tile_bytes, choice.reason);
  return entry;
}

OpShape Engine::shape(const Call& call, std::string_view algorithm, int peer) {
  FlightRecorder& recorder = comm_.recorder();
  OpShape shape;
  shape.collective = recorder.name(call.registers                            ? kRegistration
                                   : call.collective != Collective::sendrecv ? name_of(call.collective)
                                                                             : name_of_pair(call.is_send));
  shape.type = recorder.name(kTypes[call.type].name);
  shape.op = call.reduces() ? recorder.name(call.scaled ? "premulsum" : kOps[call.op]) : uint8_t{0};
  shape.algorithm = recorder.name(algorithm);
  shape.transport = recorder.name(peer < 0 ? "" : comm_.transport_to(peer));
  shape.root = call.root;
  shape.count = call.count;
  shape.bytes = call.count * type_bytes(call.type);
  return shape;
}

Status Engine::launch(Operation& operation) {
  const Call& call = operation.call;
  operation.choice = comm_.tuner().choose(call.collective, tuner_bytes(call, comm_.size()));
  if (operation.choice.program == nullptr) {
    return error(weftInvalidUsage, "no algorithm for {} supports {} ranks", name_of(call.collective), comm_.size());
  }
  const bool on_spot = operation.work != nullptr
                           ? call.wide && operation.out != nullptr &&
                                 (call.collective != Collective::reduce || call.root == comm_.rank())
                           : in_place(call, comm_.rank());
  auto entry = plan(operation.choice, call.collective, call.root, on_spot);
  if (!entry.ok()) return entry.status();
  if (idle_flows_.empty()) idle_flows_.push_back(std::make_unique<Flow>());
  operation.flow = std::move(idle_flows_.back());
  idle_flows_.pop_back();
  Geometry& geometry = operation.flow->geometry();
  geometry.bind(call, *entry->plan, type_bytes(operation.type), operation.choice.tile_bytes, operation.choice.window);
  geometry.set_buffers(operation.in, operation.out);
  Flow::Launch launch{.entry = *entry,
                      .id = operation.id,
                      .wire_to = wire_of,
                      .prepare = comm_.registers() ? prepare_memory : nullptr,
                      .owner = &comm_,
                      .rank = comm_.rank(),
                      .group = comm_.group()};
  launch.stream = call.count * type_bytes(operation.type) >= kStreamResults;
  if (call.reduces() || call.collective == Collective::barrier) {
    launch.reduce = reduce_function(operation.type, base_op(call));
    launch.streaming = reduce_function(operation.type, base_op(call), true);
  }
  operation.begun_ticks = ticks_now();
  const int neighbour = entry->plan->ops.empty() ? -1 : entry->plan->ops.front().peer;
  operation.ticket =
      comm_.recorder().begin(shape(call, operation.choice.program->name(), neighbour), operation.id.sequence);
  if (operation.flow->start(launch)) return {};
  return comm_.failed() ? comm_.status()
                        : error(weftSystemError, "no memory for the scratch tiles of {}", describe(call));
}

PlanEntry Engine::point_to_point_plan(int peer, bool is_send) {
  const uint64_t key = uint64_t{1} << 63 | uint64_t{static_cast<uint32_t>(peer)} << 1 | is_send;
  if (auto found = plans_.find(key); found != plans_.end()) return found->second;
  auto plan = std::make_shared<Plan>();
  plan->collective = Collective::sendrecv;
  plan->algorithm = "direct";
  plan->ranks = comm_.size();
  plan->rank = comm_.rank();
  plan->steps = 1;
  (is_send ? plan->in_blocks : plan->out_blocks) = 1;
  Op op;
  op.verb = is_send ? Verb::send : Verb::recv;
  op.peer = peer;
  (is_send ? op.src_regions : op.dst_regions) = 1;
  plan->regions.push_back({is_send ? Buffer::in : Buffer::out, 0, 1});
  plan->ops.push_back(op);
  plan->predecessors = {0};
  plan->successor_begin = {0, 0};
  const uint32_t window = comm_.tuner().window();
  PlanEntry entry{plan, std::make_shared<Schedule>(*plan, window, comm_.tuner().order())};
  plans_[key] = entry;
  return entry;
}

Status Engine::launch_point_to_point(Operation& operation) {
  const Call& call = operation.call;
  const PlanEntry entry = point_to_point_plan(call.root, call.is_send);
  if (idle_flows_.empty()) idle_flows_.push_back(std::make_unique<Flow>());
  operation.flow = std::move(idle_flows_.back());
  idle_flows_.pop_back();
  const size_t tile = comm_.tuner().tile_bytes();
  operation.flow->geometry().bind(call, *entry.plan, type_bytes(call.type), tile, entry.schedule->window);
  operation.flow->geometry().set_buffers(operation.in, operation.out);
  operation.begun_ticks = ticks_now();
  operation.ticket = comm_.recorder().begin(shape(call, "direct", call.root), operation.id.sequence);
  if (operation.flow->start({.entry = entry,
                             .id = operation.id,
                             .stream = call.count * type_bytes(call.type) >= kStreamResults,
                             .wire_to = wire_of,
                             .prepare = comm_.registers() ? prepare_memory : nullptr,
                             .owner = &comm_,
                             .rank = comm_.rank(),
                             .group = comm_.group()})) {
    return {};
  }
  return comm_.failed() ? comm_.status() : error(weftSystemError, "no way to rank {}", call.root);
}

// A rank's messages to itself are matched in order, like all others.
void Engine::match_own(const OperationPtr& operation) {
  const bool is_send = operation->call.is_send;
  auto& others = is_send ? own_recvs_ : own_sends_;
  // In the order of the calls, not in that in which their streams come to them.
  const auto found = std::find_if(others.begin(), others.end(), [&](const OperationPtr& other) {
    return other->id.sequence == operation->id.sequence;
  });
  if (found == others.end()) {
    (is_send ? own_sends_ : own_recvs_).push_back(operation);
    return;
  }
  const OperationPtr other = *found;
  others.erase(found);
  const OperationPtr &send = is_send ? operation : other, &recv = is_send ? other : operation;
  Status status;
  if (send->call.count != recv->call.count || send->call.type != recv->call.type) {
    status = error(weftInvalidUsage, "rank {} sends itself {} and receives {}", comm_.rank(), describe(send->call),
                   describe(recv->call));
  } else if (send->call.count > 0) {
    copy(recv->call.out, send->call.in, send->call.count * type_bytes(send->call.type));
  }
  finish(*send, status);
  finish(*recv, status);
}

// ---- Progress and end

bool Engine::progress() {
  if (armed_) disarm();
  bool moved = take_inbox();
  moved |= comm_.progress_wires();
  for (size_t i = 0; i < active_.size();) {
    const OperationPtr operation = active_[i];
    if (operation->flow->advance()) moved = operation->moved = true;
    if (comm_.failed()) {
      end_all(comm_.status());
      return true;
    }
    if (operation->flow->done()) {
      active_.erase(active_.begin() + static_cast<ptrdiff_t>(i));
      complete_output(*operation);
      finish(*operation, {});
      moved = true;
    } else {
      ++i;
    }
  }
  return moved;
}

void Engine::finish(Operation& operation, Status result) {
  if (operation.flow != nullptr) {
    comm_.recorder().end(operation.ticket, result.ok());
    if (result.ok() && !(operation.id.sequence & MessageId::kPointToPoint)) {
      past_[operation.id.sequence % past_.size()] = {operation.id.sequence, operation.id.signature};
    }
    if (trace_enabled()) {
      trace_event({.kind = TraceKind::operation,
                   .rank = comm_.rank(),
                   .peer = operation.call.root,
                   .sequence = operation.id.sequence,
                   .group = comm_.group(),
                   .bytes = operation.call.count * type_bytes(operation.call.type),
                   .begin = operation.begun_ticks,
                   .end = ticks_now(),
                   .name = name_of(operation.call.collective)});
    }
    idle_flows_.push_back(std::move(operation.flow));
  }
  operations_.fetch_add(1, std::memory_order_relaxed);
  if (!result.ok()) failures_.fetch_add(1, std::memory_order_relaxed);
  operation.work.reset();
  operation.result = std::move(result);
  operation.done.store(true, std::memory_order_release);
}

void Engine::end_all(const Status& status) {
  std::vector<OperationPtr> ended;
  ended.swap(active_);
  for (auto* list : {&own_sends_, &own_recvs_}) {
    ended.insert(ended.end(), list->begin(), list->end());
    list->clear();
  }
  for (const OperationPtr& operation : ended) {
    if (operation->flow != nullptr) operation->flow->drop();
    finish(*operation, status);
  }
}

std::optional<Doing> Engine::past(uint32_t sequence) const {
  const Past& past = past_[sequence % past_.size()];
  if (past.sequence != sequence) return std::nullopt;
  Doing doing{sequence, past.signature, -1, "something that is no longer remembered"};
  for (const OpSnapshot& op : comm_.recorder().snapshot()) {
    if (op.sequence == sequence) doing.text = describe_call(op);
  }
  return doing;
}

std::optional<Doing> Engine::past_pair(uint32_t sequence, int peer, bool sends) const {
  for (const OpSnapshot& op : comm_.recorder().snapshot()) {
    if (op.sequence != sequence || op.root != peer || op.collective != name_of_pair(sends)) continue;
    if (op.state != OpState::done) continue;
    Call call;
    call.collective = Collective::sendrecv;
    call.root = peer;
    call.is_send = sends;
    call.count = op.count;
    for (int type = 0; type < weftNumTypes; ++type) {
      if (op.type == kTypes[type].name) call.type = static_cast<weftDataType_t>(type);
    }
    return Doing{sequence, signature(call), -1, describe(call), peer, sends};
  }
  return std::nullopt;
}

void Engine::note_moves() {
  const auto now = Clock::now();
  for (const OperationPtr& operation : active_) {
    if (std::exchange(operation->moved, false)) operation->since = now;
  }
}

Doing Engine::doing(const Operation& operation) const {
  const Call& call = operation.call;
  const bool pair = call.collective == Collective::sendrecv;
  return {operation.id.sequence, operation.id.signature, operation.flow == nullptr ? -1 : operation.flow->waiting_for(),
          describe(call),        pair ? call.root : -1,  pair && call.is_send};
}

const Operation* Engine::oldest() const {
  const Operation* oldest = nullptr;
  for (const auto* list : {&active_, &own_sends_, &own_recvs_}) {
    for (const OperationPtr& operation : *list) {
      if (oldest == nullptr || operation->since < oldest->since) oldest = operation.get();
    }
  }
  return oldest;
}

// ---- Blocking calls

Status Engine::run(Call& call) {
  if (std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock() && guests_.load() == 0) {
    if (armed_) disarm();
    Status status;
    if (try_small(call, &status)) return status;
  }
  const OperationPtr operation = create(call);
  submit(operation);
  return wait_all({{&comm_, operation}});
}

}  // namespace weft
