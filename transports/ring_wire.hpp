// The wire over a pair of rings, shared by loop and shm. They differ in how the memory of the peer is reached and how
// it is woken; those are the hooks.
#pragma once

#include <unordered_map>
#include <vector>

#include "transports/ring.hpp"

namespace weft {

class RingWire : public Wire {
 public:
  explicit RingWire(int peer) : Wire(peer) {}

  void send(SendRequest& request) final;
  void recv(RecvRequest& request) final;
  bool progress() final;
  bool arm() final;
  void disarm() final;
  bool has_early() const final { return !early_.empty(); }
  void early(std::vector<MessageId>* ids) const final;
  void offer(const MessageId& id, const Piece& where, uint32_t after) final;
  std::byte* open_target(const MessageId& id, size_t bytes, uint32_t reading) final;
  void close_target() final;
  void cancel() override;
  RingWire* ring_wire() final { return this; }
  size_t eager_bytes() const override { return kEager; }
  bool connected() const final { return connected_; }

  // The way of compiled small calls: no request, no queue. At most kEager bytes in one piece. False while the ring has
  // no room, or requests are waiting for it.
  bool try_send(const MessageId& id, const std::byte* data, size_t bytes) {
    if (!connected_ || !queued_.empty()) return false;
    RingSlot* slot = rings_.tx.claim();
    if (slot == nullptr) return false;
    if (bytes <= RingSlot::kInline) {
      std::memcpy(slot->payload, data, bytes);
      rings_.tx.publish(slot, id, bytes, SlotKind::inlined);
    } else {
      uint64_t position;
      std::byte* to = rings_.tx.reserve(bytes, &position);
      if (to == nullptr) return false;
      std::memcpy(to, data, bytes);
      slot->ringed.position = position;
      slot->ringed.part = static_cast<uint32_t>(bytes);
      rings_.tx.publish(slot, id, bytes, SlotKind::ringed);
    }
    count_sent(bytes);
    return true;
  }
  // The payload of the message, when it is the ring's oldest and lies there whole; nullptr while nothing is there.
  // *other: something else came, which is for recv() to sort out. release() after use.
  const std::byte* try_peek(const MessageId& id, size_t bytes, bool* other) {
    if (!connected_ || !early_.empty() || !posted_.empty()) {
      *other = true;
      return nullptr;
    }
    RingSlot* slot = rings_.rx.front();
    if (slot == nullptr) return nullptr;
    if (slot->sequence == id.sequence && slot->index == id.index && slot->signature == id.signature &&
        slot->bytes == bytes) {
      if (slot->kind == SlotKind::inlined) return slot->payload;
      if (slot->kind == SlotKind::ringed) return rings_.rx.data(slot->ringed.position);
    }
    *other = true;
    return nullptr;
  }
  void release(size_t bytes) {
    RingSlot* slot = rings_.rx.front();
    uint64_t data_end = 0;
    if (slot->kind == SlotKind::ringed) data_end = slot->ringed.position + ((bytes + 63) & ~size_t{63});
    rings_.rx.pop(data_end);
    ++stats_.messages_received;
    stats_.bytes_received += bytes;
    if (rings_.rx.producer_sleeps()) wake_peer();
  }

  // Largest message that is copied through the byte ring when the peer could read it in place instead.
  static constexpr size_t kEager = 32 << 10;

 protected:
  // A piece as the peer can read it in place without a system call; false: it cannot.
  virtual bool share(const Piece& piece, ViewPiece* view) = 0;
  // Where a piece of the peer's that it shares can be read and written; nullptr when it could not be mapped.
  virtual std::byte* map(const ViewPiece& view) = 0;
  // Copies from the peer's private memory; false on failure, with the reason in error_.
  virtual bool pull(const ViewPiece& view, size_t offset, std::byte* to, size_t bytes) = 0;
  // Copies to the peer's private memory, where this is possible; false on failure, with the reason in error_.
  virtual bool can_push() const { return false; }
  virtual bool push(uint64_t, const std::byte*, size_t) { return false; }
  virtual void wake_peer() = 0;
  virtual void drain_wakeups() {}
  // Carries the connection on; true when it moved.
  virtual bool progress_connection() { return false; }

