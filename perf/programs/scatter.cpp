#include "common/program.hpp"

using namespace weft::perf;

static const Program kScatter{
    .name = "scatter_perf",
    .reduces = false,
    .rooted = true,
    .in_place = InPlace::kChecked,
    .sizes =
        [](size_t count, size_t element, int ranks) {
          size_t own = share(count, element, ranks);
          return Sizes{own * static_cast<size_t>(ranks), own, own, 0, own};
        },
    .run = [](const Call& c) { return weftScatter(c.send, c.recv, c.count, c.type, c.root, c.comm, c.stream); },
    .expected =
        [](const Place& p) {
          return std::vector<Piece>{{0, p.count, p.root, static_cast<size_t>(p.rank) * p.count}};
        },
    .bus_factor = all_but_own,
};

int main(int argc, char** argv) { return perf_main(kScatter, argc, argv); }
