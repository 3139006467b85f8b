// A ring: how messages go one way between two ranks that share memory, be it a mapping of two processes (shm) or the
// heap of one (loop). One producer, one consumer, no locks.
//
// A slot is one cache line: id, length and up to 40 bytes of payload travel together, so a small message costs one line
// transfer. `turn` says in which round of the ring the slot was filled; the consumer polls it. Larger payloads lie in a
// byte ring behind the slots; the largest stay in the sender's memory and only their addresses travel (a view): the
// consumer reads them in place and then marks the view's ticket. A consumer may also offer memory in which it waits for
// a message; a producer that maps it can write the message there itself.
//
// The consumer returns slots and bytes in batches (a quarter of the ring), so that in the steady state of a ping-pong
// the only line that moves is the slot's.
#pragma once

#include <atomic>
#include <cstring>

#include "transports/transport.hpp"

namespace weft {

enum class SlotKind : uint32_t {
  inlined,   // payload in the slot
  ringed,    // payload in the byte ring at `position`
  fragment,  // a part of a longer message: in the byte ring, at `offset` of the message
  view,      // pieces in the sender's memory: descriptors in the slot (up to 2) or in the byte ring
  placed,    // nothing: the sender has written it where the receiver offered to take it
};

struct ViewPiece {
  uint64_t address = 0;  // in the sender's address space; the offset in a shared region where region != 0
  uint32_t region = 0;
  uint32_t bytes = 0;
};

struct alignas(64) RingSlot {
  static constexpr uint32_t kInline = 40;
  std::atomic<uint32_t> turn;
  uint32_t bytes;  // of the whole message
  uint32_t sequence, index, signature;
  SlotKind kind;
  union {
    std::byte payload[kInline];
    struct {
      uint64_t position;  // in the byte ring
      uint32_t part;      // bytes there
      uint32_t reserved;
      uint64_t offset;  // of a fragment in its message
    } ringed;
    struct {
      ViewPiece pieces[2];
      uint32_t count;  // more than 2: `pieces` is unused, the descriptors are in the byte ring, and pieces[0].address
                       // is their position there
      uint32_t ticket;
    } view;
  };

  MessageId id() const { return {sequence, index, signature}; }
};
static_assert(sizeof(RingSlot) == 64);

// Where the consumer waits for a message. Written by the consumer, key last; used again only after the message came.
struct alignas(32) RingOffer {
  std::atomic<uint64_t> key;      // of the message, plus 1
  std::atomic<uint64_t> address;  // as in ViewPiece, but in the consumer's memory
  std::atomic<uint32_t> region;
  std::atomic<uint32_t> bytes;
  std::atomic<uint32_t> signature;
  std::atomic<uint32_t> after;  // see Wire::offer
};

// A large view that the consumer copies into memory of its own, while the producer waits for the end of that: the
// consumer takes chunks from the front, and the producer, which has nothing else to do, writes some from the back.
struct RingShare {
  static constexpr size_t kChunk = 64 << 10;  // bytes
  // The view's ticket + 1 << 32 | chunks taken from the front << 16 | from the back. 0: nothing is shared. Begun and
  // ended by the consumer.
  alignas(64) std::atomic<uint64_t> taken;
  std::atomic<uint64_t> address;              // in the consumer's memory
  alignas(64) std::atomic<uint32_t> written;  // chunks: by the producer
};

struct RingHeader {
  static constexpr uint32_t kSlots = 64;
  static constexpr uint32_t kViews = 64;
  static constexpr uint32_t kOffers = 16;

  // Written by the consumer, in batches.
  alignas(64) std::atomic<uint64_t> slots_returned;
  std::atomic<uint64_t> bytes_returned;
  // Written by whoever is about to sleep.
  alignas(64) std::atomic<uint32_t> consumer_sleeps;
  std::atomic<uint32_t> can_pull;  // the consumer's: 1 it can read the producer's private memory, 2 it cannot
  alignas(64) std::atomic<uint32_t> producer_sleeps;
  std::atomic<uint32_t> revoked;  // the producer's: views are no longer valid, what was read from them is not data
  // The consumer's: it is reading a view. Set before it looks at `revoked`, so that a producer in the same process that
  // has revoked can wait for the end of the read.
  alignas(64) std::atomic<uint32_t> reading;
  // The producer's: it is writing to memory that was offered, or shared. Set before it looks at `withdrawn`, the
  // consumer's word that nothing is offered any more: after it the consumer waits for the end of the write.
  alignas(64) std::atomic<uint32_t> writing;
  std::atomic<uint32_t> withdrawn;
  RingShare share;
  alignas(64) RingOffer offers[kOffers];  // by index of the message
  // A view's ticket t is done when view_done[t % kViews] == t + 1. Written by the consumer.
  alignas(64) std::atomic<uint32_t> view_done[kViews];
  alignas(64) RingSlot slots[kSlots];
};

// Bytes of memory for one ring whose byte ring has data_bytes (a power of two).
constexpr size_t ring_memory(size_t data_bytes) { return sizeof(RingHeader) + data_bytes; }

class RingProducer {
 public:
  void attach(void* memory, size_t data_bytes) {
    header_ = static_cast<RingHeader*>(memory);
    data_ = static_cast<std::byte*>(memory) + sizeof(RingHeader);
    data_bytes_ = data_bytes;
  }
  RingHeader* header() { return header_; }
  size_t largest() const { return data_bytes_ / 4; }  // of one stretch of the byte ring

