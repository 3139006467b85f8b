// The data calls: each checks its arguments, names them in errors, and issues one Call.
#include <cstring>

#include "api/handles.hpp"
#include "plan/shape.hpp"

namespace weft {
namespace {

constexpr size_t kMostBytes = size_t{1} << 60;  // of one buffer; keeps all offsets far from overflow

Status check_type(weftDataType_t type) {
  if (valid_type(type)) return {};
  return error(weftInvalidArgument, "datatype={}; legal: 0 to {} (a weftDataType_t)", static_cast<int>(type),
               weftNumTypes - 1);
}

Status check_rank(const char* name, int rank, int size) {
  if (rank >= 0 && rank < size) return {};
  return error(weftInvalidArgument, "{}={}; legal: 0 to {}", name, rank, size - 1);
}

Status check_count(size_t count, size_t blocks, weftDataType_t type) {
  const size_t most = kMostBytes / type_bytes(type) / blocks;
  if (count <= most) return {};
  return error(weftInvalidArgument, "count={}; legal for {} blocks of {}: 0 to {}", count, blocks, kTypes[type].name,
               most);
}

struct Extent {
  const std::byte* begin = nullptr;
  size_t bytes = 0;
};

Extent extent_of(const void* base, const std::vector<size_t>& counts, const std::vector<size_t>& displs, size_t uniform,
                 size_t blocks, size_t element) {
  if (counts.empty()) return {static_cast<const std::byte*>(base), uniform * blocks * element};
  size_t low = SIZE_MAX, high = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    low = std::min(low, displs[i]);
    high = std::max(high, displs[i] + counts[i]);
  }
  if (high == 0) return {};
  return {static_cast<const std::byte*>(base) + low * element, (high - low) * element};
}

// Reads the pre-multiplied sum that the call's op may stand for.
Status resolve_op(weftComm* comm, Call* call) {
  const weftRedOp_t op = call->op;
  if (op >= weftSum && op < weftNumOps) return {};
  std::lock_guard lock(comm->mutex);
  auto found = comm->ops.find(static_cast<int>(op));
  if (found == comm->ops.end()) {
    return error(weftInvalidArgument,
                 "op={}; legal: 0 to {}, or one that weftRedOpCreatePreMulSum made for this "
                 "communicator",
                 static_cast<int>(op), weftNumOps - 1);
  }
  if (found->second.type != call->type) {
    return error(weftInvalidArgument, "a pre-multiplied sum of {} was given {} elements",
                 kTypes[found->second.type].name, kTypes[call->type].name);
  }
  call->scaled = true;
  std::memcpy(call->scalar, found->second.scalar, sizeof call->scalar);
  if (found->second.scaled_later) call->scalar_at = found->second.at;
  return {};
}

Status check_buffers(const Call& call, int rank, int size) {
  const bool pair = call.collective == Collective::sendrecv;
  const Shape shape = shape_of(call.collective, size, rank, std::max(call.root, 0));
  const bool has_in = pair ? call.is_send : shape.has_in, has_out = pair ? !call.is_send : shape.has_out;
  const size_t element = type_bytes(call.type);
  const Extent in =
      has_in ? extent_of(call.in, call.in_counts, call.in_displs, call.count, shape.in_blocks, element) : Extent{};
  const Extent out =
      has_out ? extent_of(call.out, call.out_counts, call.out_displs, call.count, shape.out_blocks, element) : Extent{};
  if (in.bytes > 0 && call.in == nullptr) return error(weftInvalidArgument, "sendbuff is NULL in {}", describe(call));
  if (out.bytes > 0 && call.out == nullptr) return error(weftInvalidArgument, "recvbuff is NULL in {}", describe(call));
  const bool apart =
      in.bytes == 0 || out.bytes == 0 || in.begin + in.bytes <= out.begin || out.begin + out.bytes <= in.begin;
  if (!apart && !in_place(call, rank)) {
    return error(weftInvalidArgument,
                 "sendbuff ({}) and recvbuff ({}) of {} overlap, but not as weft.h allows in place", call.in,
                 static_cast<const void*>(call.out), describe(call));
  }
  return {};
}

// What all data calls share once their Call is filled in.
Status issue_checked(weftComm* comm, Call call, size_t blocks, weftStream* stream) {
  WEFT_RETURN_IF_ERROR(check_ready(comm));
  WEFT_RETURN_IF_ERROR(check_stream(stream));
  WEFT_RETURN_IF_ERROR(check_type(call.type));
  WEFT_RETURN_IF_ERROR(check_count(call.count, blocks, call.type));
  if (call.reduces()) {
    WEFT_RETURN_IF_ERROR(resolve_op(comm, &call));
    const bool narrow_type = kTypes[call.type].floating && type_bytes(call.type) <= 2;
    call.wide = narrow_type && comm->comm->config().accum == "wide";
  }
  WEFT_RETURN_IF_ERROR(check_buffers(call, comm->rank, comm->size));
  return issue(comm, std::move(call), stream);
}

Call make(const CallHead& head) {
  Call call;
  static_cast<CallHead&>(call) = head;
  return call;
}

size_t ranks_of(weftComm* comm) {
  return comm != nullptr && comm->magic == weftComm::kMagic ? static_cast<size_t>(comm->size) : 1;
}

// Copies the arrays of a v-variant. The displacement of an empty block is never read.
Status take_arrays(const char* name, const size_t* counts, const size_t* displs, size_t ranks, weftDataType_t type,
                   std::vector<size_t>* to_counts, std::vector<size_t>* to_displs) {
  WEFT_RETURN_IF_ERROR(check_type(type));
  if (counts == nullptr) return error(weftInvalidArgument, "{}counts is NULL", name);
  to_counts->assign(counts, counts + ranks);
  to_displs->assign(ranks, 0);
  const size_t most = kMostBytes / type_bytes(type);
  for (size_t i = 0; i < ranks; ++i) {
    if (counts[i] == 0) continue;
    if (displs == nullptr) return error(weftInvalidArgument, "the displacements of {}counts are NULL", name);
    if (counts[i] > most || displs[i] > most) {
      return error(weftInvalidArgument, "{}counts[{}]={} at displacement {}; legal: up to {}", name, i, counts[i],
                   displs[i], most);
    }
    (*to_displs)[i] = displs[i];
  }
  return {};
}

Status check_own(const char* name, size_t count, const std::vector<size_t>& counts, int rank) {
  const size_t own = counts[static_cast<size_t>(rank)];
  if (count == own) return {};
  return error(weftInvalidArgument, "{}={}, but the counts say {} for rank {}", name, count, own, rank);
}

Status rooted(weftComm* comm, Call call, weftStream* stream) {
  WEFT_RETURN_IF_ERROR(check_ready(comm));
  WEFT_RETURN_IF_ERROR(check_rank("root", call.root, comm->size));
  return issue_checked(comm, std::move(call), 1, stream);
}

// Whether the call was of a shape that was checked and has run before, which spares it all that; *status is then its.
bool run_known(weftComm* comm, const CallHead& head, weftStream* stream, Status* status) {
  if (stream != nullptr || comm == nullptr || comm->magic != weftComm::kMagic) return false;
  if (!valid_type(head.type) || head.op < weftSum || head.op >= weftNumOps) return false;
  if (!comm->ready.load(std::memory_order_acquire) || comm->comm == nullptr || comm->own_stream != nullptr)
    return false;
  return !in_group() && !comm->comm->forked() && comm->comm->engine().run_known(head, status);
}

// The collectives whose blocks are of one size.
weftResult_t collective(const CallHead& head, weftComm* comm, weftStream* stream) {
  return guarded(comm, [&]() -> Status {
    Status status;
    if (run_known(comm, head, stream, &status)) return status;
    WEFT_RETURN_IF_ERROR(check_ready(comm));
    if (is_rooted(head.collective)) WEFT_RETURN_IF_ERROR(check_rank("root", head.root, comm->size));
    const Shape shape = shape_of(head.collective, comm->size, comm->rank, std::max(head.root, 0));
    return issue_checked(comm, make(head), shape.blocks(), stream);
  });
}

}  // namespace
}  // namespace weft

