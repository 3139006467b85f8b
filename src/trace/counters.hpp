// What a communicator has done, as JSON and as Prometheus text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/recorder.hpp"

namespace weft {

struct WireCounters {
  int peer = -1;
  std::string transport;
  uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0, messages_received = 0;
  uint64_t messages_placed = 0;  // of those received, the ones that the sender wrote where they belong
};

struct RailCount {
  std::string transport, name;
  bool up = true;
  uint64_t bytes_sent = 0, bytes_received = 0, failures = 0, connections = 0;
};

struct CommCounters {
  std::string job, label;
  int rank = 0, size = 1;
  uint64_t group = 0;
  uint64_t operations = 0, failures = 0;
  std::vector<WireCounters> wires;
  std::vector<RailCount> rails;
};

// {"job", "label", "rank", "size", "group", "operations", "failures", "wires": [...], "rails": [...], "recorder":
// [...]}
std::string counters_json(const CommCounters& counters, const std::vector<OpSnapshot>& recorder = {});
// Prometheus text exposition format, version 0.0.4: weft_operations_total, weft_operation_failures_total,
// weft_wire_{sent,received}_bytes_total, weft_wire_messages_{sent,received}_total, weft_rail_*, and, for the newest
// operation of the recorder, weft_last_sequence.
std::string counters_prometheus(const CommCounters& counters, const std::vector<OpSnapshot>& recorder = {});

}  // namespace weft
