// The trace: operations and tiles of this process with their times, in a bounded buffer, written as Perfetto / Chrome
// JSON to WEFT_TRACE_FILE. Off (the usual case) it costs one relaxed load per question.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "config/config.hpp"
#include "status/status.hpp"
#include "trace/ticks.hpp"

namespace weft {

namespace detail {
extern std::atomic<bool> trace_on;
}
inline bool trace_enabled() { return detail::trace_on.load(std::memory_order_relaxed); }

enum class TraceKind : uint8_t { operation, send, recv, copy, wait };

struct TraceEvent {
  TraceKind kind = TraceKind::operation;
  int32_t rank = 0;
  int32_t peer = -1;      // of send, recv and wait
  uint32_t sequence = 0;  // of the operation
  uint32_t tile = 0;
  uint32_t step = 0;
  uint64_t group = 0;  // the communicator
  uint64_t bytes = 0;
  uint64_t begin = 0;  // ticks_now() at both ends
  uint64_t end = 0;
  const char* name = nullptr;  // of an operation: from trace_name(), or a literal
};

// Keeps one event; from any thread, without locks. When the buffer is full it is counted as dropped.
void trace_event(const TraceEvent& event);
// The same text with the life of the process. Not for the data path.
const char* trace_name(std::string_view text);
uint64_t trace_dropped();

// A communicator's use of the trace: begins it when the configuration asks for one, and writes the file when the last
// communicator leaves (what is recorded after that is written when the process ends, or at the next leaving).
class TraceUser {
 public:
  TraceUser() = default;
  TraceUser(const Config& config, int rank);
  TraceUser(TraceUser&& other) noexcept : active_(other.active_) { other.active_ = false; }
  TraceUser& operator=(TraceUser&& other) noexcept;
  ~TraceUser() { leave(); }

 private:
  void leave();
  bool active_ = false;
};

// Writes what there is now. The file is replaced as a whole. No trace: nothing happens.
Status trace_write();
// Back to the state of a new process; for tests.
void trace_reset();

}  // namespace weft
