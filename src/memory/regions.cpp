#include "memory/regions.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>

namespace weft {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, std::shared_ptr<const SharedRegion>> by_base;
  std::atomic<size_t> count{0};  // so that a process that never allocates pays one load
  std::atomic<uint64_t> freed{0};
  uint32_t next_id = 1;
};

Registry& registry() {
  static auto* instance = new Registry;  // outlives every user, static destructors included
  return *instance;
}

size_t round_to_pages(size_t bytes) { return (bytes + 4095) & ~size_t{4095}; }

}  // namespace

SharedRegion::~SharedRegion() {
  if (base != nullptr) ::munmap(base, bytes);
}

Result<void*> allocate_region(size_t bytes) {
  if (bytes == 0 || bytes > size_t{1} << 46) {
    return error(weftInvalidArgument, "weftMemAlloc of {} bytes; legal: 1 to 2^46", bytes);
  }
  auto region = std::make_shared<SharedRegion>();
  region->bytes = round_to_pages(bytes);
  region->fd = Fd(::memfd_create("weft", MFD_CLOEXEC));
  if (!region->fd) return system_error(errno, "memfd_create");
  // Reserved now, so that a lack of memory is an error here and not a SIGBUS later.
  if (::fallocate(region->fd.get(), 0, 0, static_cast<off_t>(region->bytes)) != 0) {
    return system_error(errno, fmt::format("no room for {} bytes of shared memory", region->bytes));
  }
  void* base = ::mmap(nullptr, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd.get(), 0);
  if (base == MAP_FAILED) return system_error(errno, "mmap of shared memory");
  region->base = static_cast<std::byte*>(base);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  region->id = all.next_id++;
  all.by_base.emplace(reinterpret_cast<uintptr_t>(base), std::move(region));
  all.count.store(all.by_base.size(), std::memory_order_release);
  return base;
}

Status free_region(void* pointer) {
  if (pointer == nullptr) return {};
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  if (all.by_base.erase(reinterpret_cast<uintptr_t>(pointer)) == 0) {
    return error(weftInvalidArgument, "weftMemFree({}): not a pointer from weftMemAlloc", pointer);
  }
  all.count.store(all.by_base.size(), std::memory_order_release);
  all.freed.fetch_add(1, std::memory_order_release);
  return {};
}

uint64_t regions_freed() { return registry().freed.load(std::memory_order_acquire); }

std::shared_ptr<const SharedRegion> find_region(const void* pointer, size_t bytes) {
  Registry& all = registry();
  if (all.count.load(std::memory_order_acquire) == 0) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard lock(all.mutex);
  auto after = all.by_base.upper_bound(address);
  if (after == all.by_base.begin()) return nullptr;
  const auto& region = std::prev(after)->second;
  if (address + bytes > reinterpret_cast<uintptr_t>(region->base) + region->bytes) return nullptr;
  return region;
}

Scratch::~Scratch() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

std::byte* Scratch::get(size_t bytes) {
  if (bytes <= bytes_) return base_;
  const size_t grown = round_to_pages(std::max(bytes, bytes_ + bytes_ / 2));
  void* base = ::mmap(nullptr, grown, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  ::madvise(base, grown, MADV_HUGEPAGE);
  if (base_ != nullptr) ::munmap(base_, bytes_);
  base_ = static_cast<std::byte*>(base);
  bytes_ = grown;
  return base_;
}

}  // namespace weft
