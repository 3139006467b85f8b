// What a process may have, as far as communicators need more of it than the usual limits give.
#pragma once

#include <cstddef>

#include "config/config.hpp"

namespace weft {

// Raises the soft limit of open files towards the hard one, where `communicators` of `size` ranks each would come close
// to it with a wire to every peer. Too low a hard limit is found out when a descriptor is missing.
void raise_descriptor_limit(const Config& config, size_t size, size_t communicators = 1);

}  // namespace weft
