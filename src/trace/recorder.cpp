#include "trace/recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace weft {

namespace {

bool counter_is_steady() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kPowerManagement = 0x80000007, kInvariantCounter = 1u << 8;
  return __get_cpuid(kPowerManagement, &a, &b, &c, &d) != 0 && (d & kInvariantCounter) != 0;
#else
  return false;
#endif
}

std::string text_of(const RecorderMemory::Name& name) {
  std::string text;
  for (const auto& letter : name.text) {
    const char c = letter.load(std::memory_order_relaxed);
    if (c == '\0') break;
    text += c;
  }
  return text;
}

// Whatever is in the memory (it may be a file), numbers of names are bytes and cannot leave the table.
std::string name_at(const RecorderMemory& memory, uint64_t number) { return text_of(memory.names[number & 0xff]); }

bool read_slot(const RecorderMemory& memory, size_t index, const TickScale& scale, OpSnapshot& op) {
  const RecorderMemory::Slot& slot = memory.slots[index];
  constexpr auto acquire = std::memory_order_acquire;
  const uint64_t version = slot.version.load(acquire);
  if (version == 0 || version % 2 != 0) return false;
  op.ticket = version / 2 - 1;
  const uint64_t progress = slot.progress.load(acquire);
  const uint64_t end = slot.end.load(acquire);
  const uint64_t start = slot.start.load(acquire);
  const uint64_t sequence_root = slot.sequence_root.load(acquire);
  const uint64_t names = slot.names.load(acquire);
  op.count = slot.count.load(acquire);
  op.bytes = slot.bytes.load(acquire);
  if (slot.version.load(std::memory_order_relaxed) != version) return false;

  op.state = OpState(std::min<uint64_t>(progress >> 32, uint64_t(OpState::failed)));
  op.waiting_for = int32_t(uint32_t(progress));
  op.sequence = uint32_t(sequence_root >> 32);
  op.root = int32_t(uint32_t(sequence_root));
  op.collective = name_at(memory, names);
  op.type = name_at(memory, names >> 8);
  op.op = name_at(memory, names >> 16);
  op.algorithm = name_at(memory, names >> 24);
  op.transport = name_at(memory, names >> 32);
  op.start_ns = start == 0 ? 0 : scale.ns(start);
  const bool ended = op.state == OpState::done || op.state == OpState::failed;
  op.end_ns = ended && end != 0 ? scale.ns(end) : 0;
  return true;
}

std::string duration(uint64_t ns) {
  if (ns < 10'000) return fmt::format("{} ns", ns);
  if (ns < 10'000'000) return fmt::format("{:.1f} us", double(ns) / 1e3);
  if (ns < 10'000'000'000) return fmt::format("{:.1f} ms", double(ns) / 1e6);
  return fmt::format("{:.1f} s", double(ns) / 1e9);
}

std::string size(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = double(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

std::vector<OpSnapshot> newest(std::vector<OpSnapshot> ops, size_t last) {
  if (ops.size() > last) ops.erase(ops.begin(), ops.end() - ptrdiff_t(last));
  return ops;
}

}  // namespace

const bool detail::steady_counter = counter_is_steady();

const char* name_of(OpState state) {
  constexpr const char* kNames[] = {"none", "enqueued", "running", "done", "failed"};
  return kNames[size_t(state)];
}

FlightRecorder::FlightRecorder() : own_(std::make_unique<RecorderMemory>()), memory_(own_.get()) {
  const TickPoint now = TickPoint::now();
  memory_->first_ns.store(now.ns, std::memory_order_relaxed);
  memory_->first_ticks.store(now.ticks, std::memory_order_release);
}

FlightRecorder::FlightRecorder(RecorderMemory* memory) : memory_(memory) {
  const TickPoint now = TickPoint::now();
  memory_->first_ns.store(now.ns, std::memory_order_relaxed);
  memory_->first_ticks.store(now.ticks, std::memory_order_release);
}

uint8_t FlightRecorder::name(std::string_view text) {
  text = text.substr(0, RecorderMemory::kNameBytes - 1);
  if (text.empty()) return 0;
  if (const auto known = numbers_.find(text); known != numbers_.end()) return known->second;
  const uint32_t number = memory_->name_count.load(std::memory_order_relaxed) + 1;
  if (number >= RecorderMemory::kNames) return 0;
  for (size_t i = 0; i < text.size(); ++i) memory_->names[number].text[i].store(text[i], std::memory_order_relaxed);
  memory_->name_count.store(number, std::memory_order_release);
  numbers_.emplace(text, uint8_t(number));
  return uint8_t(number);
}

std::vector<OpSnapshot> FlightRecorder::snapshot(const RecorderMemory& memory) {
  const TickScale scale({memory.first_ticks.load(std::memory_order_acquire), memory.first_ns.load()});
  std::vector<OpSnapshot> ops;
  for (size_t i = 0; i < RecorderMemory::kSlots; ++i) {
    OpSnapshot op;
    if (read_slot(memory, i, scale, op)) ops.push_back(std::move(op));
  }
  std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.ticket < b.ticket; });
  return ops;
}

std::string describe(const OpSnapshot& op, uint64_t now_ns) {
  const bool pair = (op.sequence & FlightRecorder::kPointToPoint) != 0;
  std::string line = fmt::format("#{} {}", op.sequence & ~FlightRecorder::kPointToPoint, op.collective);
  for (const std::string& part : {op.type, op.op}) {
    if (!part.empty()) line += " " + part;
  }
  line += fmt::format(" count {} ({})", op.count, size(op.bytes));
  if (op.root >= 0) line += fmt::format(" {} {}", pair ? "peer" : "root", op.root);
  if (!op.algorithm.empty() || !op.transport.empty()) line += fmt::format(" {}/{}", op.algorithm, op.transport);
  const bool ended = op.state == OpState::done || op.state == OpState::failed;
  const uint64_t until = ended ? op.end_ns : now_ns;
  line += fmt::format(" {}", name_of(op.state));
  if (op.start_ns != 0 && until > op.start_ns)
    line += fmt::format(" {} {}", ended ? "in" : "for", duration(until - op.start_ns));
  if (op.waiting_for >= 0)
    line += fmt::format(", {} for rank {}", op.state == OpState::failed ? "waited" : "waits", op.waiting_for);
  return line;
}

std::string FlightRecorder::to_text(size_t last) const {
  std::string text;
  const uint64_t now = monotonic_ns();
  for (const OpSnapshot& op : newest(snapshot(), last)) text += describe(op, now) + "\n";
  return text;
}

}  // namespace weft
