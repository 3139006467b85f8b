// Reduction kernels: the bits of every SIMD target are those of the serial reference, whatever the values, the
// alignment, the count and the aliasing.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <utility>

#include "kernels/stream.hpp"
#include "support.hpp"

namespace weft {
namespace {

struct Case {
  Elements a, b, expected;
};

using Pairs = std::vector<std::pair<Bits, Bits>>;

Case make_case(weftDataType_t type, weftRedOp_t op, const Pairs& pairs) {
  Case made{{type, pairs.size()}, {type, pairs.size()}, {type, pairs.size()}};
  for (size_t i = 0; i < pairs.size(); ++i) {
    made.a.set(i, pairs[i].first);
    made.b.set(i, pairs[i].second);
    made.expected.set(i, reference::combine(type, op, pairs[i].first, pairs[i].second));
  }
  return made;
}

// The corners of a wide type: both zeros, infinities, extremes, denormals, NaNs with different payloads.
std::vector<Bits> corners(weftDataType_t type) {
  std::vector<Bits> values;
  for (size_t i = 0; values.size() < 48; ++i) {
    values.push_back(reference::element(reference::Pattern::kBits, type, weftSum, 7, 0, i));
  }
  if (kTypes[type].floating) {
    for (const double value : {0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 65504.0, 448.0, 464.0, 1e30, -1e30, 0x1p-24, -0x1p-9}) {
      values.push_back(reference::encode(type, value));
    }
  }
  return values;
}

// All pairs of a one-byte type; every code of a two-byte type with a set of others; random pairs and all pairs of
// corners of wider ones.
Pairs pairs_of(weftDataType_t type) {
  Pairs pairs;
  if (type_bytes(type) == 1) {
    for (Bits a = 0; a < 256; ++a) {
      for (Bits b = 0; b < 256; ++b) pairs.emplace_back(a, b);
    }
    return pairs;
  }
  const std::vector<Bits> others = corners(type);
  if (type_bytes(type) == 2) {
    for (Bits a = 0; a < 65536; ++a) {
      pairs.emplace_back(a, a ^ 0x8000);
      for (size_t i = a % 4; i < others.size(); i += 4) pairs.emplace_back(a, others[i]);
    }
    return pairs;
  }
  for (const Bits a : others) {
    for (const Bits b : others) pairs.emplace_back(a, b);
  }
  for (size_t i = 0; i < 20000; ++i) {
    pairs.emplace_back(reference::element(reference::Pattern::kBits, type, weftSum, 11, 0, i),
                       reference::element(reference::Pattern::kBits, type, weftSum, 11, 1, i));
    pairs.emplace_back(reference::element(reference::Pattern::kFinite, type, weftSum, 11, 0, i),
                       reference::element(reference::Pattern::kFinite, type, weftSum, 11, 1, i));
  }
  return pairs;
}

// The reference's results are computed once for all targets.
const Case& values_case(weftDataType_t type, weftRedOp_t op) {
  static std::map<std::pair<int, int>, Case> cases;
  const auto found = cases.find({type, op});
  if (found != cases.end()) return found->second;
  return cases.emplace(std::pair<int, int>{type, op}, make_case(type, op, pairs_of(type))).first->second;
}

class Reduce : public EachTarget {};
WEFT_FOR_EACH_TARGET(Reduce);

TEST_P(Reduce, EveryValueHasTheReferenceBits) {
  for (const weftDataType_t type : all_types()) {
    for (const weftRedOp_t op : kBaseOps) {
      const Case& data = values_case(type, op);
      Elements out(type, data.a.count());
      const ReduceFn reduce = reduce_function(type, op);
      ASSERT_NE(reduce, nullptr);
      reduce(out.data(), data.a.data(), data.b.data(), data.a.count());
      EXPECT_EQ(out.difference(data.expected), "") << label(type, op);
      reduce(out.data(), data.b.data(), data.a.data(), data.a.count());
      EXPECT_EQ(out.difference(data.expected), "") << label(type, op) << ", operands exchanged";
    }
  }
}

// B48, and in place with either operand: any byte offset of each buffer, and not a byte written beside the result.
TEST_P(Reduce, AnyCountAlignmentAndAliasing) {
  constexpr size_t kPad = 80;
  for (const weftDataType_t type : all_types()) {
    const size_t bytes = type_bytes(type);
    for (const weftRedOp_t op : kBaseOps) {
      const Case& data = values_case(type, op);
      const ReduceFn reduce = reduce_function(type, op);
      const size_t longest = 9 * 64 / bytes + 3;
      for (size_t count = 0; count <= longest; count += count < 70 ? 1 : 13) {
        const size_t shift = count % 64;
        std::vector<std::byte> a(longest * bytes + 2 * kPad, std::byte{0x5a}), b(a), out(a);
        std::byte* const at_a = a.data() + count * 3 % 64;
        std::byte* const at_b = b.data() + count * 5 % 64;
        std::byte* const at_out = out.data() + shift;
        const size_t first = count * 37;  // into the interesting values
        std::memcpy(at_a, data.a.data() + first * bytes, count * bytes);
        std::memcpy(at_b, data.b.data() + first * bytes, count * bytes);
        std::vector<std::byte> expected(out);
        std::memcpy(expected.data() + shift, data.expected.data() + first * bytes, count * bytes);
        reduce(at_out, at_a, at_b, count);
        ASSERT_EQ(out, expected) << label(type, op) << " count " << count;
        expected = a;
        std::memcpy(expected.data() + (at_a - a.data()), data.expected.data() + first * bytes, count * bytes);
        const std::vector<std::byte> kept_b(b);
        std::byte* const in_place = count % 2 == 0 ? at_a : at_b;
        if (in_place == at_b) std::swap_ranges(at_a, at_a + count * bytes, at_b);
        const std::vector<std::byte> other(in_place == at_a ? b : a);
        reduce(in_place, at_a, at_b, count);
        ASSERT_EQ(std::memcmp(in_place, data.expected.data() + first * bytes, count * bytes), 0)
            << label(type, op) << " in place, count " << count;
        ASSERT_EQ(in_place == at_a ? b : a, other);
      }
    }
  }
}

// No byte outside the ranges is read or written: the buffers end, or begin, at a page that cannot be touched.
TEST_P(Reduce, GuardPagesAtBothEnds) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t room = 4 * page;  // guard, two pages, guard
  std::byte* maps[3];
  for (std::byte*& map : maps) {
    void* const mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    map = static_cast<std::byte*>(mapped);
    ASSERT_EQ(mprotect(map, page, PROT_NONE), 0);
    ASSERT_EQ(mprotect(map + 3 * page, page, PROT_NONE), 0);
  }
  for (const weftDataType_t type : all_types()) {
    for (const weftRedOp_t op : kBaseOps) {
      const ReduceFn reduce = reduce_function(type, op);
      for (size_t count = 0; count <= 300 / type_bytes(type) + 2; ++count) {
        const size_t bytes = count * type_bytes(type);
        reduce(maps[0] + page, maps[1] + page, maps[2] + page, count);
        reduce(maps[0] + 3 * page - bytes, maps[1] + 3 * page - bytes, maps[2] + 3 * page - bytes, count);
      }
    }
  }
  for (std::byte* const map : maps) munmap(map, room);
}

// Large enough for non-temporal stores, at an aligned, an element-aligned and an odd address.
TEST_P(Reduce, StreamedResultsAreTheSame) {
  for (const weftDataType_t type : {weftFloat32, weftFloat64, weftBfloat16, weftFloat8e4m3, weftInt8}) {
    const size_t bytes = type_bytes(type);
    const Case& data = values_case(type, weftSum);
    const size_t count = kStreamReduceBytes / bytes + 77;
    std::vector<std::byte> a(count * bytes), b(a), expected(a), out(count * bytes + 64);
    for (size_t i = 0; i < count * bytes; i += data.a.bytes()) {
      const size_t length = std::min(data.a.bytes(), count * bytes - i);
      std::memcpy(a.data() + i, data.a.data(), length);
      std::memcpy(b.data() + i, data.b.data(), length);
      std::memcpy(expected.data() + i, data.expected.data(), length);
    }
    const auto misalignment = reinterpret_cast<uintptr_t>(out.data()) % 64;
    for (const size_t offset : {(64 - misalignment) % 64, bytes, size_t{1}}) {
      std::fill(out.begin(), out.end(), std::byte{0x5a});
      reduce_function(type, weftSum)(out.data() + offset, a.data(), b.data(), count);
      EXPECT_EQ(std::memcmp(out.data() + offset, expected.data(), count * bytes), 0)
          << label(type, weftSum) << " offset " << offset;
      for (size_t i = 0; i < 64; ++i) {
        const size_t at = i < offset ? i : i + count * bytes;
        EXPECT_EQ(out[at], std::byte{0x5a}) << "byte " << at << " beside the result was written";
      }
    }
  }
}

// The variant for tiles of something large streams from 4 KiB on.
TEST_P(Reduce, StreamingVariantHasTheSameBits) {
  for (const weftDataType_t type : all_types()) {
    for (const weftRedOp_t op : kBaseOps) {
      const Case& data = values_case(type, op);
      const ReduceFn reduce = reduce_function(type, op, true);
      for (const size_t count : {size_t{0}, size_t{3}, kStreamTileBytes / type_bytes(type) + 5, data.a.count()}) {
        Elements out(type, count);
        reduce(out.data(), data.a.data(), data.b.data(), count);
        EXPECT_EQ(reference::first_difference(type, out.data(), data.expected.data(), count), "") << label(type, op);
        if (count == data.a.count()) {
          std::memcpy(out.data(), data.a.data(), out.bytes());
          reduce(out.data(), out.data(), data.b.data(), count);
          EXPECT_EQ(out.difference(data.expected), "") << label(type, op) << " in place";
        }
      }
    }
  }
}

TEST(ReduceFunction, AverageAndMadeOpsAreSums) {
  for (const weftDataType_t type : all_types()) {
    EXPECT_EQ(reduce_function(type, weftAvg), reduce_function(type, weftSum));
    EXPECT_EQ(reduce_function(type, static_cast<weftRedOp_t>(weftNumOps + 3)), reduce_function(type, weftSum));
  }
}

TEST(ReduceFunction, UnknownTypeHasNone) { EXPECT_EQ(reduce_function(weftNumTypes, weftSum), nullptr); }

TEST(KernelTarget, IsTheBestAndCanBeChosen) {
  const std::vector<const char*> targets = kernel_targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_STREQ(kernel_target(), targets.front());
  EXPECT_FALSE(set_kernel_target("abacus"));
  EXPECT_STREQ(kernel_target(), targets.front());
  EXPECT_TRUE(set_kernel_target(targets.back()));
  EXPECT_STREQ(kernel_target(), targets.back());
  EXPECT_TRUE(set_kernel_target(""));
  EXPECT_STREQ(kernel_target(), targets.front());
}

// B55: eight ranks, one with 256 and seven with 1. Narrow, each 1 is lost in turn; wide, none is.
TEST(WideAccumulation, KeepsWhatNarrowLoses) {
  const Bits big = reference::encode(weftBfloat16, 256), one = reference::encode(weftBfloat16, 1);
  Elements narrow_sum(weftBfloat16, std::vector<Bits>{big});
  const Elements term(weftBfloat16, std::vector<Bits>{one});
  float wide_sum = 256, wide_term;
  widen(&wide_term, term.data(), 1, weftBfloat16);
  for (int rank = 1; rank < 8; ++rank) {
    reduce_function(weftBfloat16, weftSum)(narrow_sum.data(), narrow_sum.data(), term.data(), 1);
    reduce_function(weftFloat32, weftSum)(&wide_sum, &wide_sum, &wide_term, 1);
  }
  EXPECT_EQ(reference::decode(weftBfloat16, narrow_sum.get(0)), 256);
  Elements rounded(weftBfloat16, 1);
  narrow(rounded.data(), &wide_sum, 1, weftBfloat16);
  EXPECT_EQ(reference::decode(weftBfloat16, rounded.get(0)), 264);
}

}  // namespace
}  // namespace weft
