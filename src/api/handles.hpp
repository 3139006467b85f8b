// What the handles of weft.h stand for, and what every entry point shares: validity, errors, groups.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm.hpp"
#include "engine/stream.hpp"

struct weftStream {
  static constexpr uint32_t kMagic = 0x57535452;
  uint32_t magic = kMagic;
  weft::Stream stream;
};

struct weftComm {
  static constexpr uint32_t kMagic = 0x57434f4d;
  struct PreMulSum {
    weftDataType_t type;
    bool scaled_later;  // read at_ when the collective runs
    std::byte scalar[8];
    const void* at;
  };

  uint32_t magic = kMagic;
  int rank = 0, size = 1;
  bool blocking = true;
  std::unique_ptr<weft::Comm> comm;  // null until a non-blocking initialisation is done
  std::thread init;                  // of a non-blocking initialisation
  std::atomic<bool> ready{false};
  weft::Status init_status;                // valid once ready
  std::unique_ptr<weftStream> own_stream;  // carries the calls of a non-blocking communicator
  std::mutex splitting;                    // one split at a time: in the order of its threads
  std::mutex mutex;                        // of what follows
  std::map<int, PreMulSum> ops;
  int next_op = weftNumOps;
  std::map<uintptr_t, bool> registrations;  // by handle: whether it is a window
  weft::Status last_error;

  ~weftComm() {
    if (init.joinable()) init.join();
    magic = 0;
  }
};

namespace weft {

// Keeps the status for weftGetLastError (of comm, or of this thread) and gives its code.
weftResult_t report(weftComm* comm, Status status);
// Runs an entry point's body; no exception passes the C interface.
template <typename Body>
weftResult_t guarded(weftComm* comm, Body&& body) {
  try {
    return report(comm, body());
  } catch (const std::bad_alloc&) {
    return report(comm, error(weftSystemError, "out of memory"));
  } catch (const std::exception& problem) {
    return report(comm, error(weftInternalError, "{}", problem.what()));
  }
}

// A communicator that can take calls now.
Status check_ready(weftComm* comm);
Status check_stream(weftStream* stream);

// Issues a checked call: now, on its stream, or at the end of this thread's group.
Status issue(weftComm* comm, Call call, weftStream* stream);
bool in_group();
// Keeps for the end of this thread's group what waits for other ranks, which may be in the same group: an
// initialisation (comm is null), or a registration. Those of one communicator are done in order.
void defer(weftComm* comm, std::function<Status()> work);

Status init_rank(weftComm** comm, int nranks, const weftUniqueId& id, int rank, const weftConfig_t* config);
// The process's configuration with what the caller's says otherwise.
Result<Config> merged_config(const Config& base, const weftConfig_t* config, std::string* label, bool* blocking);

}  // namespace weft
