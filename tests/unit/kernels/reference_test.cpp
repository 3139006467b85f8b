// The reference itself, against values written down by hand and properties of its patterns.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "support.hpp"

namespace weft::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(Reference, EncodesByHand) {
  struct Example {
    weftDataType_t type;
    double value;
    Bits bits;
  };
  const Example examples[] = {
      {weftFloat16, 1, 0x3c00},
      {weftFloat16, -2, 0xc000},
      {weftFloat16, 65504, 0x7bff},
      {weftFloat16, 65519, 0x7bff},
      {weftFloat16, 65520, 0x7c00},
      {weftFloat16, 0x1p-24, 0x0001},
      {weftFloat16, 0x1p-25, 0x0000},
      {weftFloat16, 0x1.8p-25, 0x0001},
      {weftFloat16, 0x1p-14, 0x0400},
      {weftFloat16, 2049, 0x6800},
      {weftFloat16, 2051, 0x6802},
      {weftFloat16, kNaN, 0x7e00},
      {weftBfloat16, 1, 0x3f80},
      {weftBfloat16, 257, 0x4380},
      {weftBfloat16, 259, 0x4382},
      {weftBfloat16, -kInfinity, 0xff80},
      {weftBfloat16, kNaN, 0x7fc0},
      {weftBfloat16, 0x1p-133, 0x0001},
      {weftFloat8e4m3, 1, 0x38},
      {weftFloat8e4m3, 448, 0x7e},
      {weftFloat8e4m3, 464, 0x7e},
      {weftFloat8e4m3, 464.5, 0x7f},
      {weftFloat8e4m3, -1000, 0x7f},
      {weftFloat8e4m3, kInfinity, 0x7f},
      {weftFloat8e4m3, 0x1p-9, 0x01},
      {weftFloat8e4m3, 0x1p-10, 0x00},
      {weftFloat8e4m3, -0x1p-6, 0x88},
      {weftFloat8e4m3, 17, 0x58},
      {weftFloat8e4m3, 19, 0x5a},
      {weftFloat8e4m3, -0.0, 0x80},
      {weftFloat8e5m2, 1, 0x3c},
      {weftFloat8e5m2, 57344, 0x7b},
      {weftFloat8e5m2, 61439, 0x7b},
      {weftFloat8e5m2, 61440, 0x7c},
      {weftFloat8e5m2, -kInfinity, 0xfc},
      {weftFloat8e5m2, kNaN, 0x7e},
      {weftFloat8e5m2, 0x1p-16, 0x01},
      {weftFloat8e5m2, 9, 0x48},
      {weftFloat8e5m2, 11, 0x4a},
      {weftFloat32, 1, 0x3f800000},
      {weftFloat32, 0x1p-149, 1},
      {weftFloat32, kNaN, 0x7fc00000},
      {weftFloat64, -1, 0xbff0000000000000},
      {weftFloat64, 0x1p-1074, 1},
      {weftFloat64, kNaN, 0x7ff8000000000000},
      {weftInt8, -3, 0xfd},
      {weftInt32, -1, 0xffffffff},
      {weftUint8, 255, 0xff},
  };
  for (const Example& example : examples) {
    EXPECT_EQ(encode(example.type, example.value), example.bits)
        << example.value << " became " << show(example.type, encode(example.type, example.value));
  }
}

TEST(Reference, CodesOfNarrowTypesSurviveDecoding) {
  for (const weftDataType_t type : narrow_types()) {
    for (Bits code = 0; code < Bits{1} << (8 * type_bytes(type)); ++code) {
      const Bits expected = is_nan(type, code) ? canonical_nan(type) : code;
      ASSERT_EQ(encode(type, decode(type, code)), expected);
      ASSERT_EQ(narrow(type, widen(type, code)), expected);
    }
  }
}

TEST(Reference, OrdersZerosAndKeepsNaN) {
  for (const weftDataType_t type : all_types()) {
    if (!kTypes[type].floating) continue;
    const Bits plus = encode(type, 0.0), minus = encode(type, -0.0), one = encode(type, 1), nan = canonical_nan(type);
    EXPECT_EQ(combine(type, weftMax, plus, minus), plus);
    EXPECT_EQ(combine(type, weftMax, minus, plus), plus);
    EXPECT_EQ(combine(type, weftMin, plus, minus), minus);
    EXPECT_EQ(combine(type, weftMin, minus, plus), minus);
    EXPECT_EQ(combine(type, weftMax, minus, minus), minus);
    for (const weftRedOp_t op : kBaseOps) {
      // 0xff.. is a NaN of every type.
      const Bits all_ones = type_bytes(type) == 8 ? ~Bits{0} : (Bits{1} << (8 * type_bytes(type))) - 1;
      EXPECT_EQ(combine(type, op, one, all_ones), nan);
      EXPECT_EQ(combine(type, op, all_ones, one), nan);
    }
  }
}

TEST(Reference, IntegersWrapAndTruncate) {
  EXPECT_EQ(combine(weftInt8, weftSum, 0x7f, 1), 0x80u);
  EXPECT_EQ(combine(weftInt64, weftProd, Bits{1} << 63, 2), 0u);
  EXPECT_EQ(combine(weftInt32, weftMax, 0xffffffff, 1), 1u);
  EXPECT_EQ(combine(weftUint32, weftMax, 0xffffffff, 1), 0xffffffffu);
  EXPECT_EQ(divide(weftInt8, encode(weftInt8, -7), 2), encode(weftInt8, -3));
  EXPECT_EQ(divide(weftUint64, ~Bits{0}, 2), ~Bits{0} >> 1);
}

