#include "comm/comm.hpp"

#include "log/log.hpp"
#include "status/process.hpp"

namespace weft {

Comm::Comm(std::unique_ptr<Bootstrap> bootstrap, const JobId& id, Config config, std::string label, Poller poller)
    : bootstrap_(std::move(bootstrap)),
      id_(id),
      config_(std::move(config)),
      label_(std::move(label)),
      rank_(bootstrap_->rank()),
      size_(bootstrap_->size()),
      forks_(forks()),
      poller_(std::move(poller)),
      wires_(static_cast<size_t>(size_)),
      used_wires_(static_cast<size_t>(size_)) {
  timeout_ms.store(config_.timeout_ms);
}

Comm::~Comm() {
  leave();
  // Wires look into their transports, and both into the poller.
  engine_.reset();
  wires_.clear();
  transports_.clear();
}

bool Comm::forked() const { return forks_ != forks(); }

void Comm::leave() {
  if (left_ || forked()) return;
  left_ = true;
  set_phase(CommPhase::finalizing);
  for (Wire* wire : used()) wire->close();
  bootstrap_->leave();
}

Wire* Comm::wire(int peer) {
  auto& wire = wires_[static_cast<size_t>(peer)];
  if (wire != nullptr) return wire.get();
  const int index = transport_of_[static_cast<size_t>(peer)];
  if (index < 0) {
    fail(error(weftSystemError, "rank {} and rank {} have no transport in common", rank_, peer), true);
    return nullptr;
  }
  Transport& transport = *transports_[static_cast<size_t>(index)];
  const std::string* address = address_of(peer, transport.name());
  wire = transport.connect(peer, *address, Deadline::after(std::chrono::milliseconds(timeout_ms.load())));
  const size_t before = used_.load(std::memory_order_relaxed);
  used_wires_[before] = wire.get();
  used_.store(before + 1, std::memory_order_release);
  if (!wire->connected()) ++unconnected_;
  return wire.get();
}

std::string_view Comm::transport_to(int peer) const {
  const int index = transport_of_[static_cast<size_t>(peer)];
  return index < 0 ? std::string_view() : transports_[static_cast<size_t>(index)]->name();
}

std::vector<int> Comm::mapping_peers() const {
  std::vector<int> peers;
  for (int peer = 0; peer < size_; ++peer) {
    const int index = transport_of_[static_cast<size_t>(peer)];
    if (index >= 0 && transports_[static_cast<size_t>(index)]->capability().maps_memory) peers.push_back(peer);
  }
  return peers;
}

void Comm::prepare(const Piece& memory) {
  for (Transport* transport : registering_) transport->prepare(memory);
}

Status Comm::pin(const Piece& memory) {
  for (Transport* transport : registering_) WEFT_RETURN_IF_ERROR(transport->pin(memory));
  return {};
}

void Comm::unpin(const Piece& memory) {
  for (Transport* transport : registering_) transport->unpin(memory);
}

bool Comm::progress_wires() {
  bool moved = false;
  for (Wire* wire : used()) moved |= wire->progress();
  if (unconnected_ > 0) moved |= progress_connections();
  return moved;
}

bool Comm::progress_connections() {
  bool moved = false;
  for (const auto& transport : transports_) moved |= transport->progress();
  if (unconnected_ > 0) {
    unconnected_ = 0;
    for (const Wire* wire : used()) unconnected_ += wire->connected() ? 0 : 1;
  }
  return moved;
}

void Comm::tick_wires() {
  for (Wire* wire : used()) wire->tick();
}

bool Comm::arm_wires() {
  const auto wires = used();
  for (size_t i = 0; i < wires.size(); ++i) {
    if (wires[i]->arm()) continue;
    while (i-- > 0) wires[i]->disarm();
    return false;
  }
  return true;
}

void Comm::disarm_wires() {
  for (Wire* wire : used()) wire->disarm();
}

void Comm::fail(Status status, bool tell) {
  if (failed_.load()) return;
  log(LogLevel::warn, "communicator {}: {}", label_.empty() ? fmt::format("{:x}", id_.group) : label_,
      status.message());
  if (status.code() == weftTimeout && log_enabled(LogLevel::warn)) {
    log(LogLevel::warn, "the last operations of rank {} in it:\n{}", rank_, recorder_->to_text());
  }
  {
    std::lock_guard lock(status_mutex_);
    status_ = std::move(status);
  }
  failed_.store(true, std::memory_order_release);
  set_phase(CommPhase::failed);
  if (tell) watch_->tell_failure(status_);
  for (Wire* wire : used()) wire->cancel();
  engine_->end_all(status_);
}

Status Comm::status() const {
  std::lock_guard lock(status_mutex_);
  return status_;
}

CommCounters Comm::counters() const {
  CommCounters counters;
  counters.job = config_.job_id;
  counters.label = label_;
  counters.rank = rank_;
  counters.size = size_;
  counters.group = id_.group;
  counters.operations = engine_->operations();
  counters.failures = engine_->failures();
  for (const Wire* wire : used()) {
    const WireStats& stats = wire->stats();
    counters.wires.push_back({wire->peer(), std::string(wire->transport()), stats.bytes_sent, stats.bytes_received,
                              stats.messages_sent, stats.messages_received, stats.messages_placed});
  }
  for (const auto& transport : transports_) {
    for (const RailCounters& rail : transport->rails()) {
      counters.rails.push_back({std::string(transport->name()), rail.name, rail.up, rail.bytes_sent,
                                rail.bytes_received, rail.failures, rail.connections});
    }
  }
  return counters;
}

}  // namespace weft
