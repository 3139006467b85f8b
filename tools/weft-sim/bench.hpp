// What simulations cost on this machine.
#pragma once

namespace weft {

// Prints a table, a row for each simulation, each in a process of its own so that its peak memory is its own.
int bench(bool quick);

}  // namespace weft
