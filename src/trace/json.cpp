#include "trace/json.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "trace/counters.hpp"
#include "trace/recorder.hpp"

namespace weft {
namespace {

const char* kind_name(TraceKind kind) {
  constexpr const char* kNames[] = {"operation", "send", "recv", "copy", "wait"};
  return kNames[size_t(kind)];
}

// Labels and names are the user's bytes and need not be UTF-8.
std::string text_of(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::json list_of(const std::vector<OpSnapshot>& ops) {
  auto list = nlohmann::json::array();
  for (const OpSnapshot& op : ops) {
    list.push_back({{"sequence", op.sequence & ~FlightRecorder::kPointToPoint},
                    {"point_to_point", (op.sequence & FlightRecorder::kPointToPoint) != 0},
                    {"collective", op.collective},
                    {"type", op.type},
                    {"op", op.op},
                    {"root", op.root},
                    {"count", op.count},
                    {"bytes", op.bytes},
                    {"algorithm", op.algorithm},
                    {"transport", op.transport},
                    {"state", name_of(op.state)},
                    {"start_ns", op.start_ns},
                    {"end_ns", op.end_ns},
                    {"waiting_for", op.waiting_for}});
  }
  return list;
}

}  // namespace

std::string snapshots_json(const std::vector<OpSnapshot>& ops) { return text_of(list_of(ops)); }

std::string counters_json(const CommCounters& counters, const std::vector<OpSnapshot>& recorder) {
  auto wires = nlohmann::json::array();
  for (const WireCounters& wire : counters.wires) {
    wires.push_back({{"peer", wire.peer},
                     {"transport", wire.transport},
                     {"bytes_sent", wire.bytes_sent},
                     {"bytes_received", wire.bytes_received},
                     {"messages_sent", wire.messages_sent},
                     {"messages_received", wire.messages_received},
                     {"messages_placed", wire.messages_placed}});
  }
  auto rails = nlohmann::json::array();
  for (const RailCount& rail : counters.rails) {
    rails.push_back({{"transport", rail.transport},
                     {"name", rail.name},
                     {"up", rail.up},
                     {"bytes_sent", rail.bytes_sent},
                     {"bytes_received", rail.bytes_received},
                     {"failures", rail.failures},
                     {"connections", rail.connections}});
  }
  const nlohmann::json all = {{"job", counters.job},
                              {"label", counters.label},
                              {"rank", counters.rank},
                              {"size", counters.size},
                              {"group", fmt::format("{:016x}", counters.group)},
                              {"operations", counters.operations},
                              {"failures", counters.failures},
                              {"wires", std::move(wires)},
                              {"rails", std::move(rails)},
                              {"recorder", list_of(recorder)}};
  return text_of(all);
}

std::string trace_header_json(uint64_t dropped) {
  return text_of({{"dropped_events", dropped}, {"clock", "CLOCK_MONOTONIC"}});
}

std::string trace_event_json(const TraceEvent& event, int row, const TickScale& scale) {
  const uint64_t begin = scale.ns(event.begin), end = std::max(begin, scale.ns(event.end));
  nlohmann::json args = {
      {"sequence", event.sequence}, {"bytes", event.bytes}, {"group", fmt::format("{:016x}", event.group)}};
  if (event.kind != TraceKind::operation) {
    args["tile"] = event.tile;
    args["step"] = event.step;
    args["peer"] = event.peer;
  }
  return text_of({{"ph", "X"},
                  {"name", event.name != nullptr ? event.name : kind_name(event.kind)},
                  {"cat", kind_name(event.kind)},
                  {"pid", event.rank},
                  {"tid", row},
                  {"ts", double(begin) / 1e3},
                  {"dur", double(end - begin) / 1e3},
                  {"args", std::move(args)}});
}

std::string trace_metadata_json(const char* what, int rank, int row, const std::string& name) {
  return text_of({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}});
}

}  // namespace weft
