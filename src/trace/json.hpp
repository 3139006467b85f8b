// Parts of a Perfetto file. What records is compiled without JSON, which takes longer than all the rest.
#pragma once

#include <cstdint>
#include <string>

#include "trace/ticks.hpp"
#include "trace/trace.hpp"

namespace weft {

// What stands beside the events, an event, and the name of a row (row 0: of the "process", which is a rank).
std::string trace_header_json(uint64_t dropped);
std::string trace_event_json(const TraceEvent& event, int row, const TickScale& scale);
std::string trace_metadata_json(const char* what, int rank, int row, const std::string& name);

}  // namespace weft
