// Where a wire of frames keeps requests until their message comes, and messages until their request comes. Neither
// allocates per message in steady state.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "transports/transport.hpp"

namespace weft {

// A first-in-first-out queue that keeps its memory.
template <typename T>
class Queue {
 public:
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  T& front() { return (*this)[0]; }
  void push(T value) {
    if (count_ == slots_.size()) {
      std::vector<T> larger(slots_.empty() ? 16 : 2 * slots_.size());
      for (size_t i = 0; i < count_; ++i) larger[i] = (*this)[i];
      slots_.swap(larger);
      head_ = 0;
    }
    slots_[(head_ + count_++) & (slots_.size() - 1)] = value;
  }
  void pop() {
    head_ = (head_ + 1) & (slots_.size() - 1);
    --count_;
  }
  void clear() { head_ = count_ = 0; }

 private:
  std::vector<T> slots_;
  size_t head_ = 0, count_ = 0;
};

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

// A frame that came before its request: a small message with its bytes, an announce, or a clear. Frames have a key()
// and a `length`.
template <typename Frame>
struct Early {
  Early* next = nullptr;
  Frame frame;
  RecvRequest* claimed = nullptr;  // posted while the bytes were still coming
  bool complete = false;
  std::unique_ptr<std::byte[]> data;
  size_t capacity = 0;
};

// 0: no bytes; k: up to 128 << k.
constexpr size_t size_class(size_t bytes) {
  if (bytes == 0) return 0;
  size_t result = 1;
  while ((size_t{128} << result) < bytes) ++result;
  return result;
}

// Early frames by key, of payloads up to kMost bytes. Freed nodes are kept for the next message of their size class, up
// to a bound.
template <typename Frame, size_t kMost>
class EarlyStore {
 public:
  using Early = weft::Early<Frame>;

  ~EarlyStore() { clear(); }

  Early* find(uint64_t key) const { return table_.find(key); }
  size_t count() const { return table_.size(); }
  template <typename Visit>
  void for_each(Visit visit) const {
    table_.for_each(visit);
  }
  size_t bytes() const { return bytes_; }

  Early& add(const Frame& frame) {
    const size_t its_class = size_class(frame.length);
    std::unique_ptr<Early> node;
    if (auto& free = free_[its_class]; !free.empty()) {
      node = std::move(free.back());
      free.pop_back();
      kept_ -= cost(*node);
    } else {
      node = std::make_unique<Early>();
      node->capacity = its_class == 0 ? 0 : size_t{128} << its_class;
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
    free_[size_class(early.capacity)].push_back(std::move(node));
  }
  void clear() {
    table_.for_each([](Early& early) { delete &early; });
    table_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kKept = 1 << 20;
  static size_t cost(const Early& early) { return sizeof(Early) + early.capacity; }

  static constexpr size_t kClasses = size_class(kMost) + 1;

  Table<Early> table_;
  std::array<std::vector<std::unique_ptr<Early>>, kClasses> free_;
  size_t bytes_ = 0, kept_ = 0;
};

}  // namespace weft
