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
#include "status/process.hpp"

namespace weft {

struct Registration {
  bool window = false;
  Piece memory;
};

}  // namespace weft

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
  const uint32_t forks = weft::forks();  // as it was when this was made
  int rank = 0, size = 0;
  bool placed = false;  // rank and size are known though it is not ready
  bool blocking = true;
  std::atomic<bool> abort_requested{false};
  std::unique_ptr<weft::Comm> comm;  // null until a non-blocking initialisation is done
  std::thread init;                  // of a non-blocking initialisation
  std::atomic<bool> ready{false};
  weft::Status init_status;                // valid once ready
  std::unique_ptr<weftStream> own_stream;  // carries the calls of a non-blocking communicator
  std::mutex splitting;                    // one split at a time: in the order of its threads
  std::mutex mutex;                        // of what follows
  std::map<int, PreMulSum> ops;
  int next_op = weftNumOps;
  std::map<uintptr_t, weft::Registration> registrations;  // by handle
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

// A communicator, of this process.
Status check_handle(weftComm* comm);
// One that can take calls now.
Status check_ready(weftComm* comm);
Status check_stream(weftStream* stream);

// Issues a checked call: now, on its stream, or at the end of this thread's group.
Status issue(weftComm* comm, Call call, weftStream* stream);
bool in_group();
// Keeps for the end of this thread's group what waits for other ranks, which may be in the same group. What is of one
// communicator (parent, where it is not null) is done in order. made: whom the work makes, if anybody.
void defer(weftComm* parent, std::function<Status()> work, weftComm* made = nullptr);
// An error where this thread's group still has calls of comm, or on the stream, so that it cannot go.
Status check_unused(const weftComm* comm);
Status check_unused(const weftStream* stream);

// `base` with what the caller's configuration says otherwise; *blocking is left alone where it says nothing.
Result<Config> merged_config(const Config& base, const weftConfig_t* config, std::string* label, bool* blocking);
Deadline init_deadline(const Config& config, const std::atomic<bool>& aborted);
// With the handle's rank and size, and the options' id, listener and deadline.
Result<std::unique_ptr<Comm>> join_and_create(const weftComm& handle, JoinOptions options, const Config& config,
                                              const std::string& label);
// Makes handle.comm, here or in the background.
Status bring_up(weftComm& handle, std::function<Result<std::unique_ptr<Comm>>()> make);
// Runs `make` (which ends in bring_up) on the handle, at once or at the end of this thread's group, and gives it to
// *to.
Status start(weftComm* parent, std::unique_ptr<weftComm> handle, std::function<Status(weftComm&)> make, weftComm** to);
// weftCommAbort of one that is ready.
void abort_ready(weftComm& handle);

}  // namespace weft
