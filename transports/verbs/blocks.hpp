// Memory of our own that every rail may reach: buffers of frames, and places where messages land that cannot land where
// they belong. Kept for the next time.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <memory>
#include <vector>

#include "status/status.hpp"
#include "transports/verbs/frame.hpp"

namespace weft::verbs {

struct Block {
  std::byte* base = nullptr;
  size_t bytes = 0;
  std::array<ibv_mr*, kMostRails> regions{};  // by rail; null where that is down
};

class Blocks {
 public:
  Blocks() = default;
  ~Blocks();
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  // At least `bytes`. Registered with all rails that there are.
  Result<Block*> take(size_t bytes);
  void give(Block* block);

  // A rail comes, with its protection domain, or goes.
  Status add_rail(int rail, ibv_pd* domain, bool relaxed);
  void remove_rail(int rail);

 private:
  Status enroll(Block& block, int rail);
  static size_t class_of(size_t bytes);

  static constexpr size_t kLeast = 64 << 10;
  static constexpr size_t kKept = 64 << 20;  // free bytes that are kept
  std::array<ibv_pd*, kMostRails> domains_{};
  bool relaxed_ = false;
  std::vector<std::unique_ptr<Block>> all_;
  std::array<std::vector<Block*>, 40> free_;  // by power of two
  size_t free_bytes_ = 0;
};

// Buffers of one frame each, cut from blocks.
struct FrameBuffer {
  std::byte* data = nullptr;
  Block* block = nullptr;
};

class FrameBuffers {
 public:
  explicit FrameBuffers(Blocks& blocks) : blocks_(blocks) {}
  Result<FrameBuffer> take();
  void give(FrameBuffer buffer) { free_.push_back(buffer); }

 private:
  Blocks& blocks_;
  std::vector<FrameBuffer> free_;
};

}  // namespace weft::verbs
