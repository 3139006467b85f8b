// Memory that a device may reach: what was registered is kept for the next time, until it is unmapped, or until the
// cache holds more than its bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/regions.hpp"
#include "status/status.hpp"
#include "transports/verbs/mapping_watch.hpp"

namespace weft::verbs {

class Registrations {
 public:
  struct Keys {
    void* handle = nullptr;
    uint32_t lkey = 0, rkey = 0;
  };
  using Register = std::function<Result<Keys>(std::byte* base, size_t bytes)>;
  using Deregister = std::function<void(const Keys&)>;
  using FindRegion = std::shared_ptr<const SharedRegion> (*)(const void*, size_t);

  // Memory in use by messages, or pinned. Stays registered until release().
  struct Entry {
    AddressRange range;
    Keys keys;
    uint32_t uses = 0;
    bool cached = false;
    bool shared = false;                       // of weftMemAlloc:
    std::weak_ptr<const SharedRegion> region;  // until that is freed
    std::list<Entry*>::iterator used;          // place in the order of use
  };

  // bound: bytes that are kept without being in use; 0 keeps nothing.
  Registrations(Register add, Deregister remove, FindRegion find_region, size_t bound);
  ~Registrations();
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  // An entry that holds [base, base + bytes); registers it where there is none.
  Result<Entry*> take(std::byte* base, size_t bytes);
  void release(Entry* entry);
  // The same, until unpin() of the same address.
  Status pin(std::byte* base, size_t bytes);
  void unpin(std::byte* base);

  size_t registrations() const;  // ever made
  size_t bytes() const;          // registered now

 private:
  Entry* find(AddressRange range);
  Result<Entry*> add(AddressRange range, bool pages);
  void forget_changed();
  void drop(Entry* entry);
  void shrink();
  void destroy(Entry* entry);

  Register register_;
  Deregister deregister_;
  FindRegion find_region_;
  size_t bound_;

  mutable std::mutex mutex_;
  std::map<uintptr_t, std::unique_ptr<Entry>> cached_;  // by begin; they do not overlap
  std::list<std::unique_ptr<Entry>> loose_;             // in use, and not to be found any more
  std::list<Entry*> order_;                             // cached ones, least recently used first
  std::multimap<uintptr_t, Entry*> pinned_;             // by the user's address
  uint64_t seen_ = 0;                                   // changes of mappings
  std::vector<AddressRange> changed_;
  size_t made_ = 0, bytes_ = 0;
};

}  // namespace weft::verbs
