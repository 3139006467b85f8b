// Receives that combine at once.
#pragma once

#include "expand/resolve.hpp"

namespace weft {

// Where a receive into scratch is there only to be combined with one other operand, and nothing of the receive's step
// or after it stands in the way of combining at once, the receive becomes a reducing one and the copy goes. So an
// exchange and a combination run as one pass out of place, where `out` is not what is being sent; in place they stay
// two. Messages and the number of steps do not change.
void fuse(Resolved& resolved);

}  // namespace weft
