// Data-parallel training hides communication behind the backward pass: as soon as a bucket of gradients is complete its
// all-reduce starts on a stream, while the next bucket is still being computed.
//   weft-run -n 4 ./gradient_buckets
#include <chrono>
#include <cmath>
#include <iostream>
#include <vector>
#include <weft/weft.hpp>

// Stands for one layer's backward pass.
static void compute(weft::Buffer<float>& bucket, int rank, int step) {
  for (size_t i = 0; i < bucket.size(); ++i)
    bucket[i] =
        static_cast<float>(rank + 1) * (1.0f + std::fmod(static_cast<float>(i), 7.0f)) * static_cast<float>(step);
}

int main() try {
  constexpr size_t kElements = 1 << 16;
  constexpr int kBuckets = 8, kSteps = 3;
  weft::Communicator comm = weft::Communicator::from_env();
  int rank = comm.rank(), size = comm.size();

  // Buckets that processes of one host can read in place.
  std::vector<weft::Buffer<float>> buckets;
  for (int b = 0; b < kBuckets; ++b) buckets.emplace_back(kElements);

  weft::Stream stream;
  bool right = true;
  for (int step = 1; step <= kSteps; ++step) {
    auto start = std::chrono::steady_clock::now();
    for (auto& bucket : buckets) {
      compute(bucket, rank, step);
      comm.all_reduce(bucket, weftAvg, stream);  // returns at once; the bucket is the stream's until it is synchronised
    }
    stream.synchronize();
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;

    float mean_rank = static_cast<float>(size + 1) / 2;
    for (auto& bucket : buckets)
      right = right && std::abs(bucket[8] - mean_rank * 2.0f * static_cast<float>(step)) < 1e-3f;
    if (rank == 0) std::cout << "step " << step << ": " << kBuckets << " buckets in " << took.count() << " ms\n";
  }
  return right ? 0 : 1;
} catch (const weft::Error& e) {
  std::cerr << e.what() << "\n";
  return 1;
}
