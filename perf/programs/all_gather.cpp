#include "common/program.hpp"

using namespace weft::perf;

static const Program kAllGather{
    .name = "all_gather_perf",
    .reduces = false,
    .rooted = false,
    .in_place = InPlace::kChecked,
    .sizes =
        [](size_t count, size_t element, int ranks) {
          size_t own = share(count, element, ranks);
          return Sizes{own, own * static_cast<size_t>(ranks), own, own, 0};
        },
    .run = [](const Call& c) { return weftAllGather(c.send, c.recv, c.count, c.type, c.comm, c.stream); },
    .expected =
        [](const Place& p) {
          std::vector<Piece> pieces;
          for (int j = 0; j < p.ranks; ++j) pieces.push_back({static_cast<size_t>(j) * p.count, p.count, j, 0});
          return pieces;
        },
    .bus_factor = all_but_own,
};

int main(int argc, char** argv) { return perf_main(kAllGather, argc, argv); }
