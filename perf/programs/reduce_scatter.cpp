#include "common/program.hpp"

using namespace weft::perf;

static const Program kReduceScatter{
    .name = "reduce_scatter_perf",
    .reduces = true,
    .rooted = false,
    .in_place = InPlace::kChecked,
    .sizes =
        [](size_t count, size_t element, int ranks) {
          size_t own = share(count, element, ranks);
          return Sizes{own * static_cast<size_t>(ranks), own, own, 0, own};
        },
    .run = [](const Call& c) { return weftReduceScatter(c.send, c.recv, c.count, c.type, c.op, c.comm, c.stream); },
    .expected =
        [](const Place& p) {
          return std::vector<Piece>{{0, p.count, kReduced, static_cast<size_t>(p.rank) * p.count}};
        },
    .bus_factor = all_but_own,
};

int main(int argc, char** argv) { return perf_main(kReduceScatter, argc, argv); }