using weft::Call;
using weft::Collective;
using weft::error;
using weft::guarded;
using weft::make;
using weft::Status;

extern "C" {

weftResult_t weftAllReduce(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype, weftRedOp_t op,
                           weftComm_t comm, weftStream_t stream) {
  return weft::collective({Collective::allreduce, sendbuff, recvbuff, count, datatype, op}, comm, stream);
}

weftResult_t weftReduce(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype, weftRedOp_t op,
                        int root, weftComm_t comm, weftStream_t stream) {
  return weft::collective({Collective::reduce, sendbuff, recvbuff, count, datatype, op, root}, comm, stream);
}

weftResult_t weftBroadcast(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype, int root,
                           weftComm_t comm, weftStream_t stream) {
  return weft::collective({Collective::broadcast, sendbuff, recvbuff, count, datatype, weftSum, root}, comm, stream);
}

weftResult_t weftBcast(void* buff, size_t count, weftDataType_t datatype, int root, weftComm_t comm,
                       weftStream_t stream) {
  return weftBroadcast(buff, buff, count, datatype, root, comm, stream);
}

weftResult_t weftAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, weftDataType_t datatype,
                           weftComm_t comm, weftStream_t stream) {
  return weft::collective({Collective::allgather, sendbuff, recvbuff, sendcount, datatype}, comm, stream);
}

