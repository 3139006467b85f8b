#include "transports/verbs/fabric.hpp"

#include <arpa/inet.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "log/log.hpp"
#include "transports/verbs/connection_manager.hpp"
#include "transports/verbs/wire.hpp"

namespace weft::verbs {
namespace {

using std::chrono::milliseconds;

constexpr uint32_t kMostInline = 256;
constexpr milliseconds kTick{1}, kRetry{50};
// A queue pair in error gives back all that it holds within microseconds.
constexpr milliseconds kFlushTime{50};
constexpr int kBatch = 16;

uint64_t lane_key(int rail, uint32_t number) { return uint64_t{static_cast<uint32_t>(rail)} << 32 | number; }

}  // namespace

Result<std::shared_ptr<Fabric>> Fabric::create(const TransportContext& context, Registrations::FindRegion find_region) {
  auto ports = find_ports(*context.config);
  if (!ports.ok()) return ports.status();
  std::shared_ptr<Fabric> fabric(new Fabric(context));
  fabric->find_region_ = find_region;
  if (context.config->verbs_connect == "rdmacm") {
    auto manager = ConnectionManager::create(*fabric);
    if (!manager.ok()) return manager.status();
    fabric->manager_ = std::move(*manager);
  }
  std::string reasons;
  for (const Port& port : *ports) {
    std::string reason = port.used ? "" : port.reason;
    if (port.used && fabric->rails_.size() == kMostRails) reason = "there are eight rails already";
    if (reason.empty()) {
      Rail rail;
      rail.port = port;
      fabric->rails_.push_back(std::move(rail));
      const Status opened = fabric->open_rail(fabric->rails_.size() - 1);
      if (opened.ok()) continue;
      fabric->rails_.pop_back();
      reason = opened.message();
    }
    log(LogLevel::info, "verbs: {} is not used: {}", port.name(), reason);
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", port.name(), reason);
  }
  if (fabric->rails_.empty()) {
    return error(weftSystemError, "{}", reasons.empty() ? "there is no RDMA device" : reasons);
  }
  for (const Rail& rail : fabric->rails_) {
    fabric->names_.push_back(rail.port.name());
    log(LogLevel::info, "verbs: rail {}, GID {} ({}), MTU {}", rail.port.name(), rail.port.gid.index,
        to_text(rail.port.gid.raw), 128 << rail.port.mtu);
  }
  return fabric;
}

Fabric::Fabric(const TransportContext& context) : context_(context) {}

Fabric::~Fabric() {
  for (size_t i = 0; i < rails_.size(); ++i) close_rail(i);
}

// Everything of a rail, or nothing.
Status Fabric::open_rail(size_t index) {
  Rail& rail = rails_[index];
  auto opened = Device::open(rail.port.device, config(), find_region_);
  if (!opened.ok()) return opened.status();
  auto port = (*opened)->port(rail.port.number, config());
  if (!port.ok()) return port.status();
  if (!port->used) return error(weftSystemError, "{}", port->reason);
  rail.device = *opened;
  rail.port = *port;
  const ibv_device_attr& limits = rail.device->limits();
  const Status made = [&]() -> Status {
    const auto peers = static_cast<uint32_t>(std::max(1, context_.size - 1));
    const auto lanes = peers * static_cast<uint32_t>(config().verbs_queue_pairs);
    rail.depth = std::min(
        {receive_buffers(peers), static_cast<uint32_t>(limits.max_srq_wr), static_cast<uint32_t>(limits.max_cqe) / 2});
    rail.most_pieces = std::min(kMostPieces, static_cast<uint32_t>(limits.max_sge));
    rail.most_sends = std::min(kSendDepth * lanes, static_cast<uint32_t>(limits.max_cqe) - rail.depth);
    if (rail.depth < 16 || rail.most_sends < 16) {
      return error(weftSystemError, "{} has completion queues of {} entries and receive queues of {}; 32 are needed",
                   rail.port.device, limits.max_cqe, limits.max_srq_wr);
    }
    const auto fail = [&](const char* call) {
      return system_error(errno, fmt::format("{} of {}", call, rail.port.device));
    };
    rail.channel = ::ibv_create_comp_channel(rail.device->context());
    if (rail.channel == nullptr) return fail("ibv_create_comp_channel");
    ::fcntl(rail.channel->fd, F_SETFL, ::fcntl(rail.channel->fd, F_GETFL) | O_NONBLOCK);
    rail.completions = ::ibv_create_cq(rail.device->context(), static_cast<int>(rail.depth + rail.most_sends), nullptr,
                                       rail.channel, 0);
    if (rail.completions == nullptr) return fail("ibv_create_cq");
    WEFT_RETURN_IF_ERROR(make_receives(rail));
    WEFT_RETURN_IF_ERROR(
        blocks_.add_rail(static_cast<int>(index), rail.device->domain(), config().verbs_relaxed_ordering));
    auto buffers = blocks_.take(rail.depth * kFrameBytes);
    if (!buffers.ok()) return buffers.status();
    rail.buffers = *buffers;
    WEFT_RETURN_IF_ERROR(context_.poller->add(rail.channel->fd, EPOLLIN));
    WEFT_RETURN_IF_ERROR(context_.poller->add(rail.device->context()->async_fd, EPOLLIN));
    return {};
  }();
  if (!made.ok()) {
    drop_resources(rail);
    blocks_.remove_rail(static_cast<int>(index));
    return made;
  }
  if (manager_ != nullptr) {
    auto number = manager_->listen(index);
    rail.cm_port = number.ok() ? *number : 0;
    if (!number.ok()) log(LogLevel::warn, "verbs: {}", number.status().message());
  }
  rail.sends = 0;
  rail.notified = false;
  rail.seen = rail.device->changes();
  set_up(index, true);
  rail.trouble.clear();
  refill();
  return {};
}

// A shared receive queue, with no buffer posted.
Status Fabric::make_receives(Rail& rail) {
  if (rail.receives != nullptr) ::ibv_destroy_srq(rail.receives);
  ibv_srq_init_attr attributes{};
  attributes.attr = {.max_wr = rail.depth, .max_sge = 1};
  rail.receives = ::ibv_create_srq(rail.device->domain(), &attributes);
  if (rail.receives == nullptr) return system_error(errno, "ibv_create_srq of " + rail.port.device);
  rail.returned.clear();
  for (uint32_t i = 0; i < rail.depth; ++i) rail.returned.push_back(i);
  return {};
}

void Fabric::drop_resources(Rail& rail) {
  if (rail.channel != nullptr) context_.poller->remove(rail.channel->fd);
  if (rail.device != nullptr) context_.poller->remove(rail.device->context()->async_fd);
  if (rail.receives != nullptr) ::ibv_destroy_srq(rail.receives);
  if (rail.completions != nullptr) ::ibv_destroy_cq(rail.completions);
  if (rail.channel != nullptr) ::ibv_destroy_comp_channel(rail.channel);
  rail.receives = nullptr;
  rail.completions = nullptr;
  rail.channel = nullptr;
  rail.notified = false;
  if (rail.buffers != nullptr) blocks_.give(std::exchange(rail.buffers, nullptr));
}

void Fabric::set_up(size_t index, bool up) {
  rails_[index].up = up;
  stats_[index].up.store(up, std::memory_order_relaxed);
}

std::vector<RailCounters> Fabric::counters() const {
  std::vector<RailCounters> list;
  for (size_t i = 0; i < names_.size(); ++i) {
    const RailStats& stats = stats_[i];
    list.push_back({names_[i], stats.up.load(std::memory_order_relaxed), stats.bytes_sent, stats.bytes_received,
                    stats.failures, stats.connections.load(std::memory_order_relaxed)});
  }
  return list;
}

// Its queue pairs are gone by then.
void Fabric::close_rail(size_t index) {
  Rail& rail = rails_[index];
  set_up(index, false);
  if (rail.device == nullptr) return;
  if (manager_ != nullptr) manager_->stop(index);
  drop_resources(rail);
  blocks_.remove_rail(static_cast<int>(index));
  rail.device.reset();
}

Status Fabric::open(Lane& lane) {
  Rail& rail = rails_[static_cast<size_t>(lane.rail)];
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = rail.completions;
  attributes.srq = rail.receives;
  attributes.qp_type = IBV_QPT_RC;
  for (uint32_t most = kMostInline;; most /= 2) {
    attributes.cap = {.max_send_wr = kSendDepth, .max_send_sge = rail.most_pieces, .max_inline_data = most};
    lane.queue = ::ibv_create_qp(rail.device->domain(), &attributes);
    if (lane.queue != nullptr || most == 0) break;
  }
  if (lane.queue == nullptr) return system_error(errno, "ibv_create_qp of " + rail.port.device);
  rail.most_inline = attributes.cap.max_inline_data;
  lanes_[lane_key(lane.rail, lane.queue->qp_num)] = &lane;
  return {};
}

void Fabric::close(Lane& lane) {
  if (lane.queue == nullptr) return;
  Rail& rail = rails_[static_cast<size_t>(lane.rail)];
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const bool stopped = ::ibv_modify_qp(lane.queue, &attributes, IBV_QP_STATE) == 0;
  // What came before still counts. What was to be sent comes back.
  const Deadline deadline = Deadline::after(kFlushTime);
  do {
    while (poll(rail)) continue;
  } while (stopped && !rail.device->gone() && !lane.posted.empty() && !deadline.passed());
  while (poll(rail)) continue;
  const uint64_t key = lane_key(lane.rail, lane.queue->qp_num);
  if (const int problem = ::ibv_destroy_qp(lane.queue); problem != 0) {
    log(LogLevel::warn, "verbs: ibv_destroy_qp of {}: {}", rail.port.device, std::strerror(problem));
  }
  lane.queue = nullptr;
  // A device in software may have been in the midst of a message, which its sender takes for received.
  while (poll(rail)) continue;
  lanes_.erase(key);
  ConnectionManager::release(lane);
  rail.sends -= static_cast<uint32_t>(lane.posted.size());
}

Status Fabric::dial(Pair& pair) {
  for (size_t i = 0; i < pair.lanes.size(); ++i) {
    WEFT_RETURN_IF_ERROR(manager_->dial(*pair.lanes[i], pair, static_cast<uint32_t>(i)));
  }
  return {};
}

VerbsWire* Fabric::wire(int peer) const {
  const auto found =
      std::find_if(wires_.begin(), wires_.end(), [peer](VerbsWire* wire) { return wire->peer() == peer; });
  return found == wires_.end() ? nullptr : *found;
}

void Fabric::progress_connections() {
  if (manager_ != nullptr) manager_->progress();
}

bool Fabric::poll() {
  bool moved = false;
  for (Rail& rail : rails_) {
    if (rail.completions != nullptr) moved |= poll(rail);
  }
  // Buffers go back when there is nothing else to do, or they become few: not between a message and its answer.
  if (!moved || scarce()) refill();
  return moved;
}

bool Fabric::scarce() const {
  return std::any_of(rails_.begin(), rails_.end(),
                     [](const Rail& rail) { return rail.returned.size() > rail.depth / 4; });
}

bool Fabric::poll(Rail& rail) {
  ibv_wc completions[kBatch];
  const int count = ::ibv_poll_cq(rail.completions, kBatch, completions);
  for (int i = 0; i < count; ++i) handle(rail, completions[i]);
  return count > 0;
}

void Fabric::handle(Rail& rail, const ibv_wc& completion) {
  const int index = static_cast<int>(&rail - rails_.data());
  const auto found = lanes_.find(lane_key(index, completion.qp_num));
  Lane* lane = found == lanes_.end() ? nullptr : found->second;
  const bool received = (completion.wr_id & kReceiveTag) != 0;
  if (lane == nullptr) {
    // Of a queue pair that is gone: its messages will come again.
  } else if (completion.status != IBV_WC_SUCCESS) {
    if (!received) lane->wire->flushed(*lane, completion.wr_id);
    if (completion.status != IBV_WC_WR_FLUSH_ERR || !lane->failed) {
      lane->wire->lane_failed(*lane, ::ibv_wc_status_str(completion.status));
    }
  } else if (!received) {
    lane->wire->completed(*lane, completion.wr_id);
  } else if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    lane->wire->fragment_came(*lane, ntohl(completion.imm_data), completion.byte_len);
  } else {
    const std::byte* data = rail.buffers->base + (completion.wr_id & ~kReceiveTag) * kFrameBytes;
    lane->wire->frame_came(data, completion.byte_len);
  }
  if (received) rail.returned.push_back(static_cast<uint32_t>(completion.wr_id & ~kReceiveTag));
}

