// Where a wire keeps requests until their message comes, and messages until their request comes. Neither allocates per
// message in steady state.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "transports/tcp/frame.hpp"
#include "transports/transport.hpp"

namespace weft::tcp {

// Requests by key, chained through their own `next`.
template <typename Node>
class Table {
 public:
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }

  void insert(uint64_t key, Node& node) {
    if (count_ >= 2 * heads_.size()) grow();
    link(key, node);
    ++count_;
  }
  Node* find(uint64_t key) const {
    if (count_ == 0) return nullptr;
    Node* node = heads_[slot(key)];
    while (node != nullptr && key_of(*node) != key) node = node->next;
    return node;
  }
  Node* take(uint64_t key) {
    if (count_ == 0) return nullptr;
    for (Node** link = &heads_[slot(key)]; *link != nullptr; link = &(*link)->next) {
      if (key_of(**link) != key) continue;
      Node* node = *link;
      *link = node->next;
      node->next = nullptr;
      --count_;
      return node;
    }
    return nullptr;
  }
  template <typename Visit>
  void for_each(Visit visit) const {
    if (count_ == 0) return;
    for (Node* node : heads_) {
      while (node != nullptr) {
        Node* next = node->next;
        visit(*node);
        node = next;
      }
    }
  }
  void clear() {
    std::fill(heads_.begin(), heads_.end(), nullptr);
    count_ = 0;
  }

 private:
  static uint64_t key_of(const SendRequest& request) { return request.id.key(); }
  static uint64_t key_of(const RecvRequest& request) { return request.id.key(); }
  template <typename Other>
  static uint64_t key_of(const Other& node) {
    return node.frame.key();
  }
  size_t slot(uint64_t key) const { return (key * 0x9e3779b97f4a7c15ull >> 32) & (heads_.size() - 1); }
  void link(uint64_t key, Node& node) {
    Node*& head = heads_[slot(key)];
    node.next = head;
    head = &node;
  }
  void grow() {
    std::vector<Node*> old(2 * heads_.size(), nullptr);
    old.swap(heads_);
    for (Node* node : old) {
      while (node != nullptr) {
        Node* next = node->next;
        link(key_of(*node), *node);
        node = next;
      }
    }
  }

  std::vector<Node*> heads_ = std::vector<Node*>(64, nullptr);
  size_t count_ = 0;
};

// A frame that came before its request: a small message with its bytes, an announce, or a clear.
struct Early {
  Early* next = nullptr;
  Frame frame;
  RecvRequest* claimed = nullptr;  // posted while the bytes were still coming
  bool complete = false;
  std::unique_ptr<std::byte[]> data;
  size_t capacity = 0;
};

// Early frames by key. Freed nodes are kept for the next message of their size class, up to a bound.
class EarlyStore {
 public:
  ~EarlyStore() { clear(); }

  Early* find(uint64_t key) const { return table_.find(key); }
  size_t count() const { return table_.size(); }
  template <typename Visit>
  void for_each(Visit visit) const {
    table_.for_each(visit);
  }
  size_t bytes() const { return bytes_; }

  Early& add(const Frame& frame) {
    const size_t size_class = class_of(frame.length);
    std::unique_ptr<Early> node;
    if (auto& free = free_[size_class]; !free.empty()) {
      node = std::move(free.back());
      free.pop_back();
      kept_ -= cost(*node);
    } else {
      node = std::make_unique<Early>();
      node->capacity = size_class == 0 ? 0 : size_t{128} << size_class;
      if (node->capacity > 0) node->data.reset(new std::byte[node->capacity]);
    }
    node->frame = frame;
    node->claimed = nullptr;
    node->complete = frame.length == 0;
    bytes_ += cost(*node);
    table_.insert(frame.key(), *node);
    return *node.release();
  }
  void release(Early& early) {
    table_.take(early.frame.key());
    bytes_ -= cost(early);
    std::unique_ptr<Early> node(&early);
    if (kept_ + cost(early) > kKept) return;
    kept_ += cost(early);
    free_[class_of(early.capacity)].push_back(std::move(node));
  }
  void clear() {
    table_.for_each([](Early& early) { delete &early; });
    table_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kKept = 1 << 20;
  // 0: no bytes; k: up to 128 << k, so that class 8 holds the longest small message.
  static constexpr size_t kClasses = 9;
  static_assert(size_t{128} << (kClasses - 1) == kEagerBytes);

  static size_t class_of(size_t bytes) {
    if (bytes == 0) return 0;
    size_t size_class = 1;
    while ((size_t{128} << size_class) < bytes) ++size_class;
    return size_class;
  }
  static size_t cost(const Early& early) { return sizeof(Early) + early.capacity; }

  Table<Early> table_;
  std::array<std::vector<std::unique_ptr<Early>>, kClasses> free_;
  size_t bytes_ = 0, kept_ = 0;
};

}  // namespace weft::tcp
