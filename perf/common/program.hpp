// What one perf program measures. A program is a descriptor and a main of one line; the rest is common.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/options.hpp"
#include "common/pattern.hpp"
#include "weft/weft.h"

namespace weft::perf {

// Elements of one call. The offsets are from the start of the one buffer that an in-place call uses, per rank number:
// rank r sends from send_in_place * r and receives at recv_in_place * r.
struct Sizes {
  size_t send;
  size_t recv;
  size_t param;  // the "count" column, and the count given to the call
  size_t send_in_place;
  size_t recv_in_place;
};

// One call, as a rank makes it.
struct Call {
  const void* send;
  void* recv;
  size_t count;
  size_t element;  // bytes
  weftDataType_t type;
  weftRedOp_t op;
  int root;
  int rank;
  int ranks;
  weftComm_t comm;
  weftStream_t stream;
};

// Where a rank's result comes from: elements [at, at + count) of the receive buffer are [from, from + count) of the
// source, which is a rank's input or kReduced.
struct Piece {
  size_t at;
  size_t count;
  int source;
  size_t from;
};

// Who asks for the expected result, and of which call.
struct Place {
  int rank;
  int ranks;
  int root;
  size_t count;    // Sizes::param
  size_t element;  // bytes
  bool in_place;
};

enum class InPlace {
  kChecked,   // checked and reported
  kNotShown,  // runs and is checked in place, but nccl-tests shows N/A for it
  kNone       // has no in-place form: the second half repeats the first, unchecked
};

struct Program {
  const char* name;
  bool reduces;
  bool rooted;
  InPlace in_place;
  Sizes (*sizes)(size_t count, size_t element, int ranks);
  weftResult_t (*run)(const Call& call);
  std::vector<Piece> (*expected)(const Place& place);
  double (*bus_factor)(int ranks);
  // Bytes that the algorithm bandwidth counts; null: the larger of send and receive.
  size_t (*moved)(size_t bytes, int ranks) = nullptr;
  // Why this program cannot run so, or nothing; null: it always can. Called once, before any sizes().
  std::string (*prepare)(const Options& options, const Environment& environment, int ranks) = nullptr;
};

int perf_main(const Program& program, int argc, char** argv);

// Common shapes of the descriptors.

// Every rank's share of `count` elements, a multiple of 16 bytes.
inline size_t share(size_t count, size_t element, int ranks) {
  return (count / static_cast<size_t>(ranks)) & ~(size_t{16} / element - 1);
}
inline double whole(int) { return 1; }
inline double all_but_own(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

// A rank that is no root gets nothing: out of place its buffer stays as it was (no piece, so the check sees to it); in
// place the buffer is its own input, which stays too.
inline std::vector<Piece> nothing_received(const Place& p, size_t at) {
  if (!p.in_place) return {};
  return {{at, p.count, p.rank, 0}};
}

}  // namespace weft::perf
