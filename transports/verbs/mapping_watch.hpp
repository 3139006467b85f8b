// Tells when memory of this process is unmapped, moved or given back, so that a registration of it is not taken for one
// of what is mapped there next. By userfaultfd in its non-cooperative mode: the thread that unmaps is held until the
// event was read. No page is write-protected, so that nothing ever faults.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "status/fd.hpp"

namespace weft::verbs {

struct AddressRange {
  uintptr_t begin = 0, end = 0;
};

class MappingWatch {
 public:
  // The one of this process; false from watch() where the system does not allow it.
  static MappingWatch& get();

  // Both are multiples of the page size. False: changes there would go unseen.
  bool watch(AddressRange range);
  // All ranges that changed, in order, from `*position` on, which moves to the end. What was unmapped before the call
  // is among them.
  void changes(uint64_t* position, std::vector<AddressRange>* ranges);

 private:
  MappingWatch();
  void run();
  void read_events();

  Fd fd_;
  std::thread thread_;
  // Held while events are read until they are noted: whoever unmapped goes on at once, and must find them. Nothing is
  // freed under it, since that may unmap, and wait for the reader.
  std::mutex mutex_;
  static constexpr size_t kKept = 4096;  // older ones are forgotten: then everything counts as changed
  std::vector<AddressRange> ring_ = std::vector<AddressRange>(kKept);
  std::atomic<uint64_t> noted_{0};
};

}  // namespace weft::verbs
