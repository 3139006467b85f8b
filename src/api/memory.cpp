// Shared memory, registrations, windows.
#include <algorithm>
#include <thread>

#include "api/handles.hpp"
#include "log/log.hpp"
#include "memory/regions.hpp"

namespace weft {
namespace {

// What each rank tells the others at a registration, several times over.
struct Announcement {
  uint64_t bytes;
  uint64_t region;  // 0: no shared memory
  uint64_t ready;   // this rank has shown its memory to all, and has all that was announced
};

Status gather(Comm& comm, const Announcement& mine, std::vector<Announcement>& all) {
  Call call;
  call.collective = Collective::allgather;
  call.registers = true;
  call.in = &mine;
  call.out = all.data();
  call.count = sizeof mine / sizeof(uint64_t);
  call.type = weftUint64;
  const OperationPtr operation = comm.engine().create(std::move(call));
  comm.engine().submit(operation);
  return Engine::wait_all({{&comm, operation}});
}

Status check_sizes(const std::vector<Announcement>& all, int rank) {
  const uint64_t mine = all[static_cast<size_t>(rank)].bytes;
  const auto other = std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.bytes != mine; });
  if (other == all.end()) return {};
  return error(
      weftInvalidUsage,
      "weftCommWindowRegister of {} bytes on rank {}, of {} on rank {}; a window has the same size on every rank", mine,
      rank, other->bytes, other - all.begin());
}

// Shows the region (where there is one) to the peers that can map it, and looks for theirs. True when that is done.
bool exchange_mappings(Comm& comm, const std::vector<int>& peers, const std::vector<Announcement>& all,
                       const std::shared_ptr<const SharedRegion>& region) {
  const auto lock = comm.engine().visit();
  if (comm.failed()) return false;
  bool done = true;
  for (const int peer : peers) {
    Wire* wire = comm.wire(peer);
    if (wire == nullptr) return false;
    const auto theirs = static_cast<uint32_t>(all[static_cast<size_t>(peer)].region);
    if (region != nullptr) done &= wire->show(region);
    if (theirs != 0) done &= wire->has_come(theirs);
  }
  return done;
}

// The ranks go round by round, all the same number of rounds, until all are ready. Each round is an operation of the
// communicator: it fails where a rank dies or calls something else, and connects what is not connected while it waits.
Status exchange(Comm& comm, const void* base, size_t bytes) {
  const std::vector<int> peers = comm.mapping_peers();
  const auto region = find_region(base, bytes);
  if (region == nullptr && !peers.empty()) {
    log(LogLevel::info,
        "weftCommWindowRegister: {} bytes at {} are not of weftMemAlloc; {} rank(s) of this host cannot map them",
        bytes, base, peers.size());
  }
  std::vector<Announcement> all(static_cast<size_t>(comm.size()));
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(comm.timeout_ms.load()));
  bool ready = false;
  for (int round = 0;; ++round) {
    WEFT_RETURN_IF_ERROR(gather(comm, {bytes, region == nullptr ? 0 : region->id, ready}, all));
    if (round == 0) WEFT_RETURN_IF_ERROR(check_sizes(all, comm.rank()));
    if (std::all_of(all.begin(), all.end(), [](const auto& entry) { return entry.ready != 0; })) return {};
    if (round > 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ready = exchange_mappings(comm, peers, all, region);
    if (!ready && deadline.passed()) {
      log(LogLevel::info, "weftCommWindowRegister: not all mappings were exchanged; they come with the first messages");
      ready = true;
    }
  }
}

// A number that stands for a registration and is never used again, so that an old one is not taken for a new one. What
// transports have to know of memory they are told now.
Result<uintptr_t> add_registration(weftComm* comm, void* base, size_t bytes, bool window) {
  static std::atomic<uintptr_t> next{1};
  const Registration registration{window, {static_cast<std::byte*>(base), bytes}};
  if (comm->comm != nullptr && comm->comm->registers()) {
    const auto engine = comm->comm->engine().visit();
    WEFT_RETURN_IF_ERROR(comm->comm->pin(registration.memory));
  }
  const uintptr_t handle = next.fetch_add(1);
  std::lock_guard lock(comm->mutex);
  comm->registrations.emplace(handle, registration);
  return handle;
}

Status remove_registration(weftComm* comm, void* handle, bool window) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  Piece memory;
  {
    std::lock_guard lock(comm->mutex);
    const auto found = comm->registrations.find(number);
    if (found == comm->registrations.end() || found->second.window != window) {
      return error(weftInvalidArgument, "{} {} is not registered with this communicator, or not any more",
                   window ? "window" : "handle", number);
    }
    memory = found->second.memory;
    comm->registrations.erase(found);
  }
  if (comm->comm != nullptr && comm->comm->registers()) {
    const auto engine = comm->comm->engine().visit();
    comm->comm->unpin(memory);
  }
  return {};
}

Status register_window(weftComm* comm, void* base, size_t bytes, weftWindow_t* window) {
  if (comm->size > 1) WEFT_RETURN_IF_ERROR(exchange(*comm->comm, base, bytes));
  const auto number = add_registration(comm, base, bytes, true);
  if (!number.ok()) return number.status();
  *window = reinterpret_cast<weftWindow_t>(number.value());
  return {};
}

}  // namespace
}  // namespace weft

using weft::error;
using weft::guarded;
using weft::Status;

extern "C" {

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

weftResult_t weftCommRegister(const weftComm_t comm, void* buff, size_t size, void** handle) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (buff == nullptr || size == 0 || handle == nullptr) {
      return error(weftInvalidArgument, "weftCommRegister(buff={}, size={}, handle={}); legal: none NULL, size above 0",
                   buff, size, static_cast<void*>(handle));
    }
    const auto number = weft::add_registration(comm, buff, size, false);
    if (!number.ok()) return number.status();
    *handle = reinterpret_cast<void*>(number.value());
    return {};
  });
}

weftResult_t weftCommDeregister(const weftComm_t comm, void* handle) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    return weft::remove_registration(comm, handle, false);
  });
}

weftResult_t weftCommWindowRegister(weftComm_t comm, void* buff, size_t size, weftWindow_t* win, int winFlags) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    if (buff == nullptr || size == 0 || win == nullptr || winFlags != WEFT_WIN_DEFAULT) {
      return error(weftInvalidArgument,
                   "weftCommWindowRegister(buff={}, size={}, win={}, winFlags={}); legal: none NULL, size above 0, "
                   "flags 0",
                   buff, size, static_cast<void*>(win), winFlags);
    }
    if (!weft::in_group()) return weft::register_window(comm, buff, size, win);
    weft::defer(comm, [=] { return weft::register_window(comm, buff, size, win); });
    return {};
  });
}

weftResult_t weftCommWindowDeregister(weftComm_t comm, weftWindow_t win) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    return weft::remove_registration(comm, win, true);
  });
}

}  // extern "C"
