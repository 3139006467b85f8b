#include "common/program.hpp"

using namespace weft::perf;

static const Program kAllReduce{
    .name = "all_reduce_perf",
    .reduces = true,
    .rooted = false,
    .in_place = InPlace::kChecked,
    .sizes =
        [](size_t count, size_t, int) {
          return Sizes{count, count, count, 0, 0};
        },
    .run = [](const Call& c) { return weftAllReduce(c.send, c.recv, c.count, c.type, c.op, c.comm, c.stream); },
    .expected =
        [](const Place& p) {
          return std::vector<Piece>{{0, p.count, kReduced, 0}};
        },
    .bus_factor = [](int ranks) { return 2 * all_but_own(ranks); },
};

int main(int argc, char** argv) { return perf_main(kAllReduce, argc, argv); }
