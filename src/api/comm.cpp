// Communicators: making, splitting, ending.
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "api/handles.hpp"
#include "bootstrap/launch.hpp"
#include "comm/limits.hpp"
#include "log/log.hpp"

namespace weft {

Result<Config> merged_config(const Config& base, const weftConfig_t* config, std::string* label, bool* blocking) {
  Config merged = base;
  *blocking = true;
  if (config == nullptr) return merged;
  if (config->magic != WEFT_CONFIG_MAGIC || config->size < offsetof(weftConfig_t, timeoutMs)) {
    return error(weftInvalidArgument, "weftConfig_t was not made by WEFT_CONFIG_INITIALIZER (magic {:#x}, size {})",
                 config->magic, config->size);
  }
  // A caller built against an older header has a shorter structure: what it lacks keeps its default.
  weftConfig_t given = WEFT_CONFIG_INITIALIZER;
  std::memcpy(&given, config, std::min(config->size, sizeof given));
  if (given.blocking != WEFT_CONFIG_UNDEF_INT) {
    if (given.blocking != 0 && given.blocking != 1) {
      return error(weftInvalidArgument, "weftConfig_t.blocking={}; legal: 0, 1", given.blocking);
    }
    *blocking = given.blocking == 1;
  }
  const auto take_ms = [](const char* name, int64_t value, int64_t* to) -> Status {
    if (value == WEFT_CONFIG_UNDEF_INT) return {};
    if (value < 100 || value > int64_t{1} << 31) {
      return error(weftInvalidArgument, "weftConfig_t.{}={}; legal: 100 to 2^31 milliseconds", name, value);
    }
    *to = value;
    return {};
  };
  WEFT_RETURN_IF_ERROR(take_ms("timeoutMs", given.timeoutMs, &merged.timeout_ms));
  WEFT_RETURN_IF_ERROR(take_ms("initTimeoutMs", given.initTimeoutMs, &merged.init_timeout_ms));
  if (given.accumulate != WEFT_CONFIG_UNDEF_INT && given.accumulate != weftAccumulateDefault) {
    if (given.accumulate != weftAccumulateNarrow && given.accumulate != weftAccumulateWide) {
      return error(weftInvalidArgument, "weftConfig_t.accumulate={}; legal: a weftAccumulate_t", given.accumulate);
    }
    merged.accum = given.accumulate == weftAccumulateWide ? "wide" : "narrow";
  }
  if (given.transport != nullptr) merged.transport = given.transport;
  if (given.algo != nullptr) merged.algo = given.algo;
  if (given.netName != nullptr) merged.socket_ifname = given.netName;
  if (given.commName != nullptr) *label = given.commName;
  return merged;
}

namespace {

// Makes handle->comm, here or in the background.
Status bring_up(weftComm* handle, std::function<Result<std::unique_ptr<Comm>>()> make) {
  const auto finish = [handle, make = std::move(make)]() -> Status {
    auto made = make();
    if (made.ok()) handle->comm = std::move(*made);
    handle->init_status = made.status();
    handle->ready.store(true, std::memory_order_release);
    return handle->init_status;
  };
  if (handle->blocking) return finish();
  handle->own_stream = std::make_unique<weftStream>();
  handle->init = std::thread([finish] { (void)finish(); });
  return Status(weftInProgress, "");
}

Status keep(std::unique_ptr<weftComm> handle, const Status& status, weftComm** to) {
  if (!status.ok() && status.code() != weftInProgress) return status;
  *to = handle.release();
  return status;
}

Status check_ranks(int nranks, int rank) {
  if (nranks < 1) return error(weftInvalidArgument, "nranks={}; legal: 1 or more", nranks);
  if (rank < 0 || rank >= nranks) return error(weftInvalidArgument, "rank={}; legal: 0 to {}", rank, nranks - 1);
  return {};
}

Result<std::unique_ptr<Comm>> join_and_create(const JobId& id, std::shared_ptr<Listener> listener, int rank, int size,
                                              const Config& config, const std::string& label) {
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(config.init_timeout_ms));
  raise_descriptor_limit(config, static_cast<size_t>(size));
  std::unique_ptr<Bootstrap> bootstrap;
  if (size == 1) {
    bootstrap = std::move(local_bootstraps(1)[0]);
  } else {
    JoinOptions options{
        .id = id, .rank = rank, .size = size, .listener = std::move(listener), .deadline = deadline, .config = &config};
    auto joined = join(std::move(options));
    if (!joined.ok()) return joined.status();
    bootstrap = std::move(*joined);
  }
  log_set_rank(rank);
  return Comm::create(std::move(bootstrap), id, config, label, deadline);
}

// The id of a communicator made from another one: its secret, a group number that all members compute.
JobId child_id(const Comm& parent, uint32_t child, uint64_t tag, const std::string& address) {
  JobId id;
  id.secret = parent.secret();
  const uint64_t words[3] = {parent.group(), child, tag};
  id.group = XXH64(words, sizeof words, 0x776566);
  id.address = address;
  return id;
}

}  // namespace