weftResult_t weftReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, weftDataType_t datatype,
                               weftRedOp_t op, weftComm_t comm, weftStream_t stream) {
  return weft::collective({Collective::reducescatter, sendbuff, recvbuff, recvcount, datatype, op}, comm, stream);
}

weftResult_t weftAlltoAll(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype, weftComm_t comm,
                          weftStream_t stream) {
  return weft::collective({Collective::alltoall, sendbuff, recvbuff, count, datatype}, comm, stream);
}

weftResult_t weftGather(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype, int root,
                        weftComm_t comm, weftStream_t stream) {
  return weft::collective({Collective::gather, sendbuff, recvbuff, count, datatype, weftSum, root}, comm, stream);
}

weftResult_t weftScatter(const void* sendbuff, void* recvbuff, size_t count, weftDataType_t datatype, int root,
                         weftComm_t comm, weftStream_t stream) {
  return weft::collective({Collective::scatter, sendbuff, recvbuff, count, datatype, weftSum, root}, comm, stream);
}

// Its one byte is nobody's data.
weftResult_t weftBarrier(weftComm_t comm, weftStream_t stream) {
  std::byte bytes[2] = {};
  return weft::collective({Collective::barrier, &bytes[0], &bytes[1], 1, weftUint8}, comm, stream);
}

weftResult_t weftAllGatherv(const void* sendbuff, size_t sendcount, void* recvbuff, const size_t recvcounts[],
                            const size_t displs[], weftDataType_t datatype, weftComm_t comm, weftStream_t stream) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    Call call = make({Collective::allgatherv, sendbuff, recvbuff, sendcount, datatype});
    WEFT_RETURN_IF_ERROR(weft::take_arrays("recv", recvcounts, displs, weft::ranks_of(comm), datatype, &call.out_counts,
                                           &call.out_displs));
    WEFT_RETURN_IF_ERROR(weft::check_own("sendcount", sendcount, call.out_counts, comm->rank));
    return weft::issue_checked(comm, std::move(call), 1, stream);
  });
}

weftResult_t weftReduceScatterv(const void* sendbuff, const size_t sendcounts[], const size_t displs[], void* recvbuff,
                                size_t recvcount, weftDataType_t datatype, weftRedOp_t op, weftComm_t comm,
                                weftStream_t stream) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    Call call = make({Collective::reducescatterv, sendbuff, recvbuff, recvcount, datatype, op});
    WEFT_RETURN_IF_ERROR(weft::take_arrays("send", sendcounts, displs, weft::ranks_of(comm), datatype, &call.in_counts,
                                           &call.in_displs));
    WEFT_RETURN_IF_ERROR(weft::check_own("recvcount", recvcount, call.in_counts, comm->rank));
    return weft::issue_checked(comm, std::move(call), 1, stream);
  });
}

weftResult_t weftAlltoAllv(const void* sendbuff, const size_t sendcounts[], const size_t sdispls[], void* recvbuff,
                           const size_t recvcounts[], const size_t rdispls[], weftDataType_t datatype, weftComm_t comm,
                           weftStream_t stream) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    Call call = make({Collective::alltoallv, sendbuff, recvbuff, 0, datatype});
    WEFT_RETURN_IF_ERROR(weft::take_arrays("send", sendcounts, sdispls, weft::ranks_of(comm), datatype, &call.in_counts,
                                           &call.in_displs));
    WEFT_RETURN_IF_ERROR(weft::take_arrays("recv", recvcounts, rdispls, weft::ranks_of(comm), datatype,
                                           &call.out_counts, &call.out_displs));
    const auto own = static_cast<size_t>(comm->rank);
    if (call.in_counts[own] != call.out_counts[own]) {
      return error(weftInvalidArgument, "sendcounts[{0}]={1}, but recvcounts[{0}]={2} on rank {0} itself", own,
                   call.in_counts[own], call.out_counts[own]);
    }
    return weft::issue_checked(comm, std::move(call), 1, stream);
  });
}

