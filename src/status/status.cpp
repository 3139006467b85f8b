#include "status/status.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <system_error>

namespace weft {

Status system_error(int number, const std::string& what) {
  std::string why = std::generic_category().message(number);
  rlimit limit{};
  if (number == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    why += fmt::format(" (this process may have {} open files; raise that with ulimit -n)", limit.rlim_cur);
  }
  return error(weftSystemError, "{}: {}", what, why);
}

}  // namespace weft