// B55 in the reference: one rounding per hop loses every 1, wide loses none.
TEST(Reference, FoldsNarrowAndWide) {
  std::vector<Bits> inputs(8, encode(weftBfloat16, 1));
  inputs[0] = encode(weftBfloat16, 256);
  EXPECT_EQ(fold(weftBfloat16, weftSum, inputs), encode(weftBfloat16, 256));
  EXPECT_EQ(fold(weftBfloat16, weftSum, inputs, true), encode(weftBfloat16, 264));
  EXPECT_EQ(fold(weftBfloat16, weftAvg, inputs, true), encode(weftBfloat16, 33));
  const std::vector<Bits> scalars(8, encode(weftBfloat16, 2));
  EXPECT_EQ(fold(weftBfloat16, weftSum, inputs, true, scalars), encode(weftBfloat16, 528));
}

// Any order and any association gives the same bits.
TEST(Reference, ExactPatternDoesNotDependOnTheOrder) {
  for (const weftDataType_t type : all_types()) {
    for (const weftRedOp_t op : {weftSum, weftProd, weftAvg}) {
      for (const size_t ranks : {2, 5, 33, 64}) {
        for (size_t index = 0; index < 40; ++index) {
          std::vector<Bits> inputs, scalars;
          for (size_t rank = 0; rank < ranks; ++rank) {
            inputs.push_back(element(Pattern::kExact, type, op, 1, static_cast<int>(rank), index));
            scalars.push_back(exact_scalar(type, static_cast<int>(rank)));
          }
          const Bits forward = fold(type, op, inputs);
          const Bits scaled = fold(type, weftSum, inputs, false, scalars);
          ASSERT_EQ(forward, fold(type, op, inputs, true)) << label(type, op);
          ASSERT_FALSE(is_nan(type, forward));
          std::vector<Bits> tree(inputs);
          for (size_t width = 1; width < ranks; width *= 2) {
            for (size_t i = 0; i + width < ranks; i += 2 * width) tree[i] = combine(type, op, tree[i + width], tree[i]);
          }
          const Bits result = op == weftAvg ? divide(type, tree[0], static_cast<int>(ranks)) : tree[0];
          ASSERT_EQ(forward, result) << label(type, op) << ", " << ranks << " ranks, index " << index;
          std::reverse(inputs.begin(), inputs.end());
          std::reverse(scalars.begin(), scalars.end());
          ASSERT_EQ(forward, fold(type, op, inputs)) << label(type, op) << ", " << ranks << " ranks, index " << index;
          if (op == weftProd) continue;  // a pre-multiplied op is a sum
          ASSERT_EQ(scaled, fold(type, weftSum, inputs, false, scalars)) << label(type, op);
        }
      }
    }
  }
}

// A test that forgets a rank or takes it twice must see it.
TEST(Reference, PatternsDifferByRankAndIndex) {
  for (const Pattern pattern : {Pattern::kBits, Pattern::kFinite, Pattern::kExact}) {
    for (const weftDataType_t type : all_types()) {
      size_t by_rank = 0, by_index = 0;
      for (size_t i = 0; i < 64; ++i) {
        const Bits here = element(pattern, type, weftSum, 1, 0, i);
        by_rank += here != element(pattern, type, weftSum, 1, 1, i);
        by_index += here != element(pattern, type, weftSum, 1, 0, i + 1);
      }
      EXPECT_GE(by_rank, 8u) << kTypes[type].name;
      EXPECT_GE(by_index, 8u) << kTypes[type].name;
    }
  }
}

TEST(Reference, BitsPatternHoldsSpecialValues) {
  for (const weftDataType_t type : {weftFloat16, weftFloat32, weftFloat64, weftFloat8e4m3}) {
    std::vector<Bits> nans;
    size_t zeros = 0, negative_zeros = 0;
    for (size_t i = 0; i < 3000; ++i) {
      const Bits bits = element(Pattern::kBits, type, weftSum, 1, 0, i);
      if (is_nan(type, bits)) nans.push_back(bits);
      const double value = decode(type, bits);
      if (value == 0) ++(std::signbit(value) ? negative_zeros : zeros);
    }
    std::sort(nans.begin(), nans.end());
    nans.erase(std::unique(nans.begin(), nans.end()), nans.end());
    EXPECT_GE(nans.size(), 2u) << kTypes[type].name;
    EXPECT_GE(zeros, 10u);
    EXPECT_GE(negative_zeros, 10u);
  }
}

TEST(Reference, DifferencesAreNamed) {
  const std::array<float, 3> is = {1, 2, 3}, should_be = {1, 5, 4};
  EXPECT_EQ(first_difference(weftFloat32, is.data(), is.data(), 3), "");
  EXPECT_EQ(first_difference(weftFloat32, is.data(), should_be.data(), 3),
            "element 1 of 3: float 0x40000000 (2) instead of float 0x40a00000 (5), 2 differ");
}

}  // namespace
}  // namespace weft::reference
