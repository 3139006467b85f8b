#include "trace/counters.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace weft {
namespace {

// A label's value in the exposition format: backslash, quote and newline are escaped.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') result += '\\';
    result += c;
  }
  return result + "\"";
}

class Exposition {
 public:
  explicit Exposition(const CommCounters& counters)
      : labels_(fmt::format("job={},comm={},group=\"{:016x}\",rank=\"{}\"", quoted(counters.job),
                            quoted(counters.label), counters.group, counters.rank)) {}

  void family(const char* name, const char* type, const char* help) {
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
    name_ = name;
  }
  void sample(uint64_t value, const std::string& more = "") {
    text_ += fmt::format("{}{{{}{}}} {}\n", name_, labels_, more, value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string labels_, text_, name_;
};

}  // namespace

std::string counters_prometheus(const CommCounters& counters, const std::vector<OpSnapshot>& recorder) {
  Exposition out(counters);
  out.family("weft_operations_total", "counter", "Operations that this rank has begun.");
  out.sample(counters.operations);
  out.family("weft_operation_failures_total", "counter", "Operations that ended with an error.");
  out.sample(counters.failures);

  struct Family {
    const char* name;
    const char* help;
    uint64_t WireCounters::*member;
  };
  constexpr Family kFamilies[] = {
      {"weft_wire_sent_bytes_total", "Bytes sent to a peer.", &WireCounters::bytes_sent},
      {"weft_wire_received_bytes_total", "Bytes received from a peer.", &WireCounters::bytes_received},
      {"weft_wire_messages_sent_total", "Messages sent to a peer.", &WireCounters::messages_sent},
      {"weft_wire_messages_received_total", "Messages received from a peer.", &WireCounters::messages_received},
      {"weft_wire_messages_placed_total", "Of these, the ones that the peer wrote where they belong.",
       &WireCounters::messages_placed},
  };
  for (const Family& family : kFamilies) {
    if (counters.wires.empty()) break;
    out.family(family.name, "counter", family.help);
    for (const WireCounters& wire : counters.wires)
      out.sample(wire.*family.member, fmt::format(",peer=\"{}\",transport={}", wire.peer, quoted(wire.transport)));
  }

  struct RailFamily {
    const char* name;
    const char* help;
    uint64_t RailCount::*member;
  };
  constexpr RailFamily kRails[] = {
      {"weft_rail_sent_bytes_total", "Bytes sent over a device.", &RailCount::bytes_sent},
      {"weft_rail_received_bytes_total", "Bytes of large messages received over a device.", &RailCount::bytes_received},
      {"weft_rail_failures_total", "Times that a device went down.", &RailCount::failures},
  };
  const auto rail_labels = [](const RailCount& rail) {
    return fmt::format(",transport={},rail={}", quoted(rail.transport), quoted(rail.name));
  };
  for (const RailFamily& family : kRails) {
    if (counters.rails.empty()) break;
    out.family(family.name, "counter", family.help);
    for (const RailCount& rail : counters.rails) out.sample(rail.*family.member, rail_labels(rail));
  }
  if (!counters.rails.empty()) {
    out.family("weft_rail_connections", "gauge", "Connections to peers over a device.");
    for (const RailCount& rail : counters.rails) out.sample(rail.connections, rail_labels(rail));
    out.family("weft_rail_up", "gauge", "Whether a device is usable.");
    for (const RailCount& rail : counters.rails) out.sample(rail.up ? 1 : 0, rail_labels(rail));
  }

  uint32_t last = 0;
  bool any = false;
  for (const OpSnapshot& op : recorder) {
    if ((op.sequence & FlightRecorder::kPointToPoint) != 0) continue;
    last = std::max(last, op.sequence);
    any = true;
  }
  if (any) {
    out.family("weft_last_sequence", "gauge", "Sequence number of the newest collective operation.");
    out.sample(last);
  }
  return out.take();
}

}  // namespace weft
