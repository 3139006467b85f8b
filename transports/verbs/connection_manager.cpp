#include "transports/verbs/connection_manager.hpp"

#include <arpa/inet.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "log/log.hpp"
#include "transports/verbs/wire.hpp"

namespace weft::verbs {
namespace {

constexpr int kResolveTime = 2000;  // ms
constexpr int kBacklog = 128;

// What a connection request brings.
struct Request {
  uint64_t group = 0, token = 0;
  int32_t from = 0, to = 0;
  uint32_t pair = 0, epoch = 0, index = 0;
  uint32_t reserved = 0;
};

sockaddr_storage socket_address(const RawGid& gid, uint16_t port) {
  sockaddr_storage storage{};
  if (is_ipv4_mapped(gid)) {
    auto& address = reinterpret_cast<sockaddr_in&>(storage);
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    std::memcpy(&address.sin_addr, gid.data() + 12, 4);
  } else {
    auto& address = reinterpret_cast<sockaddr_in6&>(storage);
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    std::memcpy(&address.sin6_addr, gid.data(), 16);
  }
  return storage;
}

rdma_conn_param parameters_of(const Lane& lane, const Config& config) {
  rdma_conn_param parameters{};
  parameters.retry_count = static_cast<uint8_t>(config.verbs_retries);
  parameters.rnr_retry_count = kNotReadyRetries;
  parameters.srq = 1;
  parameters.qp_num = lane.queue->qp_num;
  return parameters;
}

}  // namespace

Result<std::unique_ptr<ConnectionManager>> ConnectionManager::create(Fabric& fabric) {
  std::unique_ptr<ConnectionManager> manager(new ConnectionManager(fabric));
  manager->channel_ = ::rdma_create_event_channel();
  if (manager->channel_ == nullptr) return system_error(errno, "rdma_create_event_channel");
  const int fd = manager->channel_->fd;
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  WEFT_RETURN_IF_ERROR(fabric.context().poller->add(fd, EPOLLIN));
  return manager;
}

ConnectionManager::~ConnectionManager() {
  for (size_t rail = 0; rail < listeners_.size(); ++rail) stop(rail);
  if (channel_ == nullptr) return;
  fabric_.context().poller->remove(channel_->fd);
  ::rdma_destroy_event_channel(channel_);
}

Result<uint16_t> ConnectionManager::listen(size_t rail) {
  rdma_cm_id*& id = listeners_[rail];
  if (::rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP) != 0) return system_error(errno, "rdma_create_id");
  sockaddr_storage address = socket_address(fabric_.rails()[rail].port.gid.raw, 0);
  if (::rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&address)) != 0 || ::rdma_listen(id, kBacklog) != 0) {
    const Status status = system_error(errno, "rdma_bind_addr or rdma_listen on " + fabric_.rails()[rail].port.name());
    stop(rail);
    return status;
  }
  return ntohs(::rdma_get_src_port(id));
}

void ConnectionManager::stop(size_t rail) {
  if (listeners_[rail] != nullptr) ::rdma_destroy_id(std::exchange(listeners_[rail], nullptr));
}

Status ConnectionManager::dial(Lane& lane, const Pair& pair, uint32_t index) {
  if (pair.theirs.cm_port == 0) return error(weftRemoteError, "{} has no connection manager", pair.theirs.name);
  if (::rdma_create_id(channel_, &lane.cm, &lane, RDMA_PS_TCP) != 0) return system_error(errno, "rdma_create_id");
  lane.index = index;
  sockaddr_storage from = socket_address(fabric_.rails()[static_cast<size_t>(lane.rail)].port.gid.raw, 0);
  sockaddr_storage to = socket_address(pair.theirs.gid, pair.theirs.cm_port);
  if (::rdma_resolve_addr(lane.cm, reinterpret_cast<sockaddr*>(&from), reinterpret_cast<sockaddr*>(&to),
                          kResolveTime) != 0) {
    return system_error(errno, "rdma_resolve_addr");
  }
  return {};
}

void ConnectionManager::release(Lane& lane) {
  if (lane.cm != nullptr) ::rdma_destroy_id(std::exchange(lane.cm, nullptr));
}

void ConnectionManager::progress() {
  rdma_cm_event* event = nullptr;
  while (::rdma_get_cm_event(channel_, &event) == 0) {
    // Acknowledged first, since handling may destroy the id, which waits for that.
    char bytes[256];
    rdma_cm_event copy = *event;
    copy.param.conn.private_data_len =
        static_cast<uint8_t>(std::min<size_t>(copy.param.conn.private_data_len, sizeof bytes - 1));
    if (copy.param.conn.private_data != nullptr) {
      std::memcpy(bytes, copy.param.conn.private_data, copy.param.conn.private_data_len);
      copy.param.conn.private_data = bytes;
    }
    ::rdma_ack_cm_event(event);
    handle(copy);
  }
}

