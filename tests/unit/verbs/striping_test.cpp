// Who takes the next fragment, and which rails make pairs.
#include "transports/verbs/striping.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "transports/verbs/fabric.hpp"
#include "transports/verbs/notes.hpp"

namespace weft::verbs {
namespace {

TEST(Striping, TheLeastLoaded) {
  using Lanes = std::vector<LaneLoad>;
  EXPECT_EQ(least_loaded(Lanes{}, 100), -1);
  EXPECT_EQ(least_loaded(Lanes{{false, 0}, {true, 99}}, 100), 1);
  EXPECT_EQ(least_loaded(Lanes{{true, 100}, {true, 200}}, 100), -1);
  EXPECT_EQ(least_loaded(Lanes{{true, 50}, {true, 20}, {true, 20}}, 100), 1);
  EXPECT_EQ(least_loaded(Lanes{{true, 50}, {true, 20}, {true, 20}}, 100, 2), 2);
  EXPECT_EQ(least_loaded(Lanes{{true, 0}, {true, 0}}, 100, 7), 1);
}

// A lane of a tenth of the speed gets about a tenth, and paces nobody.
TEST(Striping, ASlowLaneTakesLess) {
  constexpr size_t kFragment = 10, kMost = 4 * kFragment;
  const std::array<double, 2> time = {1, 10};  // of a fragment
  std::array<LaneLoad, 2> lanes{LaneLoad{true, 0}, LaneLoad{true, 0}};
  std::array<double, 2> free_at{};              // when the lane is done with what it has
  std::vector<std::pair<double, size_t>> ends;  // of posted fragments: time, lane
  std::array<int, 2> taken{};
  double now = 0;
  for (int fragment = 0; fragment < 1100; ++fragment) {
    int lane = -1;
    while ((lane = least_loaded(lanes, kMost)) < 0) {
      const auto first = std::min_element(ends.begin(), ends.end());
      now = first->first;
      lanes[first->second].bytes -= kFragment;
      ends.erase(first);
    }
    const auto at = static_cast<size_t>(lane);
    free_at[at] = std::max(free_at[at], now) + time[at];
    ends.emplace_back(free_at[at], at);
    lanes[at].bytes += kFragment;
    ++taken[at];
  }
  EXPECT_NEAR(taken[0], 1000, 20);
  EXPECT_NEAR(taken[1], 100, 20);
}

// What docs/verbs.md says of memory: buffers that all peers of a rail share, and each one's part.
TEST(Buffers, ForEachPeer) {
  const auto bytes = [](uint32_t peers) { return receive_buffers(peers) * kFrameBytes; };
  EXPECT_EQ(bytes(8), 4083072u);
  EXPECT_EQ(bytes(64), 8363712u);
  EXPECT_EQ(bytes(1024), 8363712u);
  EXPECT_EQ(bytes(8) / 8, 510384u);
  EXPECT_EQ(bytes(64) / 64, 130683u);
  EXPECT_EQ(bytes(1024) / 1024, 8167u);
  // They lie in a block of a power of two, which these fill.
  for (const uint32_t peers : {1, 8, 64, 1024}) {
    EXPECT_GT(bytes(peers), std::bit_ceil(bytes(peers)) * 9 / 10) << peers << " peers";
  }
}

RailAddress rail(const char* gid, bool ethernet = true) {
  RailAddress result;
  EXPECT_EQ(::inet_pton(AF_INET6, gid, result.gid.data()), 1);
  result.ethernet = ethernet;
  return result;
}
using Pairs = std::vector<std::pair<int, int>>;

TEST(Pairing, SubnetsFirst) {
  const std::vector<RailAddress> lower = {rail("::ffff:10.0.1.1"), rail("::ffff:10.0.2.1")};
  const std::vector<RailAddress> higher = {rail("::ffff:10.0.2.2"), rail("::ffff:10.0.1.2")};
  EXPECT_EQ(pair_rails(lower, higher), (Pairs{{0, 1}, {1, 0}}));
}

TEST(Pairing, OthersInOrder) {
  const std::vector<RailAddress> lower = {rail("::ffff:10.0.1.1"), rail("::ffff:10.0.2.1"), rail("::ffff:10.0.3.1")};
  const std::vector<RailAddress> higher = {rail("::ffff:10.9.2.2"), rail("::ffff:10.0.2.2")};
  EXPECT_EQ(pair_rails(lower, higher), (Pairs{{0, 0}, {1, 1}}));
  EXPECT_EQ(pair_rails(lower, {}), Pairs{});
}

TEST(Pairing, OnlyOfOneKind) {
  const std::vector<RailAddress> lower = {rail("fe80::1", false), rail("::ffff:10.0.2.1")};
  const std::vector<RailAddress> higher = {rail("::ffff:10.0.7.2"), rail("fe80::2", false)};
  EXPECT_EQ(pair_rails(lower, higher), (Pairs{{0, 1}, {1, 0}}));
}

}  // namespace
}  // namespace weft::verbs