  // The next slot, or nullptr while the ring is full.
  RingSlot* claim() {
    if (head_ - returned_ >= RingHeader::kSlots) {
      returned_ = header_->slots_returned.load(std::memory_order_acquire);
      if (head_ - returned_ >= RingHeader::kSlots) return nullptr;
    }
    return &header_->slots[head_ % RingHeader::kSlots];
  }
  // `bytes` contiguous bytes of the byte ring for the claimed slot, or nullptr while there is no room. 64-byte aligned.
  std::byte* reserve(size_t bytes, uint64_t* position) {
    const size_t rounded = (bytes + 63) & ~size_t{63};
    uint64_t begin = data_head_;
    if ((begin & (data_bytes_ - 1)) + rounded > data_bytes_) begin = (begin | (data_bytes_ - 1)) + 1;
    if (begin + rounded - data_returned_ > data_bytes_) {
      data_returned_ = header_->bytes_returned.load(std::memory_order_acquire);
      if (begin + rounded - data_returned_ > data_bytes_) return nullptr;
    }
    *position = begin;
    data_head_ = begin + rounded;
    return data_ + (begin & (data_bytes_ - 1));
  }
  void publish(RingSlot* slot, const MessageId& id, size_t bytes, SlotKind kind) {
    slot->bytes = static_cast<uint32_t>(bytes);
    slot->sequence = id.sequence;
    slot->index = id.index;
    slot->signature = id.signature;
    slot->kind = kind;
    slot->turn.store(static_cast<uint32_t>(head_ / RingHeader::kSlots) + 1, std::memory_order_release);
    ++head_;
  }
  bool consumer_sleeps() const { return header_->consumer_sleeps.load(std::memory_order_relaxed) != 0; }

 private:
  RingHeader* header_ = nullptr;
  std::byte* data_ = nullptr;
  size_t data_bytes_ = 0;
  uint64_t head_ = 0, returned_ = 0;
  uint64_t data_head_ = 0, data_returned_ = 0;
};

class RingConsumer {
 public:
  void attach(void* memory, size_t data_bytes) {
    header_ = static_cast<RingHeader*>(memory);
    data_ = static_cast<std::byte*>(memory) + sizeof(RingHeader);
    data_bytes_ = data_bytes;
  }
  RingHeader* header() { return header_; }

  // The oldest message, or nullptr.
  RingSlot* front() {
    RingSlot* slot = &header_->slots[tail_ % RingHeader::kSlots];
    const uint32_t turn = static_cast<uint32_t>(tail_ / RingHeader::kSlots) + 1;
    return slot->turn.load(std::memory_order_acquire) == turn ? slot : nullptr;
  }
  const std::byte* data(uint64_t position) const { return data_ + (position & (data_bytes_ - 1)); }
  // Done with front(); its stretch of the byte ring ends at data_end (0: it had none).
  void pop(uint64_t data_end = 0) {
    ++tail_;
    if (data_end != 0) data_tail_ = data_end;
    if (tail_ - returned_ >= RingHeader::kSlots / 4 || data_tail_ - data_returned_ >= data_bytes_ / 4) give_back();
  }
  void give_back() {
    returned_ = tail_;
    data_returned_ = data_tail_;
    header_->bytes_returned.store(data_tail_, std::memory_order_release);
    header_->slots_returned.store(tail_, std::memory_order_release);
  }
  bool producer_sleeps() const { return header_->producer_sleeps.load(std::memory_order_relaxed) != 0; }

 private:
  RingHeader* header_ = nullptr;
  const std::byte* data_ = nullptr;
  size_t data_bytes_ = 0;
  uint64_t tail_ = 0, returned_ = 0;
  uint64_t data_tail_ = 0, data_returned_ = 0;
};

class RingPair {
 public:
  RingProducer tx;
  RingConsumer rx;
};

}  // namespace weft
