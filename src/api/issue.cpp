// From a checked call to the engine: errors, groups, blocking and asynchronous.
#include <algorithm>

#include "api/handles.hpp"

namespace weft {
namespace {

struct Group {
  struct Item {
    weftComm* comm;
    Call call;
    weftStream* stream;
  };
  int depth = 0;
  std::vector<Item> items;
  std::vector<std::pair<weftComm*, std::function<Status()>>> deferred;
  Status first_error;
};

Group& group() {
  thread_local Group instance;
  return instance;
}

std::string& thread_error() {
  thread_local std::string text;
  return text;
}

// What was deferred in a group, at once: initialisations wait for each other, and so do registrations of different
// communicators.
Status run_deferred(const std::vector<std::pair<weftComm*, std::function<Status()>>>& deferred) {
  std::vector<Status> results(deferred.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < deferred.size(); ++i) {
    weftComm* comm = deferred[i].first;
    const auto same = [comm](const auto& entry) { return entry.first == comm; };
    if (comm != nullptr && std::any_of(deferred.begin(), deferred.begin() + static_cast<ptrdiff_t>(i), same)) continue;
    threads.emplace_back([&deferred, &results, comm, i] {
      results[i] = deferred[i].second();
      for (size_t next = i + 1; comm != nullptr && next < deferred.size(); ++next) {
        if (deferred[next].first == comm) results[next] = deferred[next].second();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) {
    if (!result.ok() && result.code() != weftInProgress) return result;
  }
  return {};
}

Status run_items(std::vector<Group::Item> items) {
  // What has no stream is waited for here; the rest goes to its streams, a job for each.
  std::vector<std::pair<Comm*, OperationPtr>> blocking;
  std::vector<std::pair<weftStream*, StreamJob>> jobs;
  bool in_progress = false;
  for (Group::Item& item : items) {
    Comm* comm = item.comm->comm.get();
    comm->queued.fetch_add(1);
    OperationPtr operation = comm->engine().create(std::move(item.call));
    weftStream* stream = item.stream;
    if (stream == nullptr && item.comm->own_stream != nullptr) {
      stream = item.comm->own_stream.get();
      in_progress = true;
    }
    if (stream == nullptr) {
      blocking.emplace_back(comm, std::move(operation));
      continue;
    }
    auto job = std::find_if(jobs.begin(), jobs.end(), [&](const auto& entry) { return entry.first == stream; });
    if (job == jobs.end()) job = jobs.insert(jobs.end(), {stream, StreamJob{}});
    job->second.operations.emplace_back(comm, std::move(operation));
  }
  for (auto& [stream, job] : jobs) stream->stream.enqueue(std::move(job));
  for (const auto& [comm, operation] : blocking) {
    comm->engine().submit(operation);
    comm->queued.fetch_sub(1);
  }
  if (!blocking.empty()) WEFT_RETURN_IF_ERROR(Engine::wait_all(blocking));
  return in_progress ? Status(weftInProgress, "") : Status();
}

Status end_group() {
  Group& mine = group();
  if (mine.depth == 0) return error(weftInvalidUsage, "weftGroupEnd without weftGroupStart");
  if (--mine.depth > 0) return {};
  Group issued;
  std::swap(issued, mine);
  WEFT_RETURN_IF_ERROR(issued.first_error);
  if (!issued.deferred.empty()) WEFT_RETURN_IF_ERROR(run_deferred(issued.deferred));
  if (issued.items.empty()) return {};
  return run_items(std::move(issued.items));
}

}  // namespace

weftResult_t report(weftComm* comm, Status status) {
  const weftResult_t code = status.code();
  if (code == weftSuccess || code == weftInProgress) return code;
  if (group().depth > 0 && group().first_error.ok()) group().first_error = status;
  thread_error() = status.message();
  if (comm != nullptr && comm->magic == weftComm::kMagic) {
    std::lock_guard lock(comm->mutex);
    comm->last_error = std::move(status);
  }
  return code;
}

Status check_ready(weftComm* comm) {
  if (comm == nullptr || comm->magic != weftComm::kMagic) {
    return error(weftInvalidArgument, "comm is {}", comm == nullptr ? "NULL" : "not a communicator");
  }
  if (!comm->ready.load(std::memory_order_acquire)) {
    return error(weftInvalidUsage,
                 "comm is still being initialised; poll weftCommGetAsyncError until it is not "
                 "weftInProgress");
  }
  if (comm->comm == nullptr) return comm->init_status;
  if (comm->comm->forked()) {
    return error(weftInvalidUsage,
                 "this process was forked after the communicator was made; only the parent may use it");
  }
  return {};
}

Status check_stream(weftStream* stream) {
  if (stream != nullptr && stream->magic != weftStream::kMagic) {
    return error(weftInvalidArgument, "stream is not a weftStream_t");
  }
  if (stream != nullptr && stream->stream.forked()) {
    return error(weftInvalidUsage, "this process was forked after the stream was made; only the parent may use it");
  }
  return {};
}

bool in_group() { return group().depth > 0; }

void defer(weftComm* comm, std::function<Status()> work) { group().deferred.emplace_back(comm, std::move(work)); }

Status issue(weftComm* comm, Call call, weftStream* stream) {
  if (in_group()) {
    group().items.push_back({comm, std::move(call), stream});
    return {};
  }
  Engine& engine = comm->comm->engine();
  if (stream == nullptr && comm->own_stream == nullptr) return engine.run(call);
  weftStream* to = stream != nullptr ? stream : comm->own_stream.get();
  StreamJob job;
  comm->comm->queued.fetch_add(1);
  job.operations.emplace_back(comm->comm.get(), engine.create(std::move(call)));
  to->stream.enqueue(std::move(job));
  return stream == nullptr ? Status(weftInProgress, "") : Status();
}

}  // namespace weft

using weft::error;
using weft::guarded;
using weft::Status;

extern "C" {

weftResult_t weftGroupStart(void) {
  ++weft::group().depth;
  return weftSuccess;
}

weftResult_t weftGroupEnd(void) { return guarded(nullptr, weft::end_group); }

const char* weftGetLastError(weftComm_t comm) {
  thread_local std::string text;
  if (comm == nullptr || comm->magic != weftComm::kMagic) {
    text = weft::thread_error();
    return text.c_str();
  }
  std::lock_guard lock(comm->mutex);
  if (comm->last_error.ok() && comm->ready.load()) {
    // Asynchronous failures are the communicator's.
    if (!comm->init_status.ok()) {
      text = comm->init_status.message();
    } else {
      text = comm->comm != nullptr && comm->comm->failed() ? comm->comm->status().message() : "";
    }
  } else {
    text = comm->last_error.message();
  }
  return text.c_str();
}

weftResult_t weftStreamCreate(weftStream_t* stream) {
  return guarded(nullptr, [&]() -> Status {
    if (stream == nullptr) return error(weftInvalidArgument, "stream is NULL");
    *stream = new weftStream;
    return {};
  });
}

weftResult_t weftStreamSynchronize(weftStream_t stream) {
  return guarded(nullptr, [&]() -> Status {
    if (stream == nullptr) return error(weftInvalidArgument, "stream is NULL");
    WEFT_RETURN_IF_ERROR(weft::check_stream(stream));
    return stream->stream.synchronize();
  });
}

weftResult_t weftStreamQuery(weftStream_t stream) {
  return guarded(nullptr, [&]() -> Status {
    if (stream == nullptr) return error(weftInvalidArgument, "stream is NULL");
    WEFT_RETURN_IF_ERROR(weft::check_stream(stream));
    bool idle = true;
    const Status first = stream->stream.query(&idle);
    return !first.ok() ? first : idle ? Status() : Status(weftInProgress, "");
  });
}

weftResult_t weftStreamDestroy(weftStream_t stream) {
  if (stream == nullptr) return weftSuccess;
  return guarded(nullptr, [&]() -> Status {
    if (stream->magic == weftStream::kMagic && stream->stream.forked()) return {};  // all of it is the parent's
    WEFT_RETURN_IF_ERROR(weft::check_stream(stream));
    const Status last = stream->stream.synchronize();
    stream->magic = 0;
    delete stream;
    return last;
  });
}

}  // extern "C"
