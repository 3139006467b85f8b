// A ring between two ends in one thread, so that what is rare between two ranks happens for certain.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "memory/regions.hpp"
#include "transports/ring_wire.hpp"

namespace weft {
namespace {

constexpr size_t kRing = 64 << 10;

class End final : public RingWire {
 public:
  End(int peer, std::byte* tx, std::byte* rx) : RingWire(peer) { attach(tx, rx, kRing); }
  std::string_view transport() const override { return "test"; }
  void close() override {}
  void may_pull(bool yes) { rings_.rx.header()->can_pull.store(yes ? 1 : 2); }
  int pulls = 0;

 private:
  bool share(const Piece&, ViewPiece*) override { return false; }
  std::byte* map(const ViewPiece&) override { return nullptr; }
  bool pull(const ViewPiece& view, size_t offset, std::byte* to, size_t bytes) override {
    std::memcpy(to, reinterpret_cast<const std::byte*>(view.address) + offset, bytes);
    ++pulls;
    return true;
  }
  void wake_peer() override {}
};

class Ring : public ::testing::Test {
 protected:
  Ring() {
    std::byte* base = memory_.get(2 * ring_memory(kRing));
    a_ = std::make_unique<End>(1, base, base + ring_memory(kRing));
    b_ = std::make_unique<End>(0, base + ring_memory(kRing), base);
  }
  Scratch memory_;
  std::unique_ptr<End> a_, b_;
};

// While a reduction's message is on its way in fragments, the sender learns that its memory can be read. Were the rest
// to follow as a view of the whole, the first fragments would count twice.
TEST_F(Ring, FragmentsStayFragments) {
  std::vector<int> from(100000), to(100000, 5);
  std::iota(from.begin(), from.end(), 0);
  const size_t bytes = from.size() * sizeof(int);
  const Piece source{reinterpret_cast<std::byte*>(from.data()), bytes};
  const Piece target{reinterpret_cast<std::byte*>(to.data()), bytes};
  SendRequest send;
  send.id = {7, 0, 1};
  send.source = {&source, 1, bytes};
  RecvRequest recv;
  recv.id = {7, 0, 1};
  recv.sink = {&target, 1, bytes, &target, reduce_function(weftInt32, weftSum), sizeof(int)};
  a_->send(send);
  ASSERT_FALSE(send.done) << "more than the ring holds";
  b_->may_pull(true);
  b_->recv(recv);
  while (!send.done || !recv.done) {
    const bool sent = a_->progress(), received = b_->progress();
    ASSERT_TRUE(sent || received) << "stuck";
  }
  EXPECT_EQ(b_->pulls, 0);
  for (size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], static_cast<int>(i) + 5) << i;
  // The next one is read in place.
  send.id = recv.id = {8, 0, 1};
  a_->send(send);
  b_->recv(recv);
  while (!send.done || !recv.done) {
    a_->progress();
    b_->progress();
  }
  EXPECT_GT(b_->pulls, 0);
}

}  // namespace
}  // namespace weft
