#include <fmt/format.h>

#include <cstring>

#include "common/program.hpp"

using namespace weft::perf;

static weftResult_t exchange(const Call& c, const char* send, char* recv, size_t count, int peer) {
  weftResult_t result = weftGroupStart();
  if (result != weftSuccess) return result;
  weftResult_t sent = weftSend(send, count, c.type, peer, c.comm, c.stream);
  weftResult_t received = weftRecv(recv, count, c.type, peer, c.comm, c.stream);
  result = weftGroupEnd();
  return sent != weftSuccess ? sent : received != weftSuccess ? received : result;
}

// An all-gather by doubling: in step k a rank swaps the 2^k blocks it holds with its neighbour across dimension k, so
// the blocks [start, start + 2^k) that a rank holds always start at its number with the low k bits cleared.
static weftResult_t gather_by_doubling(const Call& c) {
  auto* recv = static_cast<char*>(c.recv);
  size_t block = c.count * c.element;
  char* own = recv + static_cast<size_t>(c.rank) * block;
  if (own != c.send && c.stream == nullptr && block > 0) std::memcpy(own, c.send, block);
  if (own != c.send && c.stream != nullptr) {  // in the stream's order
    weftResult_t result = exchange(c, static_cast<const char*>(c.send), own, c.count, c.rank);
    if (result != weftSuccess) return result;
  }
  for (int held = 1; held < c.ranks; held *= 2) {
    int start = c.rank & ~(held - 1);
    weftResult_t result =
        exchange(c, recv + static_cast<size_t>(start) * block, recv + static_cast<size_t>(start ^ held) * block,
                 c.count * static_cast<size_t>(held), c.rank ^ held);
    if (result != weftSuccess) return result;
  }
  return weftSuccess;
}

static const Program kHypercube{
    .name = "hypercube_perf",
    .reduces = false,
    .rooted = false,
    .in_place = InPlace::kChecked,
    .sizes =
        [](size_t count, size_t element, int ranks) {
          size_t own = share(count, element, ranks);
          return Sizes{own, own * static_cast<size_t>(ranks), own, own, 0};
        },
    .run = gather_by_doubling,
    .expected =
        [](const Place& p) {
          std::vector<Piece> pieces;
          for (int j = 0; j < p.ranks; ++j) pieces.push_back({static_cast<size_t>(j) * p.count, p.count, j, 0});
          return pieces;
        },
    .bus_factor = whole,
    .moved = [](size_t bytes,
                int ranks) { return bytes / static_cast<size_t>(ranks) * static_cast<size_t>(ranks - 1); },
    .prepare = [](const Options& options, const Environment&, int ranks) -> std::string {
      if ((ranks & (ranks - 1)) != 0) return fmt::format("a hypercube needs a power of two ranks, not {}", ranks);
      if (options.agg_iters > 1) return "-m: the steps of a hypercube depend on each other and cannot be grouped";
      return "";
    },
};

int main(int argc, char** argv) { return perf_main(kHypercube, argc, argv); }
