// What the kernel tests share: a fixture that runs each test once per SIMD target, and buffers of elements.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include <string>
#include <vector>

#include "kernels/reduce.hpp"
#include "reference.hpp"

namespace weft {

using reference::Bits;

inline constexpr weftRedOp_t kBaseOps[] = {weftSum, weftProd, weftMax, weftMin};

inline std::vector<weftDataType_t> all_types() {
  std::vector<weftDataType_t> types;
  for (int type = 0; type < weftNumTypes; ++type) types.push_back(static_cast<weftDataType_t>(type));
  return types;
}

inline std::vector<weftDataType_t> narrow_types() {
  return {weftFloat16, weftBfloat16, weftFloat8e4m3, weftFloat8e5m2};
}

class EachTarget : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(set_kernel_target(GetParam()));
    ASSERT_STREQ(kernel_target(), GetParam());
  }
  void TearDown() override { set_kernel_target(""); }
};

#define WEFT_FOR_EACH_TARGET(Suite)                                             \
  INSTANTIATE_TEST_SUITE_P(Kernels, Suite, testing::ValuesIn(kernel_targets()), \
                           [](const auto& info) { return std::string(info.param); })

// Elements of one type as they lie in memory.
class Elements {
 public:
  Elements(weftDataType_t type, size_t count) : type_(type), count_(count), bytes_(count * type_bytes(type)) {}
  Elements(weftDataType_t type, const std::vector<Bits>& values) : Elements(type, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  Bits get(size_t i) const { return reference::load(type_, bytes_.data() + i * type_bytes(type_)); }
  void set(size_t i, Bits bits) { reference::store(type_, bytes_.data() + i * type_bytes(type_), bits); }
  std::byte* data() { return bytes_.data(); }
  const std::byte* data() const { return bytes_.data(); }
  size_t count() const { return count_; }
  size_t bytes() const { return bytes_.size(); }
  std::string difference(const Elements& expected) const {
    return reference::first_difference(type_, data(), expected.data(), count_);
  }

 private:
  weftDataType_t type_;
  size_t count_;
  std::vector<std::byte> bytes_;
};

inline std::string label(weftDataType_t type, weftRedOp_t op) {
  return std::string(kTypes[type].name) + " " + std::string(kOps[op]);
}

}  // namespace weft
