// Messages that came before their receive: small ones with their bytes, of others UCX's descriptor. Nodes and their
// memory are kept for the next ones, up to a bound.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "transports/tables.hpp"
#include "transports/ucx/frame.hpp"

namespace weft::ucx {

struct Early {
  Early* next = nullptr;
  Header frame;
  size_t length = 0;
  void* descriptor = nullptr;  // of a rendezvous; else the bytes are in data
  std::unique_ptr<std::byte[]> data;
  size_t capacity = 0;
};

class EarlyStore {
 public:
  ~EarlyStore() {
    clear([](Early&) {});
  }

  bool empty() const { return table_.empty(); }
  Early* find(uint64_t key) const { return table_.find(key); }
  template <typename Visit>
  void for_each(Visit visit) const {
    table_.for_each(visit);
  }

  // data: the bytes, or with `rendezvous` the descriptor.
  void add(const Header& header, void* data, size_t length, bool rendezvous) {
    std::unique_ptr<Early> node = take(rendezvous ? 0 : length);
    node->frame = header;
    node->length = length;
    node->descriptor = rendezvous ? data : nullptr;
    if (!rendezvous && length > 0) std::memcpy(node->data.get(), data, length);
    table_.insert(header.key(), *node.release());
  }
  void release(Early& early) {
    std::unique_ptr<Early> node(table_.take(early.frame.key()));
    if (kept_ + node->capacity > kKept || free_.size() >= kNodes) return;
    kept_ += node->capacity;
    free_.push_back(std::move(node));
  }
  template <typename Visit>
  void clear(Visit visit) {
    table_.for_each([&](Early& early) {
      visit(early);
      delete &early;
    });
    table_.clear();
  }

 private:
  static constexpr size_t kKept = 1 << 20, kNodes = 256;

  std::unique_ptr<Early> take(size_t bytes) {
    std::unique_ptr<Early> node;
    if (free_.empty()) {
      node = std::make_unique<Early>();
    } else {
      node = std::move(free_.back());
      free_.pop_back();
      kept_ -= node->capacity;
    }
    if (node->capacity < bytes) {
      node->data.reset(new std::byte[bytes]);
      node->capacity = bytes;
    }
    return node;
  }

  Table<Early> table_;
  std::vector<std::unique_ptr<Early>> free_;
  size_t kept_ = 0;
};

}  // namespace weft::ucx