  // Both ends of the memory are there; requests that waited are taken up by the next progress().
  void attach(void* tx, void* rx, size_t data_bytes);
  // Of ours, after cancel(): the peer is writing to memory that was offered.
  bool peer_writes() { return connected_ && rings_.rx.header()->writing.load(std::memory_order_seq_cst) != 0; }
  bool has_requests() const { return !posted_.empty() || !queued_.empty() || !viewed_.empty(); }
  void fail(WireError::Kind kind, std::string text);

  RingPair rings_;

 private:
  template <typename Request>
  class Fifo {  // intrusive, through Request::next
   public:
    bool empty() const { return head_ == nullptr; }
    Request* head() { return head_; }
    void push(Request* request) {
      request->next = nullptr;
      (head_ == nullptr ? head_ : tail_->next) = request;
      tail_ = request;
    }
    void remove(Request* previous, Request* request) {
      (previous == nullptr ? head_ : previous->next) = request->next;
      if (tail_ == request) tail_ = previous;
    }
    void push_front(Request* request) {
      request->next = head_;
      head_ = request;
      if (tail_ == nullptr) tail_ = request;
    }
    void clear() { head_ = tail_ = nullptr; }

   private:
    Request* head_ = nullptr;
    Request* tail_ = nullptr;
  };
  // A message that came before its receive was posted, while another operation's receive was waiting behind it.
  struct Early {
    MessageId id;
    uint32_t bytes = 0, ticket = 0;
    size_t received = 0;
    bool is_view = false, placed = false;
    std::vector<std::byte> data;
    std::vector<ViewPiece> pieces;
  };
  static constexpr size_t kMostEarly = 8192, kMostEarlyBytes = 64 << 20;

  bool issue(SendRequest& request);
  void count_sent(size_t bytes) {
    ++stats_.messages_sent;
    stats_.bytes_sent += bytes;
    if (rings_.tx.consumer_sleeps()) wake_peer();
  }
  bool issue_eager(SendRequest& request, RingSlot* slot);
  bool issue_view(SendRequest& request, RingSlot* slot, bool* possible);
  bool issue_fragments(SendRequest& request, RingSlot* slot);
  bool progress_sends();
  bool progress_receives();
  bool take_front(RingSlot* slot, RecvRequest& request);
  bool take_early(RecvRequest& request);
  bool store_early(RingSlot* slot);
  bool check(const MessageId& id, size_t bytes, const RecvRequest& request);
  void consume_view(std::span<const ViewPiece> pieces, uint32_t ticket, RecvRequest& request);
  bool is_shared(const RingSlot& slot, const RecvRequest& request);
  void read_shared(RingSlot* slot, RecvRequest& request);
  bool help();
  void view_is_read(uint32_t ticket, RecvRequest& request);
  bool read_view(std::span<const ViewPiece> pieces, RecvRequest& request);
  void finish(RecvRequest& request);
  std::span<const ViewPiece> pieces_of(const RingSlot& slot) const;

  bool connected_ = false;
  Fifo<SendRequest> queued_;  // not in the ring yet, in order
  Fifo<SendRequest> viewed_;  // the peer reads their memory
  Fifo<RecvRequest> posted_;
  uint32_t next_ticket_ = 0;
  bool stalled_ = false;                        // of the oldest message the peer still writes a part
  uint64_t offered_[RingHeader::kOffers] = {};  // as in RingOffer::key; 0: the offer may be used again
  std::unordered_map<uint64_t, Early> early_;
  size_t early_bytes_ = 0;
  std::vector<std::byte> bounce_;
};

}  // namespace weft
