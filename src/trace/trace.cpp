#include "trace/trace.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "log/log.hpp"
#include "trace/json.hpp"

namespace weft {
namespace detail {
std::atomic<bool> trace_on{false};
}

namespace {

struct Kept {
  TraceEvent event;
  std::atomic<bool> complete{false};
};

// Writers take the next place of an array by one fetch_add; a place is read only once it is complete.
struct Buffer {
  explicit Buffer(size_t size) : events(std::make_unique<Kept[]>(size)), capacity(size), first(TickPoint::now()) {}
  std::unique_ptr<Kept[]> events;
  size_t capacity;
  TickPoint first;
  std::atomic<uint64_t> taken{0};

  uint64_t kept() const { return std::min<uint64_t>(taken.load(std::memory_order_acquire), capacity); }
  uint64_t dropped() const { return taken.load(std::memory_order_acquire) - kept(); }
};

struct State {
  std::mutex mutex;
  int users = 0;
  int rank = -1;
  pid_t pid = 0;
  std::string path;
  uint64_t written = 0;  // events taken when the file was written last
  std::set<std::string, std::less<>> names;
};

State& state() {
  static State* const only = new State;  // never destroyed: trace_name's texts stay valid while the process ends
  return *only;
}
// Buffers live as long as the process, except between tests: a writer may still hold one.
std::atomic<Buffer*> buffer{nullptr};

// Events that overlap in time need rows of their own: rows of one kind and peer are filled first-fit by begin.
class Rows {
 public:
  // The row number, and whether it is new.
  std::pair<int, bool> place(const TraceEvent& event) {
    const bool paired = event.kind != TraceKind::operation && event.kind != TraceKind::copy;
    auto& rows = rows_[{event.rank, event.kind, paired ? event.peer : -1}];
    for (auto& [number, busy_until] : rows) {
      if (busy_until > event.begin) continue;
      busy_until = event.end;
      return {number, false};
    }
    rows.emplace_back(next_++, event.end);
    return {rows.back().first, true};
  }

 private:
  std::map<std::tuple<int32_t, TraceKind, int32_t>, std::vector<std::pair<int, uint64_t>>> rows_;
  int next_ = 1;
};

std::string row_name(const TraceEvent& event) {
  switch (event.kind) {
    case TraceKind::send:
      return fmt::format("send to {}", event.peer);
    case TraceKind::recv:
      return fmt::format("recv from {}", event.peer);
    case TraceKind::wait:
      return fmt::format("wait for {}", event.peer);
    case TraceKind::copy:
      return "copy";
    case TraceKind::operation:
      break;
  }
  return "operations";
}

// One event at a time: a full buffer would be ten times its size as one JSON value.
Status write_events(std::FILE* file, const Buffer& from) {
  std::vector<const TraceEvent*> order;
  for (uint64_t i = 0; i < from.kept(); ++i) {
    if (from.events[i].complete.load(std::memory_order_acquire)) order.push_back(&from.events[i].event);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });

  const TickScale scale(from.first);
  fmt::print(file, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[",
             trace_header_json(from.dropped()));
  const char* separator = "\n";
  const auto put = [&](const std::string& value) {
    fmt::print(file, "{}{}", separator, value);
    separator = ",\n";
  };
  Rows rows;
  std::set<int32_t> ranks;
  for (const TraceEvent* event : order) {
    if (ranks.insert(event->rank).second)
      put(trace_metadata_json("process_name", event->rank, 0, expand_path("rank %r (%h %p)", event->rank)));
    const auto [row, fresh] = rows.place(*event);
    if (fresh) put(trace_metadata_json("thread_name", event->rank, row, row_name(*event)));
    put(trace_event_json(*event, row, scale));
  }
  fmt::print(file, "\n]}}\n");
  if (std::ferror(file) != 0) return system_error(errno, "writing the trace");
  return {};
}

Status write_locked(State& now) {
  Buffer* from = buffer.load(std::memory_order_acquire);
  if (from == nullptr || now.pid != ::getpid()) return {};
  const std::string path = expand_path(now.path, now.rank), part = path + ".part";
  now.written = from->taken.load(std::memory_order_acquire);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(part.c_str(), "we"), std::fclose);
  if (!file) return system_error(errno, fmt::format("WEFT_TRACE_FILE={}: {}", now.path, part));
  WEFT_RETURN_IF_ERROR(write_events(file.get(), *from));
  if (std::fflush(file.get()) != 0 || std::rename(part.c_str(), path.c_str()) != 0)
    return system_error(errno, fmt::format("WEFT_TRACE_FILE={}: {}", now.path, path));
  if (const uint64_t dropped = from->dropped(); dropped > 0) {
    log(LogLevel::warn, "the trace {} lacks {} events: only the first {} were kept; set WEFT_TRACE_EVENTS higher", path,
        dropped, from->capacity);
  }
  log(LogLevel::info, "wrote the trace {}", path);
  return {};
}

void write_and_log(State& now) {
  if (const Status status = write_locked(now); !status.ok()) log(LogLevel::warn, "{}", status.message());
}

struct AtExit {
  ~AtExit() {
    const Buffer* from = buffer.load(std::memory_order_acquire);
    State& now = state();
    const std::unique_lock lock(now.mutex, std::try_to_lock);
    if (from != nullptr && lock.owns_lock() && from->taken.load(std::memory_order_acquire) > now.written)
      write_and_log(now);
  }
} at_exit;

}  // namespace

void trace_event(const TraceEvent& event) {
  Buffer* const to = buffer.load(std::memory_order_acquire);
  if (to == nullptr) return;
  const uint64_t place = to->taken.fetch_add(1, std::memory_order_acq_rel);
  if (place >= to->capacity) return;
  to->events[place].event = event;
  to->events[place].complete.store(true, std::memory_order_release);
}

const char* trace_name(std::string_view text) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  const auto found = now.names.find(text);
  return (found != now.names.end() ? found : now.names.emplace(text).first)->c_str();
}

uint64_t trace_dropped() {
  const Buffer* const from = buffer.load(std::memory_order_acquire);
  return from != nullptr ? from->dropped() : 0;
}

TraceUser::TraceUser(const Config& config, int rank) {
  if (config.trace_file.empty()) return;
  State& now = state();
  const std::lock_guard lock(now.mutex);
  active_ = true;
  ++now.users;
  if (now.rank < 0) now.rank = rank;
  if (buffer.load(std::memory_order_relaxed) != nullptr) return;
  now.path = config.trace_file;
  now.pid = ::getpid();
  buffer.store(new Buffer(size_t(config.trace_events)), std::memory_order_release);
  detail::trace_on.store(true, std::memory_order_release);
}

TraceUser& TraceUser::operator=(TraceUser&& other) noexcept {
  if (this != &other) {
    leave();
    active_ = std::exchange(other.active_, false);
  }
  return *this;
}

void TraceUser::leave() {
  if (!std::exchange(active_, false)) return;
  State& now = state();
  const std::lock_guard lock(now.mutex);
  if (--now.users == 0) write_and_log(now);
}

Status trace_write() {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  return write_locked(now);
}

void trace_reset() {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  detail::trace_on.store(false, std::memory_order_release);
  delete buffer.exchange(nullptr, std::memory_order_acq_rel);
  now.users = 0;
  now.rank = -1;
  now.written = 0;
}

}  // namespace weft
