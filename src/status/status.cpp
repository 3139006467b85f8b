#include "status/status.hpp"

#include <system_error>

namespace weft {

Status system_error(int number, const std::string& what) {
  return error(weftSystemError, "{}: {}", what, std::generic_category().message(number));
}

}  // namespace weft
