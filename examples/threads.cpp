// Ranks as threads of one process: no launcher, no sockets. Also a split into two halves.
//   ./threads
#include <atomic>
#include <iostream>
#include <thread>
#include <vector>
#include <weft/weft.hpp>

static bool work(weft::Communicator comm) {
  int rank = comm.rank(), size = comm.size();
  std::vector<int> ones(64, 1);
  comm.all_reduce(ones);

  // The upper and the lower half of the ranks, each a communicator of its own.
  weft::Communicator half = comm.split(rank < size / 2 ? 0 : 1, rank);
  std::vector<int> largest{rank};
  half.all_reduce(largest, weftMax);
  return ones[0] == size && largest[0] == (rank < size / 2 ? size / 2 - 1 : size - 1);
}

int main() try {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (weft::Communicator& comm : weft::Communicator::all(4))
    threads.emplace_back([&right, comm = std::move(comm)]() mutable {
      try {
        right += work(std::move(comm));
      } catch (const weft::Error& e) {
        std::cerr << e.what() << "\n";
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::cout << right << " of 4 ranks got the right result\n";
  return right == 4 ? 0 : 1;
} catch (const weft::Error& e) {
  std::cerr << e.what() << "\n";
  return 1;
}