weftResult_t weftGatherv(const void* sendbuff, size_t sendcount, void* recvbuff, const size_t recvcounts[],
                         const size_t displs[], weftDataType_t datatype, int root, weftComm_t comm,
                         weftStream_t stream) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    Call call = make({Collective::gatherv, sendbuff, recvbuff, sendcount, datatype, weftSum, root});
    if (comm->rank == root) {
      WEFT_RETURN_IF_ERROR(weft::take_arrays("recv", recvcounts, displs, weft::ranks_of(comm), datatype,
                                             &call.out_counts, &call.out_displs));
      WEFT_RETURN_IF_ERROR(weft::check_own("sendcount", sendcount, call.out_counts, comm->rank));
    }
    return weft::rooted(comm, std::move(call), stream);
  });
}

weftResult_t weftScatterv(const void* sendbuff, const size_t sendcounts[], const size_t displs[], void* recvbuff,
                          size_t recvcount, weftDataType_t datatype, int root, weftComm_t comm, weftStream_t stream) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    Call call = make({Collective::scatterv, sendbuff, recvbuff, recvcount, datatype, weftSum, root});
    if (comm->rank == root) {
      WEFT_RETURN_IF_ERROR(weft::take_arrays("send", sendcounts, displs, weft::ranks_of(comm), datatype,
                                             &call.in_counts, &call.in_displs));
      WEFT_RETURN_IF_ERROR(weft::check_own("recvcount", recvcount, call.in_counts, comm->rank));
    }
    return weft::rooted(comm, std::move(call), stream);
  });
}

static weftResult_t point_to_point(bool is_send, const void* in, void* out, size_t count, weftDataType_t type, int peer,
                                   weftComm_t comm, weftStream_t stream) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    WEFT_RETURN_IF_ERROR(weft::check_rank("peer", peer, comm->size));
    if (peer == comm->rank && !weft::in_group()) {
      return error(weftInvalidUsage, "rank {} sends to or receives from itself; that is legal inside a group only",
                   peer);
    }
    Call call = make({Collective::sendrecv, in, out, count, type, weftSum, peer});
    call.is_send = is_send;
    return weft::issue_checked(comm, std::move(call), 1, stream);
  });
}

weftResult_t weftSend(const void* sendbuff, size_t count, weftDataType_t datatype, int peer, weftComm_t comm,
                      weftStream_t stream) {
  return point_to_point(true, sendbuff, nullptr, count, datatype, peer, comm, stream);
}

weftResult_t weftRecv(void* recvbuff, size_t count, weftDataType_t datatype, int peer, weftComm_t comm,
                      weftStream_t stream) {
  return point_to_point(false, nullptr, recvbuff, count, datatype, peer, comm, stream);
}

weftResult_t weftRedOpCreatePreMulSum(weftRedOp_t* op, void* scalar, weftDataType_t datatype,
                                      weftScalarResidence_t residence, weftComm_t comm) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    WEFT_RETURN_IF_ERROR(weft::check_type(datatype));
    if (op == nullptr || scalar == nullptr) return error(weftInvalidArgument, "op or scalar is NULL");
    if (residence != weftScalarDevice && residence != weftScalarHostImmediate) {
      return error(weftInvalidArgument, "residence={}; legal: 0, 1", static_cast<int>(residence));
    }
    std::lock_guard lock(comm->mutex);
    weftComm::PreMulSum sum{datatype, residence == weftScalarDevice, {}, scalar};
    if (!sum.scaled_later) std::memcpy(sum.scalar, scalar, weft::type_bytes(datatype));
    comm->ops[comm->next_op] = sum;
    *op = static_cast<weftRedOp_t>(comm->next_op++);
    return {};
  });
}

weftResult_t weftRedOpDestroy(weftRedOp_t op, weftComm_t comm) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    std::lock_guard lock(comm->mutex);
    if (comm->ops.erase(static_cast<int>(op)) == 1) return {};
    return error(weftInvalidArgument, "op={} was not made by weftRedOpCreatePreMulSum for this communicator",
                 static_cast<int>(op));
  });
}

}  // extern "C"
