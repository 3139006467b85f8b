// The perf programs' test data: exact under every order of combination, and a check that misses nothing.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "common/pattern.hpp"

namespace weft::perf {
namespace {

TEST(Codec, KnownBits) {
  EXPECT_EQ(encode(weftFloat16, 1.0), 0x3C00u);
  EXPECT_EQ(encode(weftFloat16, -2.0), 0xC000u);
  EXPECT_EQ(encode(weftFloat16, 65504.0), 0x7BFFu);
  EXPECT_EQ(encode(weftFloat16, std::ldexp(1, -24)), 0x0001u);
  EXPECT_EQ(encode(weftFloat16, 2049.0), 0x6800u);  // a tie goes to even
  EXPECT_EQ(encode(weftFloat16, 2051.0), 0x6802u);
  EXPECT_EQ(encode(weftBfloat16, 1.0), 0x3F80u);
  EXPECT_EQ(encode(weftFloat8e4m3, 1.0), 0x38u);
  EXPECT_EQ(encode(weftFloat8e4m3, 448.0), 0x7Eu);
  EXPECT_EQ(encode(weftFloat8e5m2, 1.0), 0x3Cu);
  EXPECT_EQ(encode(weftFloat8e5m2, -0.0), 0x80u);
  for (float x : {1.0f, -3.14159f, 1e-40f, 3e38f}) EXPECT_EQ(encode(weftFloat32, x), std::bit_cast<uint32_t>(x));
  for (double x : {1.0, -3.14159, 4e-310, 1e308}) EXPECT_EQ(encode(weftFloat64, x), std::bit_cast<uint64_t>(x));
}

TEST(Codec, RoundTrips) {
  for (weftDataType_t type : {weftFloat16, weftBfloat16, weftFloat8e4m3, weftFloat8e5m2}) {
    uint64_t end = type == weftFloat8e4m3   ? 0x7F
                   : type == weftFloat8e5m2 ? 0x7C
                   : type == weftFloat16    ? 0x7C00
                                            : 0x7F80;
    for (uint64_t bits = 0; bits < end; ++bits) ASSERT_EQ(encode(type, decode(type, bits)), bits) << type;
  }
}

double rounded(const TypeInfo& type, double value) { return decode(type.type, encode(type.type, value)); }

uint64_t load(const std::vector<unsigned char>& bytes, size_t i, size_t element) {
  uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + i * element, element);
  return bits;
}

// B116: combine the ranks' floats in a random order and grouping, rounding to the type after every step, as a library
// may; the answer must be the expected one to the bit. With rounding anywhere the data would depend on the order.
void check_any_order(const TypeInfo& type, Reduction reduction, int ranks) {
  constexpr size_t kCount = 300;
  Pattern pattern(type, reduction, ranks, 42, kCount);
  std::vector<std::vector<unsigned char>> inputs;
  for (int r = 0; r < ranks; ++r) {
    inputs.emplace_back(kCount * type.bytes);
    pattern.fill(inputs.back().data(), r, 0, kCount);
  }
  std::mt19937 random(7);
  std::vector<unsigned char> result(kCount * type.bytes);
  for (size_t i = 0; i < kCount; ++i) {
    std::vector<double> parts;
    for (int r = 0; r < ranks; ++r) {
      double x = decode(type.type, load(inputs[static_cast<size_t>(r)], i, type.bytes));
      if (reduction == Reduction::kMulSum) x = rounded(type, x * decode(type.type, Pattern::scalar(type, r)));
      parts.push_back(x);
    }
    while (parts.size() > 1) {
      std::swap(parts[random() % parts.size()], parts.back());
      double last = parts.back();
      parts.pop_back();
      double& other = parts[random() % parts.size()];
      other = rounded(type, reduction == Reduction::kProd  ? other * last
                            : reduction == Reduction::kMax ? std::max(other, last)
                            : reduction == Reduction::kMin ? std::min(other, last)
                                                           : other + last);
    }
    double value = reduction == Reduction::kAvg ? parts[0] / ranks : parts[0];
    uint64_t bits = encode(type.type, value);
    std::memcpy(result.data() + i * type.bytes, &bits, type.bytes);
  }
  EXPECT_EQ(pattern.count_wrong(result.data(), kReduced, 0, kCount), 0u)
      << type.name << " " << static_cast<int>(reduction) << " on " << ranks;
}

TEST(Pattern, FloatsAreExactInAnyOrder) {
  for (const TypeInfo& type : kTypes) {
    if (type.type < weftFloat16) continue;
    for (const ReductionInfo& reduction : kReductions)
      for (int ranks : {1, 2, 3, 7, 8, 33, 200}) check_any_order(type, reduction.reduction, ranks);
  }
}

// Averages must not wrap: what is the mean of a sum that has wrapped is nobody's question.
TEST(Pattern, IntegerAveragesDoNotOverflow) {
  for (int ranks : {1, 3, 8, 200}) {
    Pattern pattern(kTypes[0], Reduction::kAvg, ranks, 1, 500);
    std::vector<int> sums(500);
    for (int r = 0; r < ranks; ++r) {
      std::vector<int8_t> input(500);
      pattern.fill(input.data(), r, 0, 500);
      for (size_t i = 0; i < 500; ++i) sums[i] += input[i];
    }
    std::vector<int8_t> mean(500);
    for (size_t i = 0; i < 500; ++i) {
      ASSERT_LE(std::abs(sums[i]), 127);
      mean[i] = static_cast<int8_t>(sums[i] / ranks);
    }
    EXPECT_EQ(pattern.count_wrong(mean.data(), kReduced, 0, 500), 0u);
  }
}

TEST(Pattern, DataIsNotTrivial) {
  for (const TypeInfo& type : kTypes)
    for (const ReductionInfo& reduction : kReductions) {
      Pattern pattern(type, reduction.reduction, 4, 3, 4096);
      std::vector<unsigned char> zeros(4096 * type.bytes);
      EXPECT_GT(pattern.count_wrong(zeros.data(), kReduced, 0, 4096), 1500u) << type.name << " " << reduction.name;
    }
}

// Every flipped bit of a result is seen, and where the data is laid in other pieces it is the same.
TEST(Pattern, EveryBitCounts) {
  const TypeInfo& type = kTypes[7];
  constexpr size_t kCount = 20000;  // several repetitions of the table
  Pattern pattern(type, Reduction::kNone, 2, 9, kCount);
  std::vector<float> data(kCount);
  pattern.fill(data.data(), 1, 0, kCount);
  EXPECT_EQ(pattern.count_wrong(data.data(), 1, 0, kCount), 0u);
  EXPECT_EQ(pattern.count_wrong(data.data() + 5000, 1, 5000, 9999), 0u);
  EXPECT_GT(pattern.count_wrong(data.data(), 0, 0, kCount), kCount - 10);
  for (size_t bit : {size_t{0}, size_t{31}, 32 * kCount / 2 + 17, 32 * kCount - 1}) {
    auto* bytes = reinterpret_cast<unsigned char*>(data.data());
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << (bit % 8)));
    EXPECT_EQ(pattern.count_wrong(data.data(), 1, 0, kCount), 1u);
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << (bit % 8)));
  }
}

// Two chunks in each other's place are wrong nearly everywhere, at any distance a chunk may have.
TEST(Pattern, MisplacedChunksShow) {
  const TypeInfo& type = kTypes[0];
  constexpr size_t kCount = 1 << 20;
  Pattern pattern(type, Reduction::kSum, 3, 5, kCount);
  std::vector<unsigned char> data(kCount);
  pattern.fill(data.data(), 0, 0, kCount);
  for (size_t distance : {size_t{1}, size_t{16}, size_t{4093}, size_t{4096}, size_t{3 * 4093}, size_t{1} << 18}) {
    size_t length = kCount / 4;
    EXPECT_GT(pattern.count_wrong(data.data() + distance, 0, 0, length), length / 2) << distance;
  }
}

TEST(Pattern, UntouchedBytesAreCounted) {
  std::vector<unsigned char> data(1000, kSentinel);
  EXPECT_EQ(count_touched(data.data(), 1000, 4), 0u);
  EXPECT_EQ(count_touched(data.data(), 0, 4), 0u);
  data[999] = 0;
  data[4] = data[5] = 1;
  EXPECT_EQ(count_touched(data.data(), 1000, 4), 2u);
}

}  // namespace
}  // namespace weft::perf
