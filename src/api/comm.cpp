// Communicators: their end, and questions to them.
#include "api/handles.hpp"

namespace weft {

void abort_ready(weftComm& handle) {
  Comm& comm = *handle.comm;
  comm.abort_requested.store(true);
  comm.engine().wake();
  const auto lock = comm.engine().visit();
  comm.fail(error(weftAborted, "weftCommAbort was called on rank {}", comm.rank()), true);
  comm.set_phase(CommPhase::aborted);
}

namespace {

// Waits for all that is queued on streams; what blocks is over when its call returns.
Status drain(weftComm* comm) {
  const Status status = comm->own_stream == nullptr ? Status() : comm->own_stream->stream.synchronize();
  while (comm->comm != nullptr && comm->comm->queued.load() > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  return status;
}

// weftSuccess, weftInProgress, or what ended it.
Status state_of(weftComm& comm) {
  if (!comm.ready.load(std::memory_order_acquire)) return Status(weftInProgress, "");
  if (!comm.init_status.ok()) return comm.init_status;
  if (comm.comm->failed()) return comm.comm->status();
  bool idle = true;
  if (comm.own_stream != nullptr) WEFT_RETURN_IF_ERROR(comm.own_stream->stream.query(&idle));
  return idle ? Status() : Status(weftInProgress, "");
}

Status check_placed(weftComm* comm) {
  WEFT_RETURN_IF_ERROR(check_handle(comm));
  return comm->placed ? Status() : check_ready(comm);
}

Status finalize(weftComm* comm) {
  if (comm->comm != nullptr && !comm->comm->failed()) comm->comm->set_phase(CommPhase::finalizing);
  return drain(comm);
}

}  // namespace
}  // namespace weft

using weft::error;
using weft::guarded;
using weft::Status;

extern "C" {

weftResult_t weftCommFinalize(weftComm_t comm) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    WEFT_RETURN_IF_ERROR(weft::check_unused(comm));
    return weft::finalize(comm);
  });
}

weftResult_t weftCommDestroy(weftComm_t comm) {
  if (comm == nullptr) return weftSuccess;
  return guarded(nullptr, [&]() -> Status {
    if (comm->magic != weftComm::kMagic) return error(weftInvalidArgument, "comm is not a communicator");
    if (comm->forks != weft::forks()) {
      // Its sockets, and the threads that it had, are the parent's: to close them in order would end them there.
      comm->magic = 0;
      return {};
    }
    WEFT_RETURN_IF_ERROR(weft::check_unused(comm));
    if (comm->init.joinable()) comm->init.join();
    if (comm->comm != nullptr) {
      (void)weft::finalize(comm);
      const auto lock = comm->comm->engine().visit();
      comm->comm->leave();
    }
    delete comm;
    return {};
  });
}

weftResult_t weftCommAbort(weftComm_t comm) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_handle(comm));
    comm->abort_requested.store(true);  // ends an initialisation
    if (comm->ready.load() && comm->comm != nullptr) weft::abort_ready(*comm);
    return {};
  });
}

weftResult_t weftCommGetAsyncError(weftComm_t comm, weftResult_t* asyncError) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_handle(comm));
    if (asyncError == nullptr) return error(weftInvalidArgument, "asyncError is NULL");
    const Status state = weft::state_of(*comm);
    *asyncError = state.code();
    if (!state.ok() && state.code() != weftInProgress) {
      const std::lock_guard lock(comm->mutex);
      comm->last_error = state;
    }
    return {};
  });
}

weftResult_t weftCommCount(const weftComm_t comm, int* count) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_placed(comm));
    if (count == nullptr) return error(weftInvalidArgument, "count is NULL");
    *count = comm->size;
    return {};
  });
}

weftResult_t weftCommUserRank(const weftComm_t comm, int* rank) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_placed(comm));
    if (rank == nullptr) return error(weftInvalidArgument, "rank is NULL");
    *rank = comm->rank;
    return {};
  });
}

weftResult_t weftCommSetTimeout(weftComm_t comm, int64_t timeoutMs) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (timeoutMs < 100 || timeoutMs > int64_t{1} << 31) {
      return error(weftInvalidArgument, "timeoutMs={}; legal: 100 to 2^31", timeoutMs);
    }
    comm->comm->timeout_ms.store(timeoutMs);
    comm->comm->engine().wake();
    return {};
  });
}

}  // extern "C"
