// Memory that other processes of the host can map: what weftMemAlloc hands out. Each region is a memfd, so nothing is
// left behind when a process is killed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "status/fd.hpp"
#include "status/status.hpp"

namespace weft {

struct SharedRegion {
  uint32_t id = 0;  // never 0, never used again in this process
  std::byte* base = nullptr;
  size_t bytes = 0;
  Fd fd;

  SharedRegion() = default;
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;
  ~SharedRegion();
};

Result<void*> allocate_region(size_t bytes);
// weftInvalidArgument when pointer did not come from allocate_region.
Status free_region(void* pointer);
// How many were freed so far.
uint64_t regions_freed();
// The region that holds all of [pointer, pointer + bytes), or nullptr.
std::shared_ptr<const SharedRegion> find_region(const void* pointer, size_t bytes);

// Kept scratch memory: grown, never given back before destruction, so that no call page-faults twice.
class Scratch {
 public:
  ~Scratch();
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  // At least `bytes`, 4096-aligned; contents are lost when it grows. nullptr when memory is out.
  std::byte* get(size_t bytes);
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace weft