void Fabric::refill() {
  for (size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    if (rail.receives == nullptr || rail.buffers == nullptr) continue;
    const ibv_mr* region = rail.buffers->regions[i];
    while (!rail.returned.empty()) {
      ibv_recv_wr works[kBatch];
      ibv_sge pieces[kBatch];
      const size_t count = std::min<size_t>(kBatch, rail.returned.size());
      for (size_t j = 0; j < count; ++j) {
        const uint32_t buffer = rail.returned[rail.returned.size() - 1 - j];
        pieces[j] = {reinterpret_cast<uint64_t>(rail.buffers->base + buffer * kFrameBytes), kFrameBytes, region->lkey};
        works[j] = {.wr_id = buffer | kReceiveTag,
                    .next = j + 1 < count ? &works[j + 1] : nullptr,
                    .sg_list = &pieces[j],
                    .num_sge = 1};
      }
      ibv_recv_wr* bad = nullptr;
      if (::ibv_post_srq_recv(rail.receives, works, &bad) != 0) return;  // the device is going
      rail.returned.resize(rail.returned.size() - count);
    }
  }
}

bool Fabric::arm() {
  if (poll()) return false;
  if (std::exchange(asleep_, true)) return true;
  bool quiet = true;
  for (Rail& rail : rails_) {
    if (rail.completions == nullptr || rail.notified) continue;
    rail.notified = ::ibv_req_notify_cq(rail.completions, 0) == 0;
    quiet &= !poll(rail);
  }
  return quiet;
}

