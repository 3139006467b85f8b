// Communicators: how they are made. Splitting and shrinking: split.cpp.
#include <algorithm>
#include <cstring>

#include "api/handles.hpp"
#include "bootstrap/launch.hpp"
#include "comm/limits.hpp"
#include "log/log.hpp"

namespace weft {

Result<Config> merged_config(const Config& base, const weftConfig_t* config, std::string* label, bool* blocking) {
  Config merged = base;
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

Deadline init_deadline(const Config& config, const std::atomic<bool>& aborted) {
  return Deadline::after(std::chrono::milliseconds(config.init_timeout_ms)).unless(&aborted);
}

Result<std::unique_ptr<Comm>> join_and_create(const weftComm& handle, JoinOptions options, const Config& config,
                                              const std::string& label) {
  const JobId id = options.id;
  const Deadline deadline = options.deadline;
  raise_descriptor_limit(config, static_cast<size_t>(handle.size));
  std::unique_ptr<Bootstrap> bootstrap;
  if (handle.size == 1) {
    bootstrap = std::move(local_bootstraps(1)[0]);
  } else {
    options.rank = handle.rank;
    options.size = handle.size;
    options.config = &config;
    auto joined = join(std::move(options));
    if (!joined.ok()) return deadline.cancelled() ? aborted_in_setup(handle.rank) : joined.status();
    bootstrap = std::move(*joined);
  }
  return Comm::create(std::move(bootstrap), id, config, label, deadline);
}

Status bring_up(weftComm& handle, std::function<Result<std::unique_ptr<Comm>>()> make) {
  const auto finish = [&handle, make = std::move(make)]() -> Status {
    auto made = make();
    if (made.ok()) handle.comm = std::move(*made);
    handle.init_status = made.status();
    handle.ready.store(true);
    if (made.ok() && handle.abort_requested.load()) abort_ready(handle);  // there was nothing to abort when it came
    return handle.init_status;
  };
  if (handle.blocking) return finish();
  handle.own_stream = std::make_unique<weftStream>();
  handle.init = std::thread([finish] { (void)finish(); });
  return Status(weftInProgress, "");
}

namespace {

void set_failed(weftComm& handle, const Status& why) {
  if (handle.init.joinable() || handle.ready.load()) return;
  handle.init_status = why;
  handle.ready.store(true);
}

// What is made at the end of a group. A group that fails before leaves the handle failed, for its owner to release.
struct Deferred {
  Deferred(weftComm* handle, std::function<Status(weftComm&)> make) : handle(handle), make(std::move(make)) {}
  ~Deferred() {
    if (!begun) set_failed(*handle, error(weftInvalidUsage, "the group that was to make this communicator failed"));
  }
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;

  Status run() {
    begun = true;
    const Status status = make(*handle);
    if (!status.ok() && status.code() != weftInProgress) set_failed(*handle, status);
    return status;
  }

  weftComm* handle;
  std::function<Status(weftComm&)> make;
  bool begun = false;
};

}  // namespace

Status start(weftComm* parent, std::unique_ptr<weftComm> handle, std::function<Status(weftComm&)> make, weftComm** to) {
  if (in_group()) {
    *to = handle.release();
    defer(
        parent, [deferred = std::make_shared<Deferred>(*to, std::move(make))] { return deferred->run(); }, *to);
    return {};
  }
  const Status status = make(*handle);
  if (status.ok() || status.code() == weftInProgress) *to = handle.release();
  return status;
}

namespace {

constexpr int kMostRanks = 1 << 20;  // as WEFT_WORLD_SIZE

Status init_rank(weftComm** comm, int nranks, const weftUniqueId& unique_id, int rank, const weftConfig_t* config) {
  if (comm == nullptr) return error(weftInvalidArgument, "comm is NULL");
  *comm = nullptr;
  if (nranks < 1 || nranks > kMostRanks) {
    return error(weftInvalidArgument, "nranks={}; legal: 1 to {}", nranks, kMostRanks);
  }
  if (rank < 0 || rank >= nranks) return error(weftInvalidArgument, "rank={}; legal: 0 to {}", rank, nranks - 1);
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
  handle->placed = true;
  log_set_rank(rank);
  // The listener is taken now: the thread of a non-blocking initialisation may run after the id was used again.
  JoinOptions options{.id = *id, .listener = take_root_listener(*id)};
  const auto make = [options, merged = *merged, label](weftComm& made) {
    return bring_up(made, [&made, options, merged, label]() mutable {
      options.deadline = init_deadline(merged, made.abort_requested);
      return join_and_create(made, options, merged, label);
    });
  };
  return start(nullptr, std::move(handle), make, comm);
}

Status init_env(weftComm** comm, const weftConfig_t* config) {
  if (comm == nullptr) return error(weftInvalidArgument, "comm is NULL");
  *comm = nullptr;
  const Result<Config>& process = weft::config();
  if (!process.ok()) return process.status();
  auto handle = std::make_unique<weftComm>();
  std::string label;
  auto merged = merged_config(process.value(), config, &label, &handle->blocking);
  if (!merged.ok()) return merged.status();
  // The environment is read before the call returns, but the launcher's other ranks may be waited for in the
  // background.
  const auto make = [merged = *merged, label](weftComm& made) {
    return bring_up(made, [&made, merged, label]() -> Result<std::unique_ptr<Comm>> {
      const Deadline deadline = init_deadline(merged, made.abort_requested);
      auto launch = detect_launch(merged, from_environment, deadline);
      if (!launch.ok()) return deadline.cancelled() ? aborted_in_setup(made.rank) : launch.status();
      made.rank = launch->rank;
      made.size = launch->size;
      log_set_rank(launch->rank);
      // A deadline of its own: whoever leads the ranks together is still there when the others' first one passes.
      JoinOptions options{
          .id = launch->id, .listener = launch->listener, .deadline = init_deadline(merged, made.abort_requested)};
      return join_and_create(made, std::move(options), merged, label);
    });
  };
  return start(nullptr, std::move(handle), make, comm);
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
    handle->placed = true;
    threads.emplace_back([handle, &bootstraps, &id, &process, rank, deadline] {
      (void)bring_up(*handle, [&] {
        return Comm::create(std::move(bootstraps[static_cast<size_t>(rank)]), *id, process.value(), "", deadline);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& handle : handles) WEFT_RETURN_IF_ERROR(handle->init_status);
  for (int rank = 0; rank < count; ++rank) comms[rank] = handles[static_cast<size_t>(rank)].release();
  return {};
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
  return guarded(nullptr, [&] { return weft::init_rank(comm, nranks, commId, rank, config); });
}

weftResult_t weftCommInitEnv(weftComm_t* comm, weftConfig_t* config) {
  return guarded(nullptr, [&] { return weft::init_env(comm, config); });
}

weftResult_t weftCommInitAll(weftComm_t* comms, int ndev, const int*) {
  return guarded(nullptr, [&] { return weft::init_all(comms, ndev); });
}

}  // extern "C"
