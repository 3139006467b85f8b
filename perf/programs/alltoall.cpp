#include "common/program.hpp"

using namespace weft::perf;

static const Program kAlltoAll{
    .name = "alltoall_perf",
    .reduces = false,
    .rooted = false,
    .in_place = InPlace::kNotShown,
    .sizes =
        [](size_t count, size_t element, int ranks) {
          size_t own = share(count, element, ranks);
          size_t all = own * static_cast<size_t>(ranks);
          return Sizes{all, all, own, 0, 0};
        },
    .run = [](const Call& c) { return weftAlltoAll(c.send, c.recv, c.count, c.type, c.comm, c.stream); },
    .expected =
        [](const Place& p) {
          std::vector<Piece> pieces;
          for (int j = 0; j < p.ranks; ++j)
            pieces.push_back({static_cast<size_t>(j) * p.count, p.count, j, static_cast<size_t>(p.rank) * p.count});
          return pieces;
        },
    .bus_factor = all_but_own,
};

int main(int argc, char** argv) { return perf_main(kAlltoAll, argc, argv); }