Status init_rank(weftComm** comm, int nranks, const weftUniqueId& unique_id, int rank, const weftConfig_t* config) {
  if (comm == nullptr) return error(weftInvalidArgument, "comm is NULL");
  *comm = nullptr;
  WEFT_RETURN_IF_ERROR(check_ranks(nranks, rank));
  const Result<Config>& process = weft::config();
  if (!process.ok()) return process.status();
  auto handle = std::make_unique<weftComm>();
  std::string label;
  auto merged = merged_config(process.value(), config, &label, &handle->blocking);
  if (!merged.ok()) return merged.status();
  auto id = JobId::unpack(unique_id);
  if (!id.ok()) return id.status();
  handle->rank = rank;
  handle->size = nranks;
  // Taken now: the thread of a non-blocking initialisation may run after the id was used again.
  std::shared_ptr<Listener> listener = take_root_listener(*id);
  const Status status = bring_up(handle.get(), [id = *id, listener, rank, nranks, merged = *merged, label]() mutable {
    return join_and_create(id, std::move(listener), rank, nranks, merged, label);
  });
  return keep(std::move(handle), status, comm);
}

namespace {

Status init_env(weftComm** comm, const weftConfig_t* config) {
  if (comm == nullptr) return error(weftInvalidArgument, "comm is NULL");
  *comm = nullptr;
  const Result<Config>& process = weft::config();
  if (!process.ok()) return process.status();
  auto handle = std::make_unique<weftComm>();
  std::string label;
  auto merged = merged_config(process.value(), config, &label, &handle->blocking);
  if (!merged.ok()) return merged.status();
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(merged->init_timeout_ms));
  auto launch = detect_launch(*merged, from_environment, deadline);
  if (!launch.ok()) return launch.status();
  handle->rank = launch->rank;
  handle->size = launch->size;
  const Status status = bring_up(handle.get(), [launch = *launch, merged = *merged, label]() mutable {
    return join_and_create(launch.id, std::move(launch.listener), launch.rank, launch.size, merged, label);
  });
  return keep(std::move(handle), status, comm);
}

