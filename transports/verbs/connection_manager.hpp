// Queue pairs connected by librdmacm, for networks whose administration wants to see connections (WEFT_VERBS_CONNECT=
// rdmacm). The control connection has said before who connects to what; a request must bring the token that it named.
#pragma once

#include <rdma/rdma_cma.h>

#include <array>
#include <memory>

#include "status/status.hpp"
#include "transports/verbs/fabric.hpp"

namespace weft::verbs {

class ConnectionManager {
 public:
  static Result<std::unique_ptr<ConnectionManager>> create(Fabric& fabric);
  ~ConnectionManager();
  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;

  // Listens on the address of a rail; its port.
  Result<uint16_t> listen(size_t rail);
  void stop(size_t rail);
  // Of one queue pair, as number `index` of its pair.
  Status dial(Lane& lane, const Pair& pair, uint32_t index);
  static void release(Lane& lane);
  // Handles what has happened.
  void progress();

 private:
  explicit ConnectionManager(Fabric& fabric) : fabric_(fabric) {}
  void handle(const rdma_cm_event& event);
  void asked(rdma_cm_id* id, const rdma_conn_param& parameters);
  Status advance(Lane& lane, rdma_cm_id* id);
  void established(Lane& lane);

  Fabric& fabric_;
  rdma_event_channel* channel_ = nullptr;
  std::array<rdma_cm_id*, kMostRails> listeners_{};
};

}  // namespace weft::verbs
