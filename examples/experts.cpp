// A layer of experts: tokens go to the ranks that have their experts, and what those make of them comes back added up.
//   weft-run -n 4 ./experts
#include <cmath>
#include <iostream>
#include <vector>
#include <weft/weft.hpp>

int main() try {
  weft::Communicator comm = weft::Communicator::from_env();
  const int rank = comm.rank(), ranks = comm.size(), per_rank = 2, topk = 2;
  const std::size_t hidden = 64, tokens = 10;

  // Two experts for each token, one a quarter and one three quarters of its result.
  std::vector<float> input(tokens * hidden), output(tokens * hidden);
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
  for (std::size_t token = 0; token < tokens; ++token) {
    for (std::size_t i = 0; i < hidden; ++i) input[token * hidden + i] = static_cast<float>(rank + 1);
    const int first = static_cast<int>(token) % (ranks * per_rank);
    experts.insert(experts.end(), {first, (first + 1) % (ranks * per_rank)});
    weights.insert(weights.end(), {0.25F, 0.75F});
  }

  weft::Moe<float> moe(comm, ranks * per_rank, topk, hidden, weftFloat32, weftFloat32);
  std::vector<float> rows;
  std::vector<std::size_t> counts;
  moe.dispatch(input, experts, weights, rows, counts);
  for (float& value : rows) value *= 10;  // what each expert here does
  moe.combine(rows, output);

  bool right = true;
  for (const float value : output) right &= std::fabs(value - 10 * static_cast<float>(rank + 1)) < 1e-3F;
  std::cout << "rank " << rank << ": " << counts[0] << " and " << counts[1] << " tokens for my experts, "
            << (right ? "all back" : "WRONG") << "\n";
  return right ? 0 : 1;
} catch (const weft::Error& e) {
  std::cerr << e.what() << "\n";
  return 1;
}
