// Version, error texts, counters.
#include <cstring>

#include "api/handles.hpp"
#include "trace/counters.hpp"

using weft::error;
using weft::guarded;
using weft::Status;

extern "C" {

weftResult_t weftGetVersion(int* version) {
  return guarded(nullptr, [&]() -> Status {
    if (version == nullptr) return error(weftInvalidArgument, "version is NULL");
    *version = WEFT_VERSION_CODE;
    return {};
  });
}

const char* weftGetErrorString(weftResult_t result) {
  switch (result) {
    case weftSuccess:
      return "no error";
    case weftUnhandledCudaError:
      return "unhandled CUDA error";
    case weftSystemError:
      return "unhandled system error";
    case weftInternalError:
      return "internal error";
    case weftInvalidArgument:
      return "invalid argument";
    case weftInvalidUsage:
      return "invalid usage";
    case weftRemoteError:
      return "remote process exited or failed";
    case weftInProgress:
      return "operation in progress";
    case weftTimeout:
      return "timeout";
    case weftAborted:
      return "aborted";
  }
  return "unknown result code";
}

weftResult_t weftCommGetStats(weftComm_t comm, weftStats_t* stats) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (stats == nullptr || stats->size < sizeof(weftStats_t)) {
      return error(weftInvalidArgument, "stats is NULL, or its size is not set to sizeof(weftStats_t)");
    }
    const weft::CommCounters counters = comm->comm->counters();
    stats->operations = counters.operations;
    stats->bytesSent = stats->bytesReceived = stats->messagesSent = stats->messagesReceived = 0;
    for (const weft::WireCounters& wire : counters.wires) {
      stats->bytesSent += wire.bytes_sent;
      stats->bytesReceived += wire.bytes_received;
      stats->messagesSent += wire.messages_sent;
      stats->messagesReceived += wire.messages_received;
    }
    return {};
  });
}

weftResult_t weftCommDump(weftComm_t comm, weftDumpFormat_t format, char* buffer, size_t* length) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (length == nullptr || (format != weftDumpJson && format != weftDumpPrometheus)) {
      return error(weftInvalidArgument, "length is NULL, or format={}; legal: 0, 1", static_cast<int>(format));
    }
    const weft::CommCounters counters = comm->comm->counters();
    const auto recorder = comm->comm->recorder().snapshot();
    const std::string text = format == weftDumpJson ? weft::counters_json(counters, recorder)
                                                    : weft::counters_prometheus(counters, recorder);
    const size_t room = *length;
    *length = text.size() + 1;
    if (buffer == nullptr || room < *length) {
      return error(weftInvalidArgument, "the text has {} bytes, the buffer {}", *length, buffer == nullptr ? 0 : room);
    }
    std::memcpy(buffer, text.c_str(), *length);
    return {};
  });
}

}  // extern "C"
