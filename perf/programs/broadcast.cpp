#include "common/program.hpp"

using namespace weft::perf;

static const Program kBroadcast{
    .name = "broadcast_perf",
    .reduces = false,
    .rooted = true,
    .in_place = InPlace::kChecked,
    .sizes =
        [](size_t count, size_t, int) {
          return Sizes{count, count, count, 0, 0};
        },
    .run = [](const Call& c) { return weftBroadcast(c.send, c.recv, c.count, c.type, c.root, c.comm, c.stream); },
    .expected =
        [](const Place& p) {
          return std::vector<Piece>{{0, p.count, p.root, 0}};
        },
    .bus_factor = whole,
};

int main(int argc, char** argv) { return perf_main(kBroadcast, argc, argv); }