Status init_all(weftComm** comms, int count) {
  if (comms == nullptr) return error(weftInvalidArgument, "comms is NULL");
  if (count < 1 || count > 4096) return error(weftInvalidArgument, "ndev={}; legal: 1 to 4096", count);
  const Result<Config>& process = weft::config();
  if (!process.ok()) return process.status();
  auto id = JobId::random();
  if (!id.ok()) return id.status();
  raise_descriptor_limit(process.value(), static_cast<size_t>(count), static_cast<size_t>(count));
  auto bootstraps = local_bootstraps(count);
  std::vector<std::unique_ptr<weftComm>> handles;
  std::vector<std::thread> threads;
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(process.value().init_timeout_ms));
  for (int rank = 0; rank < count; ++rank) {
    handles.push_back(std::make_unique<weftComm>());
    weftComm* handle = handles.back().get();
    handle->rank = rank;
    handle->size = count;
    threads.emplace_back([handle, &bootstraps, &id, &process, rank, deadline] {
      (void)bring_up(handle, [&] {
        return Comm::create(std::move(bootstraps[static_cast<size_t>(rank)]), *id, process.value(), "", deadline);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& handle : handles) WEFT_RETURN_IF_ERROR(handle->init_status);
  for (int rank = 0; rank < count; ++rank) comms[rank] = handles[static_cast<size_t>(rank)].release();
  return {};
}

// Waits for all that is queued on streams; what blocks is over when its call returns.
Status drain(weftComm* comm) {
  if (comm->own_stream != nullptr) WEFT_RETURN_IF_ERROR(comm->own_stream->stream.synchronize());
  while (comm->comm != nullptr && comm->comm->queued.load() > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  return {};
}

Status finalize(weftComm* comm) {
  if (comm->comm != nullptr && !comm->comm->failed()) comm->comm->set_phase(CommPhase::finalizing);
  return drain(comm);
}

Status split(weftComm* parent, int color, int key, weftComm** to, const weftConfig_t* config) {
  if (to == nullptr) return error(weftInvalidArgument, "newcomm is NULL");
  *to = nullptr;
  WEFT_RETURN_IF_ERROR(check_ready(parent));
  if (color < 0 && color != WEFT_SPLIT_NOCOLOR) {
    return error(weftInvalidArgument, "color={}; legal: 0 or more, or WEFT_SPLIT_NOCOLOR", color);
  }
  Comm& comm = *parent->comm;
  auto handle = std::make_unique<weftComm>();
  std::string label;
  auto merged = merged_config(comm.config(), config, &label, &handle->blocking);
  if (!merged.ok()) return merged.status();
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(merged->init_timeout_ms));

  const std::lock_guard one_at_a_time(parent->splitting);
  std::unique_lock lock = comm.engine().visit();
  if (comm.failed()) return comm.status();
  std::shared_ptr<Listener> listener;
  if (color >= 0 && comm.size() > 1) {
    auto opened = Listener::open(*merged);
    if (!opened.ok()) return opened.status();
    listener = *opened;
  }
  const std::string mine = fmt::format("{} {} {}", color, key, listener == nullptr ? "-" : listener->address());
  // Calls under way go on while the ranks meet: one that comes to this last may have to end them first.
  auto all = comm.bootstrap().all_gather(mine, deadline, [&](const std::function<void()>& wait) {
    lock.unlock();
    wait();
    lock = comm.engine().visit();
  });
  if (!all.ok()) return all.status();
  const uint32_t child = comm.next_child();
  lock.unlock();
  if (color == WEFT_SPLIT_NOCOLOR) return {};

  struct Member {
    int key, rank;
    std::string address;
  };
  std::vector<Member> members;
  for (int rank = 0; rank < comm.size(); ++rank) {
    int their_color = 0, their_key = 0, used = 0;
    const std::string& text = (*all)[static_cast<size_t>(rank)];
    if (std::sscanf(text.c_str(), "%d %d %n", &their_color, &their_key, &used) != 2) {
      return error(weftRemoteError, "rank {} took part in weftCommSplit with something not understood", rank);
    }
    if (their_color == color) members.push_back({their_key, rank, text.substr(static_cast<size_t>(used))});
  }
  std::stable_sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.key < b.key; });
  int rank = 0;
  while (members[static_cast<size_t>(rank)].rank != comm.rank()) ++rank;
  if (rank != 0) listener.reset();
  handle->rank = rank;
  handle->size = static_cast<int>(members.size());
  const JobId id = child_id(comm, child, static_cast<uint64_t>(color), members[0].address);
  const Status status = bring_up(handle.get(), [=, size = handle->size, merged = *merged]() mutable {
    return join_and_create(id, std::move(listener), rank, size, merged, label);
  });
  return keep(std::move(handle), status, to);
}

Status shrink(weftComm* parent, const int* excluded, int count, weftComm** to, const weftConfig_t* config, int flags) {
  if (to == nullptr) return error(weftInvalidArgument, "newcomm is NULL");
  *to = nullptr;
  if (parent == nullptr || parent->magic != weftComm::kMagic || !parent->ready.load() || parent->comm == nullptr) {
    return check_ready(parent);
  }
  Comm& comm = *parent->comm;
  if (comm.forked()) return check_ready(parent);
  if (count < 0 || (count > 0 && excluded == nullptr) || (flags & ~WEFT_SHRINK_ABORT) != 0) {
    return error(weftInvalidArgument, "weftCommShrink with {} excluded ranks and flags {:#x}", count, flags);
  }
  std::vector<bool> out(static_cast<size_t>(comm.size()));
  for (int i = 0; i < count; ++i) {
    if (excluded[i] < 0 || excluded[i] >= comm.size() || excluded[i] == comm.rank()) {
      return error(weftInvalidArgument, "excluded rank {}; legal: 0 to {}, but not the caller's own {}", excluded[i],
                   comm.size() - 1, comm.rank());
    }
    out[static_cast<size_t>(excluded[i])] = true;
  }
  if (flags & WEFT_SHRINK_ABORT) {
    comm.abort_requested.store(true);
    comm.engine().wake();
    const auto lock = comm.engine().visit();
    comm.fail(error(weftAborted, "weftCommShrink ended what was in flight"), false);
  }
  auto handle = std::make_unique<weftComm>();
  std::string label;
  auto merged = merged_config(comm.config(), config, &label, &handle->blocking);
  if (!merged.ok()) return merged.status();
  std::vector<int> members;
  uint64_t tag = 0x736872696e6b;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (out[static_cast<size_t>(rank)]) continue;
    members.push_back(rank);
    tag = XXH64(&rank, sizeof rank, tag);
  }
  const std::string address = comm.size() > 2 ? comm.spare_addresses()[static_cast<size_t>(members[0])] : std::string();
  if (members.size() > 1 && address.empty()) {
    return error(weftSystemError, "rank {}, the lowest that remains, has nowhere to be met", members[0]);
  }
  handle->size = static_cast<int>(members.size());
  handle->rank = static_cast<int>(std::find(members.begin(), members.end(), comm.rank()) - members.begin());
  // Numbered by the excluded ranks alone: ranks that failed may not have counted the same children.
  const JobId id = child_id(comm, UINT32_MAX, tag, address);
  std::shared_ptr<Listener> listener = handle->rank == 0 ? comm.take_spare_listener() : nullptr;
  const Status status =
      bring_up(handle.get(), [=, rank = handle->rank, size = handle->size, merged = *merged]() mutable {
        return join_and_create(id, std::move(listener), rank, size, merged, label);
      });
  return keep(std::move(handle), status, to);
}

}  // namespace
}  // namespace weft

