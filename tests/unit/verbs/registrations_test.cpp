// The cache of registered memory, on a device that only counts.
#include "transports/verbs/registrations.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cstring>
#include <map>
#include <thread>

namespace weft::verbs {
namespace {

constexpr size_t kPage = 4096;

// What is registered holds on to the bytes that were there when it was, as a device's page list does.
struct FakeDevice {
  struct Region {
    std::byte* base;
    size_t bytes;
    std::byte first;  // of the first byte, when it was registered
  };
  std::map<uint32_t, Region> regions;
  uint32_t next = 1;
  bool full = false;

  Registrations::Register add() {
    return [this](std::byte* base, size_t bytes) -> Result<Registrations::Keys> {
      if (full) return error(weftSystemError, "no more");
      regions[next] = {base, bytes, *base};
      return Registrations::Keys{nullptr, next, next++};
    };
  }
  Registrations::Deregister remove() {
    return [this](const Registrations::Keys& keys) { ASSERT_EQ(regions.erase(keys.lkey), 1u); };
  }
};

std::byte* map(size_t bytes, void* at = nullptr) {
  void* base =
      ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

bool watches() {
  std::byte* page = map(kPage);
  *page = std::byte{1};
  const auto begin = reinterpret_cast<uintptr_t>(page);
  const bool works = MappingWatch::get().watch({begin, begin + kPage});
  ::munmap(page, kPage);
  return works;
}

#define NEEDS_USERFAULTFD \
  if (!watches()) GTEST_SKIP() << "userfaultfd is not allowed here"

TEST(Registered, ASecondTimeForNothing) {
  NEEDS_USERFAULTFD;
  FakeDevice device;
  Registrations cache(device.add(), device.remove(), find_region, 1 << 30);
  std::byte* memory = map(16 * kPage);
  std::memset(memory, 1, 16 * kPage);
  for (int i = 0; i < 10; ++i) {
    auto entry = cache.take(memory + 5, 7 * kPage);
    ASSERT_TRUE(entry.ok());
    EXPECT_EQ((*entry)->range.begin, reinterpret_cast<uintptr_t>(memory));
    cache.release(*entry);
  }
  EXPECT_EQ(cache.registrations(), 1u);
  auto part = cache.take(memory + 2 * kPage, kPage);
  EXPECT_EQ(cache.registrations(), 1u);
  cache.release(*part);
  // What overlaps is registered together with it, and the old one is gone once nobody uses it.
  auto old = cache.take(memory, kPage);
  auto more = cache.take(memory + 7 * kPage, 3 * kPage);
  EXPECT_EQ(cache.registrations(), 2u);
  EXPECT_EQ((*more)->range.end - (*more)->range.begin, 10 * kPage);
  EXPECT_EQ(device.regions.size(), 2u);
  cache.release(*old);
  EXPECT_EQ(device.regions.size(), 1u);
  cache.release(*more);
  ::munmap(memory, 16 * kPage);
}

// B83: what is mapped at an old address is never taken for what was there before, in whichever way that went.
TEST(Registered, UnmappedAndMappedAgain) {
  NEEDS_USERFAULTFD;
  FakeDevice device;
  Registrations cache(device.add(), device.remove(), find_region, 1 << 30);
  std::byte* place = map(8 * kPage);
  for (int i = 0; i < 1000; ++i) {
    std::memset(place, i, 8 * kPage);
    auto entry = cache.take(place + 2 * kPage, 3 * kPage);
    ASSERT_TRUE(entry.ok());
    ASSERT_EQ(device.regions.at((*entry)->keys.lkey).first, static_cast<std::byte>(i)) << i;
    cache.release(*entry);
    switch (i % 4) {
      case 0:
        ::munmap(place, 8 * kPage);
        ASSERT_EQ(map(8 * kPage, place), place);
        break;
      case 1:  // only a part of it, over what is there
        ASSERT_NE(map(kPage, place + 2 * kPage), nullptr);
        break;
      case 2:  // given back to the system
        ::madvise(place, 8 * kPage, MADV_DONTNEED);
        break;
      case 3: {  // what is watched is moved away
        std::byte* other = map(3 * kPage);
        ASSERT_NE(::mremap(place + 2 * kPage, 3 * kPage, 3 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, other), MAP_FAILED);
        ASSERT_EQ(map(8 * kPage, place), place);
        ::munmap(other, 3 * kPage);
        break;
      }
    }
  }
  EXPECT_EQ(cache.registrations(), 1000u);
  EXPECT_LE(device.regions.size(), 1u);
  ::munmap(place, 8 * kPage);
}

// By another thread than the one that looks.
TEST(Registered, UnmappedByAnotherThread) {
  NEEDS_USERFAULTFD;
  FakeDevice device;
  Registrations cache(device.add(), device.remove(), find_region, 1 << 30);
  std::byte* place = map(kPage);
  for (int i = 0; i < 200; ++i) {
    std::memset(place, i, kPage);
    auto entry = cache.take(place, kPage);
    ASSERT_TRUE(entry.ok());
    ASSERT_EQ(device.regions.at((*entry)->keys.lkey).first, static_cast<std::byte>(i)) << i;
    cache.release(*entry);
    std::thread([&] {
      ::munmap(place, kPage);
      ASSERT_EQ(map(kPage, place), place);
    }).join();
  }
  ::munmap(place, kPage);
}

// Memory of weftMemAlloc needs no watch: it is known when it is freed.
TEST(Registered, SharedMemory) {
  FakeDevice device;
  Registrations cache(device.add(), device.remove(), find_region, 1 << 30);
  for (int i = 0; i < 3; ++i) {
    auto memory = allocate_region(8 * kPage);
    ASSERT_TRUE(memory.ok());
    auto* base = static_cast<std::byte*>(*memory);
    *base = static_cast<std::byte>(i);
    for (int j = 0; j < 3; ++j) {
      auto entry = cache.take(base + 3 * kPage + 1, 100);
      ASSERT_TRUE(entry.ok());
      EXPECT_EQ((*entry)->range.end - (*entry)->range.begin, 8 * kPage);
      EXPECT_EQ(device.regions.at((*entry)->keys.lkey).first, static_cast<std::byte>(i));
      cache.release(*entry);
    }
    EXPECT_EQ(cache.registrations(), static_cast<size_t>(i) + 1);
    ASSERT_TRUE(free_region(base).ok());
  }
}

TEST(Registered, WithinItsBound) {
  NEEDS_USERFAULTFD;
  FakeDevice device;
  Registrations cache(device.add(), device.remove(), find_region, 4 * kPage);
  std::byte* memory = map(64 * kPage);
  std::memset(memory, 1, 64 * kPage);
  std::vector<Registrations::Entry*> used;
  for (size_t i = 0; i < 16; ++i) {
    auto entry = cache.take(memory + 4 * i * kPage, kPage);
    ASSERT_TRUE(entry.ok());
    if (i < 8) {
      cache.release(*entry);
    } else {
      used.push_back(*entry);  // what is in use stays, whatever the bound
    }
  }
  EXPECT_EQ(cache.bytes(), 8 * kPage);
  for (auto* entry : used) EXPECT_TRUE(device.regions.contains(entry->keys.lkey));
  for (auto* entry : used) cache.release(entry);
  auto entry = cache.take(memory, kPage);
  cache.release(*entry);
  EXPECT_LE(cache.bytes(), 4 * kPage);
  ::munmap(memory, 64 * kPage);
}

TEST(Registered, Pinned) {
  FakeDevice device;
  Registrations cache(device.add(), device.remove(), find_region, 0);  // keeps nothing by itself
  std::byte* memory = map(4 * kPage);
  std::memset(memory, 1, 4 * kPage);
  ASSERT_TRUE(cache.pin(memory, 4 * kPage).ok());
  ASSERT_TRUE(cache.pin(memory, 4 * kPage).ok());
  EXPECT_GE(device.regions.size(), 1u);
  cache.unpin(memory);
  EXPECT_GE(device.regions.size(), 1u);
  cache.unpin(memory);
  EXPECT_EQ(device.regions.size(), 0u);
  cache.unpin(memory);
  device.full = true;
  EXPECT_FALSE(cache.pin(memory, kPage).ok());
  ::munmap(memory, 4 * kPage);
}

// A child of fork() has neither the thread nor the memory that is watched.
TEST(Registered, AfterFork) {
  NEEDS_USERFAULTFD;
  std::byte* memory = map(kPage);
  std::memset(memory, 1, kPage);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    FakeDevice device;
    bool right = true;
    {
      Registrations cache(device.add(), device.remove(), find_region, 1 << 30);
      for (int i = 0; i < 10; ++i) {
        *memory = static_cast<std::byte>(i);
        auto entry = cache.take(memory, kPage);
        right = right && entry.ok() && device.regions.at((*entry)->keys.lkey).first == static_cast<std::byte>(i);
        cache.release(*entry);
        ::munmap(memory, kPage);
        right = right && map(kPage, memory) == memory;
      }
    }
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ::munmap(memory, kPage);
}

}  // namespace
}  // namespace weft::verbs
