// Scaling, division, conversion and copying against the serial reference, for every SIMD target.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/stream.hpp"
#include "support.hpp"

namespace weft {
namespace {

class Convert : public EachTarget {};
WEFT_FOR_EACH_TARGET(Convert);

// Every code of the one- and two-byte types, a sample of the others.
Elements sample(weftDataType_t type) {
  std::vector<Bits> values(type_bytes(type) == 1 ? 256 : type_bytes(type) == 2 ? 65536 : 3000);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = type_bytes(type) <= 2 ? i : reference::element(reference::Pattern::kBits, type, weftSum, 3, 0, i);
  }
  return Elements(type, values);
}

TEST_P(Convert, Widen) {
  for (const weftDataType_t type : narrow_types()) {
    const Elements codes = sample(type);
    std::vector<float> out(codes.count());
    widen(out.data(), codes.data(), codes.count(), type);
    for (size_t i = 0; i < out.size(); ++i) {
      const float expected = reference::widen(type, codes.get(i));
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected))
          << reference::show(type, codes.get(i));
    }
  }
}

// Between any two neighbouring codes the float32 in the middle, and the ones just below and above it, for which
// rounding and double rounding show; then random ones and the corners of float32.
std::vector<float> floats_to_narrow(weftDataType_t type) {
  std::vector<float> values;
  const Bits magnitudes = Bits{1} << (8 * type_bytes(type) - 1);
  for (Bits code = 0; code + 1 < magnitudes; ++code) {
    const double low = reference::decode(type, code);
    double high = reference::decode(type, code + 1);
    if (std::isnan(low) || std::isinf(low)) continue;
    // Beyond the largest number: where the next would be.
    if (!std::isfinite(high)) high = 2 * low - reference::decode(type, code - 1);
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float value : {static_cast<float>(low), middle, std::nextafter(middle, 0.0f),
                              std::nextafter(middle, std::numeric_limits<float>::infinity())}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  for (size_t i = 0; i < 20000; ++i) {
    const Bits bits = reference::element(reference::Pattern::kBits, weftFloat32, weftSum, 5, 0, i);
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return values;
}

TEST_P(Convert, Narrow) {
  for (const weftDataType_t type : narrow_types()) {
    const std::vector<float> values = floats_to_narrow(type);
    Elements out(type, values.size());
    narrow(out.data(), values.data(), values.size(), type);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(out.get(i), reference::narrow(type, values[i]))
          << values[i] << " became " << reference::show(type, out.get(i));
    }
  }
}

TEST_P(Convert, Float32IsCopied) {
  const float values[] = {1.5f, -0.0f, 3e-45f};
  float out[3];
  widen(out, values, 3, weftFloat32);
  EXPECT_EQ(std::memcmp(out, values, sizeof(values)), 0);
  narrow(out, values, 3, weftFloat32);
  EXPECT_EQ(std::memcmp(out, values, sizeof(values)), 0);
}

TEST_P(Convert, Scale) {
  for (const weftDataType_t type : all_types()) {
    const Elements codes = sample(type);
    for (size_t i = 0; i < 12; ++i) {
      const auto pattern = i % 2 == 0 ? reference::Pattern::kBits : reference::Pattern::kFinite;
      const Elements scalar(type, std::vector<Bits>{reference::element(pattern, type, weftProd, 9, 0, i)});
      Elements out(codes);
      scale(out.data(), out.data(), scalar.data(), out.count(), type);
      for (size_t j = 0; j < out.count(); j += type_bytes(type) == 2 ? 7 : 1) {
        ASSERT_EQ(out.get(j), reference::scale(type, codes.get(j), scalar.get(0)))
            << reference::show(type, codes.get(j)) << " times " << reference::show(type, scalar.get(0));
      }
    }
  }
}

TEST_P(Convert, Divide) {
  for (const weftDataType_t type : all_types()) {
    const Elements codes = sample(type);
    for (const int divisor : {1, 2, 3, 5, 7, 8, 10, 33, 127, 128, 300, 1024, 99999}) {
      Elements out(codes);
      divide(out.data(), out.data(), divisor, out.count(), type);
      for (size_t j = 0; j < out.count(); j += type_bytes(type) == 2 ? 7 : 1) {
        ASSERT_EQ(out.get(j), reference::divide(type, codes.get(j), divisor))
            << reference::show(type, codes.get(j)) << " divided by " << divisor;
      }
    }
  }
}

TEST_P(Convert, AnyCountAndAlignment) {
  for (const weftDataType_t type : narrow_types()) {
    const size_t bytes = type_bytes(type);
    for (size_t count = 0; count < 150; ++count) {
      std::vector<std::byte> codes(count * bytes + 64), floats(count * 4 + 128, std::byte{0x5a});
      const size_t offset = count % 64;
      reference::fill(reference::Pattern::kFinite, type, weftSum, count, 0, 0, codes.data() + offset, count);
      // float32 at any byte, as in the middle of a packed message.
      widen(reinterpret_cast<float*>(floats.data() + offset), codes.data() + offset, count, type);
      std::vector<std::byte> back(codes.size() + 64, std::byte{0x5a});
      narrow(back.data() + offset, reinterpret_cast<float*>(floats.data() + offset), count, type);
      ASSERT_EQ(std::memcmp(back.data() + offset, codes.data() + offset, count * bytes), 0);
      for (size_t i = 0; i < 64; ++i) {
        ASSERT_EQ(floats[i < offset ? i : i + count * 4], std::byte{0x5a});
        ASSERT_EQ(back[i < offset ? i : i + count * bytes], std::byte{0x5a});
      }
    }
  }
}

TEST_P(Convert, Copy) {
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, kStreamCopyBytes, kStreamCopyBytes + 333}) {
    std::vector<uint8_t> from(bytes + 64), to(bytes + 64, 0x5a);
    std::iota(from.begin(), from.end(), uint8_t{0});
    for (const size_t offset : {0, 1, 40}) {
      std::fill(to.begin(), to.end(), uint8_t{0x5a});
      copy(to.data() + offset, from.data() + 3, bytes);
      ASSERT_TRUE(bytes == 0 || std::memcmp(to.data() + offset, from.data() + 3, bytes) == 0) << bytes;
      for (size_t i = 0; i < 64; ++i) ASSERT_EQ(to[i < offset ? i : i + bytes], 0x5a) << bytes;
    }
  }
  copy(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace weft