using weft::error;
using weft::guarded;
using weft::Status;

extern "C" {

weftResult_t weftGetUniqueId(weftUniqueId* uniqueId) {
  return guarded(nullptr, [&]() -> Status {
    if (uniqueId == nullptr) return error(weftInvalidArgument, "uniqueId is NULL");
    const auto& config = weft::config();
    if (!config.ok()) return config.status();
    auto id = weft::make_unique_id(config.value());
    if (!id.ok()) return id.status();
    *uniqueId = *id;
    return {};
  });
}

weftResult_t weftCommInitRank(weftComm_t* comm, int nranks, weftUniqueId commId, int rank) {
  return weftCommInitRankConfig(comm, nranks, commId, rank, nullptr);
}

weftResult_t weftCommInitRankConfig(weftComm_t* comm, int nranks, weftUniqueId commId, int rank, weftConfig_t* config) {
  return guarded(nullptr, [&]() -> Status {
    if (!weft::in_group()) return weft::init_rank(comm, nranks, commId, rank, config);
    const bool has_config = config != nullptr;
    weftConfig_t copy = WEFT_CONFIG_INITIALIZER;
    if (has_config) copy = *config;
    weft::defer(nullptr, [=] { return weft::init_rank(comm, nranks, commId, rank, has_config ? &copy : nullptr); });
    return {};
  });
}

weftResult_t weftCommInitEnv(weftComm_t* comm, weftConfig_t* config) {
  return guarded(nullptr, [&] { return weft::init_env(comm, config); });
}

weftResult_t weftCommInitAll(weftComm_t* comms, int ndev, const int*) {
  return guarded(nullptr, [&] { return weft::init_all(comms, ndev); });
}

weftResult_t weftCommSplit(weftComm_t comm, int color, int key, weftComm_t* newcomm, weftConfig_t* config) {
  return guarded(comm, [&] { return weft::split(comm, color, key, newcomm, config); });
}

weftResult_t weftCommShrink(weftComm_t comm, int* excludeRanksList, int excludeRanksCount, weftComm_t* newcomm,
                            weftConfig_t* config, int shrinkFlags) {
  return guarded(comm,
                 [&] { return weft::shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags); });
}

