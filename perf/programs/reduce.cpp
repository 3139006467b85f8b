#include "common/program.hpp"

using namespace weft::perf;

static const Program kReduce{
    .name = "reduce_perf",
    .reduces = true,
    .rooted = true,
    .in_place = InPlace::kChecked,
    .sizes =
        [](size_t count, size_t, int) {
          return Sizes{count, count, count, 0, 0};
        },
    .run = [](const Call& c) { return weftReduce(c.send, c.recv, c.count, c.type, c.op, c.root, c.comm, c.stream); },
    .expected =
        [](const Place& p) {
          if (p.rank != p.root) return nothing_received(p, 0);
          return std::vector<Piece>{{0, p.count, kReduced, 0}};
        },
    .bus_factor = whole,
};

int main(int argc, char** argv) { return perf_main(kReduce, argc, argv); }