void ConnectionManager::handle(const rdma_cm_event& event) {
  if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) return asked(event.id, event.param.conn);
  auto* lane = static_cast<Lane*>(event.id->context);
  if (lane == nullptr) {  // a listener
    for (size_t rail = 0; rail < listeners_.size(); ++rail) {
      if (listeners_[rail] == event.id && event.event == RDMA_CM_EVENT_DEVICE_REMOVAL) stop(rail);
    }
    return;
  }
  Status status;
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (::rdma_resolve_route(event.id, kResolveTime) != 0) status = system_error(errno, "rdma_resolve_route");
      break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED: {
      const Pair& pair = *lane->wire->pairs()[static_cast<size_t>(lane->pair)];
      const TransportContext& context = fabric_.context();
      const Request request{.group = context.group,
                            .token = pair.their_up->token,
                            .from = context.rank,
                            .to = lane->wire->peer(),
                            .pair = static_cast<uint32_t>(lane->pair),
                            .epoch = pair.epoch,
                            .index = lane->index};
      rdma_conn_param parameters = parameters_of(*lane, fabric_.config());
      parameters.private_data = &request;
      parameters.private_data_len = sizeof request;
      if (::rdma_connect(event.id, &parameters) != 0) status = system_error(errno, "rdma_connect");
      break;
    }
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      status = advance(*lane, event.id);
      if (status.ok() && ::rdma_establish(event.id) != 0) status = system_error(errno, "rdma_establish");
      if (status.ok()) established(*lane);
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      established(*lane);
      break;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
    case RDMA_CM_EVENT_ADDR_CHANGE:
      break;
    default:
      status = error(weftRemoteError, "{} ({})", ::rdma_event_str(event.event), event.status);
  }
  if (!status.ok()) lane->wire->lane_failed(*lane, status.message());
}

// Somebody connects: one who was told the token of a pair that waits for it.
void ConnectionManager::asked(rdma_cm_id* id, const rdma_conn_param& parameters) {
  Request request;
  Lane* lane = nullptr;
  if (parameters.private_data != nullptr && parameters.private_data_len >= sizeof request) {
    std::memcpy(&request, parameters.private_data, sizeof request);
    const TransportContext& context = fabric_.context();
    VerbsWire* wire =
        request.group == context.group && request.to == context.rank ? fabric_.wire(request.from) : nullptr;
    Pair* pair = wire == nullptr ? nullptr : wire->expecting(request.pair, request.epoch, request.token);
    if (pair != nullptr && request.index < pair->lanes.size()) lane = pair->lanes[request.index].get();
  }
  if (lane == nullptr || lane->cm != nullptr) {
    ::rdma_reject(id, nullptr, 0);
    ::rdma_destroy_id(id);
    return;
  }
  lane->cm = id;
  id->context = lane;
  Status status = advance(*lane, id);
  rdma_conn_param answer = parameters_of(*lane, fabric_.config());
  if (status.ok() && ::rdma_accept(id, &answer) != 0) status = system_error(errno, "rdma_accept");
  if (!status.ok()) lane->wire->lane_failed(*lane, status.message());
}

// Through all states, with what the manager knows of the path.
Status ConnectionManager::advance(Lane& lane, rdma_cm_id* id) {
  const Config& config = fabric_.config();
  for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    int mask = 0;
    if (::rdma_init_qp_attr(id, &attributes, &mask) != 0) return system_error(errno, "rdma_init_qp_attr");
    if (state == IBV_QPS_INIT) attributes.qp_access_flags = kQueueAccess;
    if (state == IBV_QPS_RTR) {
      attributes.min_rnr_timer = kNotReadyTimer;
      attributes.ah_attr.sl = static_cast<uint8_t>(config.verbs_service_level);
      attributes.ah_attr.grh.traffic_class = static_cast<uint8_t>(config.verbs_traffic_class);
    }
    if (state == IBV_QPS_RTS) {
      attributes.timeout = static_cast<uint8_t>(config.verbs_timeout);
      attributes.retry_cnt = static_cast<uint8_t>(config.verbs_retries);
      attributes.rnr_retry = kNotReadyRetries;
    }
    if (const int problem = ::ibv_modify_qp(lane.queue, &attributes, mask); problem != 0) {
      return system_error(problem, "ibv_modify_qp, as the connection manager says");
    }
  }
  return {};
}

void ConnectionManager::established(Lane& lane) {
  lane.established = true;
  Pair& pair = *lane.wire->pairs()[static_cast<size_t>(lane.pair)];
  const bool all =
      std::all_of(pair.lanes.begin(), pair.lanes.end(), [](const auto& each) { return each->established; });
  if (all) lane.wire->pair_connected(pair);
}

}  // namespace weft::verbs
