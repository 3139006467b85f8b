// What the perf programs say about the host they run on.
#pragma once

#include <cstdint>
#include <string>

namespace weft::perf {

std::string host_name();  // up to the first dot
std::string cpu_name();
// Bytes that this process could still allocate: the host's MemAvailable, or what its control group leaves if that is
// less.
uint64_t memory_available();
uint64_t resident_bytes();

}  // namespace weft::perf
