// From a checked call to the engine: errors, groups, blocking and asynchronous.
#include <algorithm>
#include <map>

#include "api/handles.hpp"

namespace weft {
namespace {

struct Group {
  struct Item {
    weftComm* comm;
    Call call;
    weftStream* stream;
  };
  struct Deferred {
    weftComm* parent;
    weftComm* made;
    std::function<Status()> work;
  };
  int depth = 0;
  std::vector<Item> items;
  std::vector<Deferred> deferred;
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

// All at once, since they wait for each other; but what is of one communicator in order.
Status run_deferred(const std::vector<Group::Deferred>& deferred) {
  std::vector<Status> results(deferred.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < deferred.size(); ++i) {
    const auto same = [parent = deferred[i].parent](const Group::Deferred& entry) {
      return parent != nullptr && entry.parent == parent;
    };
    if (std::any_of(deferred.begin(), deferred.begin() + static_cast<ptrdiff_t>(i), same)) continue;
    threads.emplace_back([&deferred, &results, same, i] {
      results[i] = deferred[i].work();
      for (size_t next = i + 1; next < deferred.size(); ++next) {
        if (same(deferred[next])) results[next] = deferred[next].work();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Status status;
  for (const Status& result : results) {
    if (status.ok() || (status.code() == weftInProgress && !result.ok())) status = result;
  }
  return status;
}

// The streams of these calls, each once, and locked in one order for all threads.
struct Streams {
  explicit Streams(const std::vector<Group::Item>& items) {
    for (const Group::Item& item : items) {
      if (item.stream != nullptr) all[item.stream];
    }
    for (const auto& [stream, job] : all) locks.push_back(stream->stream.lock());
  }
  // Hands over a job to each.
  void push() {
    for (auto& [stream, job] : all) stream->stream.push(std::move(job));
    locks.clear();
    for (auto& [stream, job] : all) stream->stream.wake();
  }
  void wait_for_room() const {
    for (const auto& [stream, job] : all) stream->stream.wait_for_room();
  }
  std::map<weftStream*, StreamJob> all;
  std::vector<std::unique_lock<std::mutex>> locks;
};

// What has no stream is waited for here; the rest goes to its streams, a job for each. The numbers of operations go by
// the order in which they are in a stream: others match what they do by the numbers, in order.
Status run_items(std::vector<Group::Item> items) {
  bool in_progress = false;
  for (Group::Item& item : items) {
    if (item.stream != nullptr || item.comm->own_stream == nullptr) continue;
    item.stream = item.comm->own_stream.get();
    in_progress = true;
  }
  std::vector<std::pair<Comm*, OperationPtr>> blocking;
  Streams streams(items);
  for (Group::Item& item : items) {
    Comm* comm = item.comm->comm.get();
    comm->queued.fetch_add(1);
    auto& list = item.stream == nullptr ? blocking : streams.all[item.stream].operations;
    list.emplace_back(comm, comm->engine().create(std::move(item.call)));
  }
  streams.push();
  for (const auto& [comm, operation] : blocking) {
    comm->engine().submit(operation);
    comm->queued.fetch_sub(1);
  }
  const Status status = blocking.empty() ? Status() : Engine::wait_all(blocking);
  streams.wait_for_room();
  if (!status.ok()) return status;
  return in_progress ? Status(weftInProgress, "") : Status();
}

Status end_group() {
  Group& mine = group();
  if (mine.depth == 0) return error(weftInvalidUsage, "weftGroupEnd without weftGroupStart");
  if (--mine.depth > 0) return {};
  Group issued;
  std::swap(issued, mine);
  WEFT_RETURN_IF_ERROR(issued.first_error);
  const Status made = run_deferred(issued.deferred);
  if (!made.ok() && made.code() != weftInProgress) return made;
  const Status ran = run_items(std::move(issued.items));
  return ran.ok() ? made : ran;
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

Status check_handle(weftComm* comm) {
  if (comm == nullptr || comm->magic != weftComm::kMagic) {
    return error(weftInvalidArgument, "comm is {}", comm == nullptr ? "NULL" : "not a communicator");
  }
  if (comm->forks != forks()) {
    return error(weftInvalidUsage,
                 "this process was forked after the communicator was made; only the parent may use it");
  }
  return {};
}

Status check_ready(weftComm* comm) {
  WEFT_RETURN_IF_ERROR(check_handle(comm));
  if (!comm->ready.load(std::memory_order_acquire)) {
    return error(weftInvalidUsage,
                 "comm is still being initialised; poll weftCommGetAsyncError until it is not "
                 "weftInProgress");
  }
  return comm->comm == nullptr ? comm->init_status : Status();
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

void defer(weftComm* parent, std::function<Status()> work, weftComm* made) {
  group().deferred.push_back({parent, made, std::move(work)});
}

Status check_unused(const weftComm* comm) {
  const Group& mine = group();
  const bool called = std::any_of(mine.items.begin(), mine.items.end(), [&](const auto& i) { return i.comm == comm; });
  const bool deferred = std::any_of(mine.deferred.begin(), mine.deferred.end(),
                                    [&](const auto& entry) { return entry.parent == comm || entry.made == comm; });
  if (!called && !deferred) return {};
  return error(weftInvalidUsage, "this group has calls of the communicator, which weftGroupEnd issues first");
}

Status check_unused(const weftStream* stream) {
  const Group& mine = group();
  if (std::none_of(mine.items.begin(), mine.items.end(), [&](const auto& item) { return item.stream == stream; })) {
    return {};
  }
  return error(weftInvalidUsage, "this group has calls on the stream, which weftGroupEnd issues first");
}

Status issue(weftComm* comm, Call call, weftStream* stream) {
  if (in_group()) {
    group().items.push_back({comm, std::move(call), stream});
    return {};
  }
  if (stream == nullptr && comm->own_stream == nullptr) return comm->comm->engine().run(call);
  std::vector<Group::Item> one;
  one.push_back({comm, std::move(call), stream});
  return run_items(std::move(one));
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
    WEFT_RETURN_IF_ERROR(weft::check_unused(stream));
    const Status last = stream->stream.synchronize();
    stream->magic = 0;
    delete stream;
    return last;
  });
}

}  // extern "C"
