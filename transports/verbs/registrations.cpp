#include "transports/verbs/registrations.hpp"

#include <unistd.h>

#include <algorithm>

namespace weft::verbs {
namespace {

AddressRange whole_pages(AddressRange range) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  return {range.begin & ~(page - 1), (range.end + page - 1) & ~(page - 1)};
}

bool overlap(AddressRange a, AddressRange b) { return a.begin < b.end && b.begin < a.end; }

}  // namespace

Registrations::Registrations(Register add, Deregister remove, FindRegion find_region, size_t bound)
    : register_(std::move(add)), deregister_(std::move(remove)), find_region_(find_region), bound_(bound) {
  std::vector<AddressRange> before;
  MappingWatch::get().changes(&seen_, &before);
}

Registrations::~Registrations() {
  for (auto& [begin, entry] : cached_) deregister_(entry->keys);
  for (auto& entry : loose_) deregister_(entry->keys);
}

size_t Registrations::registrations() const {
  std::lock_guard lock(mutex_);
  return made_;
}
size_t Registrations::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

Registrations::Entry* Registrations::find(AddressRange range) {
  auto after = cached_.upper_bound(range.begin);
  if (after == cached_.begin()) return nullptr;
  Entry* entry = std::prev(after)->second.get();
  return range.end <= entry->range.end ? entry : nullptr;
}

Result<Registrations::Entry*> Registrations::take(std::byte* base, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(base);
  const AddressRange range{begin, begin + bytes};
  std::lock_guard lock(mutex_);
  forget_changed();
  Entry* entry = find(range);
  if (entry != nullptr && entry->shared && entry->region.expired()) {
    drop(entry);
    entry = nullptr;
  }
  if (entry == nullptr) {
    Result<Entry*> made = add(range, true);
    // A page beside it may be one that cannot be registered.
    if (!made.ok()) made = add(range, false);
    if (!made.ok()) return made.status();
    entry = *made;
  }
  ++entry->uses;
  if (entry->cached) order_.splice(order_.end(), order_, entry->used);
  shrink();
  return entry;
}

Result<Registrations::Entry*> Registrations::add(AddressRange range, bool pages) {
  auto entry = std::make_unique<Entry>();
  const auto region = find_region_(reinterpret_cast<void*>(range.begin), range.end - range.begin);
  if (region != nullptr) {
    range.begin = reinterpret_cast<uintptr_t>(region->base);
    range.end = range.begin + region->bytes;
    entry->shared = true;
    entry->region = region;
  } else if (pages) {
    range = whole_pages(range);
  }
  std::vector<Entry*> old;
  if (bound_ > 0) {
    // Together with what overlaps it. A region that does is one that was freed.
    for (auto& [begin, other] : cached_) {
      if (overlap(other->range, range)) old.push_back(other.get());
    }
    for (const Entry* other : old) {
      if (!other->shared) range = {std::min(range.begin, other->range.begin), std::max(range.end, other->range.end)};
    }
  }
  // Watched first: nothing that happens from now on is missed.
  entry->cached = bound_ > 0 && pages && (entry->shared || MappingWatch::get().watch(range));
  Result<Keys> keys = register_(reinterpret_cast<std::byte*>(range.begin), range.end - range.begin);
  if (!keys.ok()) return keys.status();
  ++made_;
  entry->range = range;
  entry->keys = *keys;
  bytes_ += range.end - range.begin;
  Entry* result = entry.get();
  if (entry->cached) {
    for (Entry* other : old) drop(other);
    entry->used = order_.insert(order_.end(), result);
    cached_[range.begin] = std::move(entry);
  } else {
    loose_.push_back(std::move(entry));
  }
  return result;
}

void Registrations::forget_changed() {
  MappingWatch::get().changes(&seen_, &changed_);
  for (const AddressRange& range : changed_) {
    for (auto at = cached_.begin(); at != cached_.end();) {
      Entry* entry = (at++)->second.get();
      if (!entry->shared && overlap(entry->range, range)) drop(entry);
    }
  }
}

// Not to be found any more; gone once nobody uses it.
void Registrations::drop(Entry* entry) {
  const auto at = cached_.find(entry->range.begin);
  order_.erase(entry->used);
  entry->cached = false;
  loose_.push_back(std::move(at->second));
  cached_.erase(at);
  if (entry->uses == 0) destroy(entry);
}

void Registrations::destroy(Entry* entry) {
  bytes_ -= entry->range.end - entry->range.begin;
  deregister_(entry->keys);
  loose_.remove_if([entry](const auto& other) { return other.get() == entry; });
}

void Registrations::shrink() {
  for (auto at = order_.begin(); at != order_.end() && bytes_ > bound_;) {
    Entry* entry = *at++;
    if (entry->uses == 0) drop(entry);
  }
}

void Registrations::release(Entry* entry) {
  std::lock_guard lock(mutex_);
  --entry->uses;
  if (!entry->cached && entry->uses == 0) destroy(entry);
}

Status Registrations::pin(std::byte* base, size_t bytes) {
  Result<Entry*> entry = take(base, bytes);
  if (!entry.ok()) return entry.status();
  std::lock_guard lock(mutex_);
  pinned_.emplace(reinterpret_cast<uintptr_t>(base), *entry);
  return {};
}

void Registrations::unpin(std::byte* base) {
  Entry* entry = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto at = pinned_.find(reinterpret_cast<uintptr_t>(base));
    if (at == pinned_.end()) return;
    entry = at->second;
    pinned_.erase(at);
  }
  release(entry);
}

}  // namespace weft::verbs
