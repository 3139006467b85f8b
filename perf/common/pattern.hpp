// Test data that any correct library must reduce to the same bits, and the check of it.
//
// Every input is chosen so that every partial result, in whatever order and grouping the ranks are combined, is exactly
// representable in the data type: rounding never enters, so one wrong bit is a wrong answer and a right answer is never
// called wrong, for any number of elements. Nothing here uses the library's kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/types.hpp"

namespace weft::perf {

// Stands for "the reduction over all ranks" where a rank's number stands for that rank's input.
inline constexpr int kReduced = -1;

class Pattern {
 public:
  // limit: no element index at or above it will be asked for. A new seed gives new data, so that a result left over
  // from the previous call is wrong.
  Pattern(const TypeInfo& type, Reduction reduction, int ranks, uint64_t seed, size_t limit);

  // Elements [from, from + count) of rank's input.
  void fill(void* to, int rank, size_t from, size_t count);
  // How many of the elements at `data` differ from [from, from + count) of the source: a rank's input, or kReduced.
  size_t count_wrong(const void* data, int source, size_t from, size_t count);

  // The scalar that `rank` multiplies its input with under mulsum, as one element of the type.
  static uint64_t scalar(const TypeInfo& type, int rank);

 private:
  const std::vector<unsigned char>& table(int source);
  template <typename Visit>
  void each_run(size_t from, size_t count, Visit visit) const;
  uint64_t input_bits(int rank, size_t j) const;
  uint64_t reduced_bits(size_t j) const;
  uint64_t reduce_integers(size_t j) const;
  uint64_t reduce_floats(size_t j) const;
  int64_t small_integer(int rank, size_t j, int64_t bound) const;
  double float_input(int rank, size_t j) const;

  TypeInfo type_;
  Reduction reduction_;
  int ranks_;
  uint64_t seed_;
  size_t period_;
  size_t length_;  // elements of a table: the period, or as many as are ever asked for
  std::map<int, std::vector<unsigned char>> tables_;
};

// A buffer's content before a call; bytes that a call must not touch are compared with it.
inline constexpr unsigned char kSentinel = 0xA5;
size_t count_touched(const void* data, size_t bytes, size_t element);

// One value of a floating type of at most 64 bits to and from its bits, round to nearest even. Exposed for tests.
uint64_t encode(weftDataType_t type, double value);
double decode(weftDataType_t type, uint64_t bits);

}  // namespace weft::perf
