// Which process of a family of forks this is, without a system call.
#pragma once

#include <cstdint>

namespace weft {

// How often the line of processes up to this one has forked since the library was loaded: a value kept from before a
// fork differs in the child.
uint32_t forks();

}  // namespace weft
