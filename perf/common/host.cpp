#include "common/host.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <thread>

namespace weft::perf {
namespace {

// The value of "<key> <blanks or colon> <value>" in one of /proc's tables.
std::string field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    size_t start = line.find_first_not_of(" \t:", key.size());
    if (start != std::string::npos) return line.substr(start);
  }
  return "";
}

uint64_t number_in(const std::string& path, uint64_t absent) {
  std::ifstream file(path);
  uint64_t value;
  return file >> value ? value : absent;
}

uint64_t kilobytes(const char* path, const char* key) {
  std::string text = field(path, key);
  return text.empty() ? 0 : std::stoull(text) * 1024;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  std::string text = name.data();
  return text.substr(0, text.find('.'));
}

std::string cpu_name() {
  std::string model = field("/proc/cpuinfo", "model name");
  return model.empty() ? "CPU" : model;
}

uint64_t memory_available() {
  constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();
  uint64_t available = kilobytes("/proc/meminfo", "MemAvailable");
  if (available == 0) available = kUnknown;
  uint64_t limit = number_in("/sys/fs/cgroup/memory.max", kUnknown);  // "max" is no number: no limit
  uint64_t used = number_in("/sys/fs/cgroup/memory.current", 0);
  return limit == kUnknown ? available : std::min(available, limit - std::min(limit, used));
}

uint64_t resident_bytes() { return kilobytes("/proc/self/status", "VmRSS"); }

}  // namespace weft::perf