void Fabric::disarm() {
  if (!std::exchange(asleep_, false)) return;
  for (Rail& rail : rails_) {
    if (!rail.notified) continue;
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    if (::ibv_get_cq_event(rail.channel, &queue, &context) != 0) continue;  // none came
    ::ibv_ack_cq_events(queue, 1);
    rail.notified = false;
  }
}

void Fabric::tick() {
  const auto now = Clock::now();
  if (now - ticked_ < kTick) return;
  ticked_ = now;
  progress_connections();
  for (size_t i = 0; i < rails_.size(); ++i) look_at(i);
  if (now < retry_at_) return;
  retry_at_ = now + kRetry;
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].device != nullptr) {
      if (!rails_[i].up) --rails_[i].seen;  // its address may come after it is up: look again
      continue;
    }
    if (open_rail(i).ok()) log(LogLevel::info, "verbs: {} is back", rails_[i].port.name());
  }
}

void Fabric::look_at(size_t index) {
  Rail& rail = rails_[index];
  if (rail.device == nullptr) return;
  rail.device->look();
  const bool gone = rail.device->gone();
  if (!gone && rail.seen == rail.device->changes()) return;
  rail.seen = rail.device->changes();
  auto port =
      gone ? Result<Port>(error(weftSystemError, "the device is gone")) : rail.device->port(rail.port.number, config());
  const bool usable = port.ok() && port->used;
  if (usable && !rail.up) {
    // A buffer that a queue pair had taken and not filled when it was destroyed has not come back.
    if (const Status made = make_receives(rail); !made.ok()) {
      log(LogLevel::warn, "verbs: {}", made.message());
      return;
    }
    refill();
    rail.port = *port;
    set_up(index, true);
    log(LogLevel::info, "verbs: {} is up again", rail.port.name());
  } else if (!usable && rail.up) {
    set_up(index, false);
    ++stats_[index].failures;
    rail.trouble = fmt::format("{}: {}", rail.port.name(), port.ok() ? port->reason : port.status().message());
    log(LogLevel::info, "verbs: {}", rail.trouble);
  }
  if (!usable) {
    for (VerbsWire* wire : wires_) wire->rail_down(static_cast<int>(index), gone);
  }
  if (gone) close_rail(index);
}

}  // namespace weft::verbs
