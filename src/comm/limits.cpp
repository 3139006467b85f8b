#include "comm/limits.hpp"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>

#include "log/log.hpp"

namespace weft {
namespace {

constexpr size_t kOthers = 32;    // of a communicator: listeners, poll sets, bells, and some air
constexpr rlim_t kPlenty = 4096;  // once it is raised at all

size_t open_descriptors() {
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return 256;
  size_t count = 0;
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

}  // namespace

void raise_descriptor_limit(const Config& config, size_t size, size_t communicators) {
  const size_t per_peer = 1 + std::max<size_t>(2, static_cast<size_t>(config.tcp_streams));
  const rlim_t needed = open_descriptors() + communicators * (kOthers + per_peer * size);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed || limit.rlim_cur >= limit.rlim_max) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(limit.rlim_max, std::max(needed, kPlenty));
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  log(LogLevel::info, "raised the limit of open files from {} to {}", before, limit.rlim_cur);
}

}  // namespace weft
