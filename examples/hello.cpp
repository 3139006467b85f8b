// The C++ interface in one sitting: ranges in, exceptions out.
//   weft-run -n 4 ./hello
#include <iostream>
#include <numeric>
#include <vector>
#include <weft/weft.hpp>

int main() try {
  weft::Communicator comm = weft::Communicator::from_env();
  int rank = comm.rank(), size = comm.size();

  // The mean of everyone's vector, in place.
  std::vector<double> weights(1000, rank);
  comm.all_reduce(weights, weftAvg);

  // Everyone's number, in order.
  std::vector<int> mine{rank * rank}, all(size);
  comm.all_gather(mine, all);

  // Round the ring; sends and receives of a group go on together.
  std::vector<int> to_next{rank}, from_previous(1);
  weft::Group group;
  comm.send(to_next, (rank + 1) % size);
  comm.recv(from_previous, (rank + size - 1) % size);
  group.end();

  if (rank == 0)
    std::cout << size << " ranks, mean " << weights[0] << ", squares add up to "
              << std::accumulate(all.begin(), all.end(), 0) << ", my left neighbour is " << from_previous[0] << "\n";
  return weights[0] == (size - 1) / 2.0 && from_previous[0] == (rank + size - 1) % size ? 0 : 1;
} catch (const weft::Error& e) {
  std::cerr << e.what() << "\n";
  return 1;
}
