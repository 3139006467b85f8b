#include "common/program.hpp"

using namespace weft::perf;

// Every rank sends to the next and receives from the one before.
static weftResult_t shift(const Call& c) {
  weftResult_t result = weftGroupStart();
  if (result != weftSuccess) return result;
  weftResult_t sent = weftSend(c.send, c.count, c.type, (c.rank + 1) % c.ranks, c.comm, c.stream);
  weftResult_t received = weftRecv(c.recv, c.count, c.type, (c.rank - 1 + c.ranks) % c.ranks, c.comm, c.stream);
  result = weftGroupEnd();
  return sent != weftSuccess ? sent : received != weftSuccess ? received : result;
}

static const Program kSendRecv{
    .name = "sendrecv_perf",
    .reduces = false,
    .rooted = false,
    .in_place = InPlace::kNone,
    .sizes =
        [](size_t count, size_t, int) {
          return Sizes{count, count, count, 0, 0};
        },
    .run = shift,
    .expected =
        [](const Place& p) {
          return std::vector<Piece>{{0, p.count, (p.rank - 1 + p.ranks) % p.ranks, 0}};
        },
    .bus_factor = whole,
};

int main(int argc, char** argv) { return perf_main(kSendRecv, argc, argv); }
