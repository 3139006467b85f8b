// Version, memory, windows, counters.
#include <cstring>

#include "api/handles.hpp"
#include "memory/regions.hpp"
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

weftResult_t weftMemAlloc(void** ptr, size_t size) {
  return guarded(nullptr, [&]() -> Status {
    if (ptr == nullptr) return error(weftInvalidArgument, "ptr is NULL");
    auto memory = weft::allocate_region(size);
    if (!memory.ok()) return memory.status();
    *ptr = *memory;
    return {};
  });
}

weftResult_t weftMemFree(void* ptr) {
  return guarded(nullptr, [&] { return weft::free_region(ptr); });
}

// Host memory needs no registration with the transports there are; the handle keeps the call's form.
weftResult_t weftCommRegister(const weftComm_t comm, void* buff, size_t size, void** handle) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (buff == nullptr || size == 0 || handle == nullptr) {
      return error(weftInvalidArgument, "weftCommRegister(buff={}, size={}, handle={}); legal: none NULL, size above 0",
                   buff, size, static_cast<void*>(handle));
    }
    *handle = new weftWindow{buff, size};
    return {};
  });
}

weftResult_t weftCommDeregister(const weftComm_t comm, void* handle) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    delete static_cast<weftWindow*>(handle);
    return {};
  });
}

// Mappings of shared memory travel with the first message that needs them and are kept; the collective part is the
// agreement that all ranks have registered.
weftResult_t weftCommWindowRegister(weftComm_t comm, void* buff, size_t size, weftWindow_t* win, int winFlags) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (buff == nullptr || size == 0 || win == nullptr || winFlags != WEFT_WIN_DEFAULT) {
      return error(weftInvalidArgument,
                   "weftCommWindowRegister(buff={}, size={}, win={}, winFlags={}); legal: none NULL, size above 0, "
                   "flags 0",
                   buff, size, static_cast<void*>(win), winFlags);
    }
    if (weftBarrier(comm, nullptr) != weftSuccess) return comm->last_error;
    *win = new weftWindow{buff, size};
    return {};
  });
}

weftResult_t weftCommWindowDeregister(weftComm_t comm, weftWindow_t win) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (win == nullptr) return error(weftInvalidArgument, "win is NULL");
    delete win;
    return {};
  });
}

weftResult_t weftCommGetStats(weftComm_t comm, weftStats_t* stats) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (stats == nullptr || stats->size < sizeof(weftStats_t)) {
      return error(weftInvalidArgument, "stats is NULL, or its size is not set to sizeof(weftStats_t)");
    }
    const auto lock = comm->comm->engine().visit();
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
    std::string text;
    {
      const auto lock = comm->comm->engine().visit();
      const weft::CommCounters counters = comm->comm->counters();
      const auto recorder = comm->comm->recorder().snapshot();
      text = format == weftDumpJson ? weft::counters_json(counters, recorder)
                                    : weft::counters_prometheus(counters, recorder);
    }
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