weftResult_t weftCommFinalize(weftComm_t comm) {
  return guarded(comm, [&]() -> Status {
    WEFT_RETURN_IF_ERROR(weft::check_ready(comm));
    return weft::finalize(comm);
  });
}

weftResult_t weftCommDestroy(weftComm_t comm) {
  if (comm == nullptr) return weftSuccess;
  return guarded(nullptr, [&]() -> Status {
    if (comm->magic != weftComm::kMagic) return error(weftInvalidArgument, "comm is not a communicator");
    if (comm->comm != nullptr && comm->comm->forked()) {
      // Its sockets, and the threads that it had, are the parent's: to close them in order would end them there.
      comm->magic = 0;
      return {};
    }
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
    if (comm == nullptr || comm->magic != weftComm::kMagic)
      return error(weftInvalidArgument, "comm is no communicator");
    if (!comm->ready.load() || comm->comm == nullptr) return {};
    weft::Comm& inner = *comm->comm;
    if (inner.forked()) return weft::check_ready(comm);
    inner.abort_requested.store(true);
    inner.engine().wake();
    const auto lock = inner.engine().visit();
    inner.fail(error(weftAborted, "weftCommAbort was called on rank {}", inner.rank()), true);
    inner.set_phase(weft::CommPhase::aborted);
    return {};
  });
}

weftResult_t weftCommGetAsyncError(weftComm_t comm, weftResult_t* asyncError) {
  return guarded(comm, [&]() -> Status {
    if (comm == nullptr || comm->magic != weftComm::kMagic || asyncError == nullptr) {
      return error(weftInvalidArgument, "comm is no communicator, or asyncError is NULL");
    }
    if (!comm->ready.load(std::memory_order_acquire)) {
      *asyncError = weftInProgress;
    } else if (!comm->init_status.ok()) {
      *asyncError = comm->init_status.code();
    } else if (comm->comm->failed()) {
      *asyncError = comm->comm->status().code();
    } else {
      bool idle = true;
      Status first;
      if (comm->own_stream != nullptr) first = comm->own_stream->stream.query(&idle);
      *asyncError = !first.ok() ? first.code() : idle ? weftSuccess : weftInProgress;
    }
    return {};
  });
}

weftResult_t weftCommCount(const weftComm_t comm, int* count) {
  return guarded(comm, [&]() -> Status {
    if (comm == nullptr || comm->magic != weftComm::kMagic || count == nullptr) {
      return error(weftInvalidArgument, "comm is no communicator, or count is NULL");
    }
    *count = comm->size;
    return {};
  });
}

weftResult_t weftCommUserRank(const weftComm_t comm, int* rank) {
  return guarded(comm, [&]() -> Status {
    if (comm == nullptr || comm->magic != weftComm::kMagic || rank == nullptr) {
      return error(weftInvalidArgument, "comm is no communicator, or rank is NULL");
    }
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
