#include "transports/verbs/blocks.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "transports/verbs/device.hpp"

namespace weft::verbs {

Blocks::~Blocks() {
  for (int rail = 0; rail < kMostRails; ++rail) remove_rail(rail);
  for (auto& block : all_) ::munmap(block->base, block->bytes);
}

size_t Blocks::class_of(size_t bytes) { return static_cast<size_t>(std::bit_width(std::max(bytes, kLeast) - 1)); }

Result<Block*> Blocks::take(size_t bytes) {
  auto& free = free_[class_of(bytes)];
  if (!free.empty()) {
    Block* block = free.back();
    free.pop_back();
    free_bytes_ -= block->bytes;
    return block;
  }
  auto block = std::make_unique<Block>();
  block->bytes = size_t{1} << class_of(bytes);
  void* base = ::mmap(nullptr, block->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return system_error(errno, fmt::format("{} bytes of memory", block->bytes));
  block->base = static_cast<std::byte*>(base);
  for (int rail = 0; rail < kMostRails; ++rail) {
    if (const Status enrolled = enroll(*block, rail); !enrolled.ok()) {
      for (ibv_mr* region : block->regions) {
        if (region != nullptr) ::ibv_dereg_mr(region);
      }
      ::munmap(base, block->bytes);
      return enrolled;
    }
  }
  all_.push_back(std::move(block));
  return all_.back().get();
}

void Blocks::give(Block* block) {
  if (free_bytes_ + block->bytes <= kKept) {
    free_bytes_ += block->bytes;
    free_[class_of(block->bytes)].push_back(block);
    return;
  }
  for (ibv_mr* region : block->regions) {
    if (region != nullptr) ::ibv_dereg_mr(region);
  }
  ::munmap(block->base, block->bytes);
  std::erase_if(all_, [block](const auto& other) { return other.get() == block; });
}

Status Blocks::enroll(Block& block, int rail) {
  ibv_pd* domain = domains_[static_cast<size_t>(rail)];
  if (domain == nullptr) return {};
  Result<ibv_mr*> region = register_memory(domain, block.base, block.bytes, relaxed_);
  if (!region.ok()) return region.status();
  block.regions[static_cast<size_t>(rail)] = *region;
  return {};
}

Status Blocks::add_rail(int rail, ibv_pd* domain, bool relaxed) {
  domains_[static_cast<size_t>(rail)] = domain;
  relaxed_ = relaxed;
  for (auto& block : all_) {
    if (const Status enrolled = enroll(*block, rail); !enrolled.ok()) {
      remove_rail(rail);
      return enrolled;
    }
  }
  return {};
}

void Blocks::remove_rail(int rail) {
  domains_[static_cast<size_t>(rail)] = nullptr;
  for (auto& block : all_) {
    ibv_mr*& region = block->regions[static_cast<size_t>(rail)];
    if (region != nullptr) ::ibv_dereg_mr(region);
    region = nullptr;
  }
}

Result<FrameBuffer> FrameBuffers::take() {
  if (free_.empty()) {
    constexpr size_t kAtOnce = 31;  // of 8 KiB and a header: what a block of 256 KiB holds
    Result<Block*> block = blocks_.take(kAtOnce * kFrameBytes);
    if (!block.ok()) return block.status();
    for (size_t i = 0; i < kAtOnce; ++i) free_.push_back({(*block)->base + i * kFrameBytes, *block});
  }
  const FrameBuffer buffer = free_.back();
  free_.pop_back();
  return buffer;
}

}  // namespace weft::verbs
