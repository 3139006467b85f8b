#include "transports/ring_wire.hpp"

#include <algorithm>

namespace weft {
namespace {

constexpr size_t kBounce = 64 << 10;  // pulled for a reduction: stays in the second-level cache

// Copies the bytes [offset, offset + size) of a source to `to`.
void gather(const Source& source, size_t offset, std::byte* to, size_t size) {
  for (uint32_t i = 0; i < source.count && size > 0; ++i) {
    const Piece& piece = source.pieces[i];
    if (offset >= piece.bytes) {
      offset -= piece.bytes;
      continue;
    }
    const size_t part = std::min(size, piece.bytes - offset);
    std::memcpy(to, piece.data + offset, part);
    to += part;
    size -= part;
    offset = 0;
  }
}

}  // namespace

void RingWire::attach(void* tx, void* rx, size_t data_bytes) {
  rings_.tx.attach(tx, data_bytes);
  rings_.rx.attach(rx, data_bytes);
  connected_ = true;
}

void RingWire::fail(WireError::Kind kind, std::string text) {
  if (error_.kind != WireError::Kind::none) return;
  error_.kind = kind;
  error_.text = std::move(text);
}

// ---- Sending

void RingWire::send(SendRequest& request) {
  request.done = false;
  std::fill(std::begin(request.scratch), std::end(request.scratch), 0);
  if (connected_ && queued_.empty() && issue(request)) return;
  queued_.push(&request);
}

// Puts the request into the ring, whole; false while there is no room for all of it. A request whose memory the peer
// will read goes to viewed_.
bool RingWire::issue(SendRequest& request) {
  RingSlot* slot = rings_.tx.claim();
  if (slot == nullptr) return false;
  const size_t bytes = request.source.bytes;
  bool issued = false;
  if (request.placed) {
    rings_.tx.publish(slot, request.id, bytes, SlotKind::placed);
    issued = request.done = true;
  } else {
    const bool eager = bytes <= kEager;
    // What has begun as fragments ends so, even where the peer was found to read our memory in the meantime.
    bool possible = false;
    if ((!eager || request.in_place) && request.scratch[1] == 0) issued = issue_view(request, slot, &possible);
    if (!possible) issued = eager ? issue_eager(request, slot) : issue_fragments(request, slot);
  }
  if (issued) count_sent(bytes);
  return issued;
}

bool RingWire::issue_eager(SendRequest& request, RingSlot* slot) {
  const size_t bytes = request.source.bytes;
  if (bytes <= RingSlot::kInline) {
    gather(request.source, 0, slot->payload, bytes);
    rings_.tx.publish(slot, request.id, bytes, SlotKind::inlined);
  } else {
    uint64_t position;
    std::byte* to = rings_.tx.reserve(bytes, &position);
    if (to == nullptr) return false;
    gather(request.source, 0, to, bytes);
    slot->ringed.position = position;
    slot->ringed.part = static_cast<uint32_t>(bytes);
    rings_.tx.publish(slot, request.id, bytes, SlotKind::ringed);
  }
  request.done = true;
  return true;
}

bool RingWire::issue_view(SendRequest& request, RingSlot* slot, bool* possible) {
  RingHeader* header = rings_.tx.header();
  const bool peer_pulls = header->can_pull.load(std::memory_order_acquire) == 1;
  const uint32_t count = request.source.count;
  ViewPiece two[2];
  std::vector<ViewPiece> many(count > 2 ? count : 0);
  ViewPiece* views = count > 2 ? many.data() : two;
  for (uint32_t i = 0; i < count; ++i) {
    const Piece& piece = request.source.pieces[i];
    if (!share(piece, &views[i])) {
      if (!peer_pulls) return false;
      views[i] = {reinterpret_cast<uint64_t>(piece.data), 0, static_cast<uint32_t>(piece.bytes)};
    }
  }
  if (count * sizeof(ViewPiece) > rings_.tx.largest()) return false;
  *possible = true;
  const uint32_t ticket = next_ticket_;
  if (ticket >= RingHeader::kViews && header->view_done[ticket % RingHeader::kViews].load(std::memory_order_acquire) !=
                                          ticket - RingHeader::kViews + 1) {
    return false;
  }
  if (count > 2) {
    uint64_t position;
    std::byte* to = rings_.tx.reserve(count * sizeof(ViewPiece), &position);
    if (to == nullptr) return false;
    std::memcpy(to, views, count * sizeof(ViewPiece));
    slot->view.pieces[0].address = position;
  } else {
    slot->view.pieces[0] = two[0];
    slot->view.pieces[1] = two[1];
  }
  slot->view.count = count;
  slot->view.ticket = ticket;
  ++next_ticket_;
  rings_.tx.publish(slot, request.id, request.source.bytes, SlotKind::view);
  request.scratch[0] = ticket;
  viewed_.push(&request);
  return true;
}

// Cuts a message into as many fragments as fit now; scratch[1] counts the bytes that are in the ring.
bool RingWire::issue_fragments(SendRequest& request, RingSlot* slot) {
  const size_t bytes = request.source.bytes;
  const size_t most = std::min<size_t>(rings_.tx.largest(), 64 << 10);
  while (request.scratch[1] < bytes) {
    if (slot == nullptr) slot = rings_.tx.claim();
    if (slot == nullptr) return false;
    const size_t offset = request.scratch[1];
    const size_t part = std::min(most, bytes - offset);
    uint64_t position;
    std::byte* to = rings_.tx.reserve(part, &position);
    if (to == nullptr) return false;
    gather(request.source, offset, to, part);
    slot->ringed.position = position;
    slot->ringed.part = static_cast<uint32_t>(part);
    slot->ringed.offset = offset;
    rings_.tx.publish(slot, request.id, bytes, SlotKind::fragment);
    if (rings_.tx.consumer_sleeps()) wake_peer();
    request.scratch[1] = offset + part;
    slot = nullptr;
  }
  request.done = true;
  return true;
}

bool RingWire::progress_sends() {
  bool moved = false;
  SendRequest* previous = nullptr;
  for (SendRequest* request = viewed_.head(); request != nullptr;) {
    SendRequest* next = request->next;
    const auto ticket = static_cast<uint32_t>(request->scratch[0]);
    if (rings_.tx.header()->view_done[ticket % RingHeader::kViews].load(std::memory_order_acquire) == ticket + 1) {
      viewed_.remove(previous, request);
      request->done = true;
      moved = true;
    } else {
      previous = request;
    }
    request = next;
  }
  if (!viewed_.empty() && can_push()) moved |= help();
  while (SendRequest* request = queued_.head()) {
    const uint64_t before = request->scratch[1];
    queued_.remove(nullptr, request);  // issue() may link it into viewed_
    if (!issue(*request)) {
      queued_.push_front(request);
      return moved || request->scratch[1] != before;
    }
    moved = true;
  }
  return moved;
}

// ---- Receiving

void RingWire::recv(RecvRequest& request) {
  request.done = false;
  std::fill(std::begin(request.scratch), std::end(request.scratch), 0);
  if (!early_.empty() && take_early(request)) return;
  posted_.push(&request);
}

bool RingWire::check(const MessageId& id, size_t bytes, const RecvRequest& request) {
  if (error_.kind != WireError::Kind::none) return false;
  if (id.signature != request.id.signature) {
    fail(WireError::Kind::mismatch, "the calls of the two ranks do not match");
  } else if (bytes != request.sink.bytes) {
    fail(WireError::Kind::length,
         fmt::format("a message of {} bytes came where {} were expected", bytes, request.sink.bytes));
  } else {
    return true;
  }
  error_.ours = request.id;
  error_.theirs = id;
  return false;
}

void RingWire::finish(RecvRequest& request) {
  request.done = true;
  const size_t slot = request.id.index % RingHeader::kOffers;
  if (offered_[slot] == request.id.key() + 1) {
    offered_[slot] = 0;
    rings_.rx.header()->offers[slot].key.store(0, std::memory_order_relaxed);  // should the numbers ever come again
  }
  ++stats_.messages_received;
  stats_.bytes_received += request.sink.bytes;
}

std::span<const ViewPiece> RingWire::pieces_of(const RingSlot& slot) const {
  if (slot.view.count <= 2) return {slot.view.pieces, slot.view.count};
  const auto* pieces = reinterpret_cast<const ViewPiece*>(rings_.rx.data(slot.view.pieces[0].address));
  return {pieces, slot.view.count};
}

void RingWire::consume_view(std::span<const ViewPiece> pieces, uint32_t ticket, RecvRequest& request) {
  RingHeader* header = rings_.rx.header();
  header->reading.store(1, std::memory_order_seq_cst);
  Forward* forward = request.sink.forward;
  if (forward != nullptr) {
    const uint32_t index = forward->wire == this ? request.id.index : kAnyTime;
    request.sink.also = forward->wire->open_target(forward->id, request.sink.bytes, index);
  }
  const bool read = header->revoked.load(std::memory_order_seq_cst) == 0 && read_view(pieces, request);
  if (request.sink.also != nullptr) {
    forward->wire->close_target();
    forward->done = read;
  }
  header->reading.store(0, std::memory_order_release);
  if (header->revoked.load(std::memory_order_acquire) != 0) {
    fail(WireError::Kind::closed, "the peer gave up while its data was being read");
    return;
  }
  if (read) view_is_read(ticket, request);
}

void RingWire::view_is_read(uint32_t ticket, RecvRequest& request) {
  rings_.rx.header()->view_done[ticket % RingHeader::kViews].store(ticket + 1, std::memory_order_release);
  if (rings_.rx.producer_sleeps()) wake_peer();
  finish(request);
}

// ---- Views that both ends copy

// A peer that reads memory of ours at the same time has no time to help, and one call for all of it is faster.
bool RingWire::is_shared(const RingSlot& slot, const RecvRequest& request) {
  if (slot.view.count != 1 || slot.view.pieces[0].region != 0 || !can_push()) return false;
  const bool begun = rings_.rx.header()->share.taken.load(std::memory_order_relaxed) >> 32 == slot.view.ticket + 1ULL;
  const Sink& sink = request.sink;
  return begun ||
         (viewed_.empty() && slot.bytes >= 2 * RingShare::kChunk && slot.bytes <= 0xffff * RingShare::kChunk &&
          sink.reduce == nullptr && sink.count == 1 && sink.forward == nullptr && slot.view.ticket != UINT32_MAX);
}

// Takes chunks from the front until none is left; then the request is done, or the peer is still at one.
void RingWire::read_shared(RingSlot* slot, RecvRequest& request) {
  RingHeader* header = rings_.rx.header();
  RingShare& share = header->share;
  const uint32_t ticket = slot->view.ticket;
  const uint64_t begun = (uint64_t{ticket} + 1) << 32;
  const uint64_t chunks = (slot->bytes + RingShare::kChunk - 1) / RingShare::kChunk;
  std::byte* to = request.sink.dst[0].data;
  uint64_t taken = share.taken.load(std::memory_order_relaxed);
  if (taken >> 32 != begun >> 32) {
    share.address.store(reinterpret_cast<uint64_t>(to), std::memory_order_relaxed);
    share.written.store(0, std::memory_order_relaxed);
    share.taken.store(taken = begun, std::memory_order_release);
  }
  const auto back = [&taken] { return taken & 0xffff; };
  const auto front = [&taken] { return taken >> 16 & 0xffff; };
  header->reading.store(1, std::memory_order_seq_cst);
  stalled_ = true;
  while (front() + back() < chunks && header->revoked.load(std::memory_order_seq_cst) == 0) {
    if (!share.taken.compare_exchange_weak(taken, taken + (1 << 16), std::memory_order_relaxed)) continue;
    const size_t offset = front() * RingShare::kChunk;
    taken += 1 << 16;
    stalled_ = false;
    if (!pull(slot->view.pieces[0], offset, to + offset, std::min<size_t>(RingShare::kChunk, slot->bytes - offset)))
      break;
    taken = share.taken.load(std::memory_order_relaxed);
  }
  header->reading.store(0, std::memory_order_release);
  if (header->revoked.load(std::memory_order_acquire) != 0) {
    fail(WireError::Kind::closed, "the peer gave up while its data was being read");
  } else if (error_.kind == WireError::Kind::none && share.written.load(std::memory_order_acquire) == back()) {
    share.taken.store(0, std::memory_order_relaxed);
    stalled_ = false;
    view_is_read(ticket, request);
  }
}

// Writes a chunk of a view of ours that the peer copies. False: there is nothing to help with.
bool RingWire::help() {
  RingHeader* header = rings_.tx.header();
  RingShare& share = header->share;
  uint64_t taken = share.taken.load(std::memory_order_acquire);
  if (taken == 0) return false;
  const SendRequest* request = viewed_.head();
  while (request != nullptr && request->scratch[0] != (taken >> 32) - 1) request = request->next;
  if (request == nullptr || request->source.count != 1) return false;
  const Piece& piece = request->source.pieces[0];
  const uint64_t chunks = (piece.bytes + RingShare::kChunk - 1) / RingShare::kChunk, back = taken & 0xffff;
  if ((taken >> 16 & 0xffff) + back >= chunks) return false;
  if (!share.taken.compare_exchange_strong(taken, taken + 1, std::memory_order_acquire)) return true;
  const size_t offset = (chunks - 1 - back) * RingShare::kChunk;
  header->writing.store(1, std::memory_order_seq_cst);
  const bool written = header->withdrawn.load(std::memory_order_seq_cst) == 0 &&
                       push(share.address.load(std::memory_order_relaxed) + offset, piece.data + offset,
                            std::min<size_t>(RingShare::kChunk, piece.bytes - offset));
  header->writing.store(0, std::memory_order_release);
  if (written) share.written.fetch_add(1, std::memory_order_release);
  if (rings_.tx.consumer_sleeps()) wake_peer();
  return true;
}

void RingWire::offer(const MessageId& id, const Piece& where, uint32_t after) {
  uint64_t& offered = offered_[id.index % RingHeader::kOffers];
  ViewPiece view;
  if (!connected_ || offered != 0 || where.bytes <= kEager || !share(where, &view)) return;
  offered = id.key() + 1;
  RingOffer& offer = rings_.rx.header()->offers[id.index % RingHeader::kOffers];
  offer.address.store(view.address, std::memory_order_relaxed);
  offer.region.store(view.region, std::memory_order_relaxed);
  offer.bytes.store(view.bytes, std::memory_order_relaxed);
  offer.signature.store(id.signature, std::memory_order_relaxed);
  offer.after.store(after, std::memory_order_relaxed);
  offer.key.store(id.key() + 1, std::memory_order_release);
}

std::byte* RingWire::open_target(const MessageId& id, size_t bytes, uint32_t reading) {
  if (!connected_ || error_.kind != WireError::Kind::none) return nullptr;
  RingHeader* header = rings_.tx.header();
  const RingOffer& offer = header->offers[id.index % RingHeader::kOffers];
  if (offer.key.load(std::memory_order_acquire) != id.key() + 1) return nullptr;
  if (offer.signature.load(std::memory_order_relaxed) != id.signature) return nullptr;
  if (offer.bytes.load(std::memory_order_relaxed) != bytes) return nullptr;
  const uint32_t after = offer.after.load(std::memory_order_relaxed);
  if (after != kAnyTime && after != reading) return nullptr;
  std::byte* target = map({offer.address.load(std::memory_order_relaxed), offer.region.load(std::memory_order_relaxed),
                           static_cast<uint32_t>(bytes)});
  if (target == nullptr) return nullptr;
  header->writing.store(1, std::memory_order_seq_cst);
  if (header->withdrawn.load(std::memory_order_seq_cst) == 0) return target;
  close_target();
  return nullptr;
}

void RingWire::close_target() { rings_.tx.header()->writing.store(0, std::memory_order_release); }

// False: the memory could not be read, and error_ says why.
bool RingWire::read_view(std::span<const ViewPiece> pieces, RecvRequest& request) {
  size_t offset = 0;
  for (const ViewPiece& piece : pieces) {
    if (piece.region != 0) {
      const std::byte* mapped = map(piece);
      if (mapped == nullptr) {
        fail(WireError::Kind::broken, "shared memory of the peer could not be mapped");
        return false;
      }
      request.sink.consume(offset, mapped, piece.bytes);
    } else if (request.sink.reduce == nullptr && request.sink.count == 1) {
      if (!pull(piece, 0, request.sink.dst[0].data + offset, piece.bytes)) return false;
    } else {
      bounce_.resize(kBounce);
      for (size_t at = 0; at < piece.bytes; at += kBounce) {
        const size_t part = std::min(kBounce, piece.bytes - at);
        if (!pull(piece, at, bounce_.data(), part)) return false;
        request.sink.consume(offset + at, bounce_.data(), part);
      }
    }
    offset += piece.bytes;
  }
  return true;
}

// Consumes the ring's oldest message, which is the one (or a part of the one) that the request is for. True when the
// request is done.
bool RingWire::take_front(RingSlot* slot, RecvRequest& request) {
  if (!check(slot->id(), slot->bytes, request)) return false;
  uint64_t data_end = 0;
  switch (slot->kind) {
    case SlotKind::inlined:
      request.sink.consume(0, slot->payload, slot->bytes);
      finish(request);
      break;
    case SlotKind::ringed:
      request.sink.consume(0, rings_.rx.data(slot->ringed.position), slot->bytes);
      data_end = slot->ringed.position + ((slot->ringed.part + 63) & ~63u);
      finish(request);
      break;
    case SlotKind::fragment:
      request.sink.consume(slot->ringed.offset, rings_.rx.data(slot->ringed.position), slot->ringed.part);
      data_end = slot->ringed.position + ((slot->ringed.part + 63) & ~63u);
      request.scratch[0] += slot->ringed.part;
      if (request.scratch[0] == request.sink.bytes) finish(request);
      break;
    case SlotKind::view:
      if (is_shared(*slot, request)) {
        read_shared(slot, request);
        if (!request.done) return false;
        break;
      }
      consume_view(pieces_of(*slot), slot->view.ticket, request);
      if (slot->view.count > 2) {
        data_end = slot->view.pieces[0].address + ((slot->view.count * sizeof(ViewPiece) + 63) & ~size_t{63});
      }
      break;
    case SlotKind::placed:
      ++stats_.messages_placed;
      finish(request);
      break;
  }
  rings_.rx.pop(data_end);
  if (rings_.rx.producer_sleeps()) wake_peer();
  return request.done;
}

// A large message is enough for one call: what can be sent once it is there should not wait for the next one.
bool RingWire::progress_receives() {
  bool moved = false, large = false;
  stalled_ = false;
  while (!large && !posted_.empty() && error_.kind == WireError::Kind::none) {
    RingSlot* slot = rings_.rx.front();
    if (slot == nullptr) break;
    large = slot->kind == SlotKind::view;
    const uint64_t key = slot->id().key();
    RecvRequest* previous = nullptr;
    RecvRequest* request = posted_.head();
    while (request != nullptr && request->id.key() != key) {
      previous = request;
      request = request->next;
    }
    if (request == nullptr) {
      if (!store_early(slot)) break;
    } else if (take_front(slot, *request)) {
      posted_.remove(previous, request);
    } else if (stalled_) {
      break;
    }
    moved = true;
  }
  return moved;
}

bool RingWire::store_early(RingSlot* slot) {
  if (early_.size() >= kMostEarly || early_bytes_ >= kMostEarlyBytes) return false;
  Early& early = early_[slot->id().key()];
  const bool stored = slot->kind != SlotKind::view && slot->kind != SlotKind::placed;
  if (stored && early.data.empty()) early_bytes_ += slot->bytes;
  early.id = slot->id();
  early.bytes = slot->bytes;
  uint64_t data_end = 0;
  if (slot->kind == SlotKind::view) {
    const auto pieces = pieces_of(*slot);
    early.is_view = true;
    early.ticket = slot->view.ticket;
    early.pieces.assign(pieces.begin(), pieces.end());
    if (slot->view.count > 2) {
      data_end = slot->view.pieces[0].address + ((slot->view.count * sizeof(ViewPiece) + 63) & ~size_t{63});
    }
  } else if (slot->kind == SlotKind::placed) {
    early.placed = true;
  } else if (slot->kind == SlotKind::inlined) {
    early.data.assign(slot->payload, slot->payload + slot->bytes);
    early.received = slot->bytes;
  } else {
    const size_t offset = slot->kind == SlotKind::fragment ? slot->ringed.offset : 0;
    early.data.resize(slot->bytes);
    std::memcpy(early.data.data() + offset, rings_.rx.data(slot->ringed.position), slot->ringed.part);
    early.received += slot->ringed.part;
    data_end = slot->ringed.position + ((slot->ringed.part + 63) & ~63u);
  }
  rings_.rx.pop(data_end);
  return true;
}

// Serves a receive from what came early. False when nothing did; a message of which only a part came early is taken
// over and its rest arrives as usual.
bool RingWire::take_early(RecvRequest& request) {
  auto found = early_.find(request.id.key());
  if (found == early_.end()) return false;
  Early early = std::move(found->second);
  early_.erase(found);
  early_bytes_ -= early.data.size();
  if (!check(early.id, early.bytes, request)) return false;
  if (early.is_view) {
    consume_view(early.pieces, early.ticket, request);
    return request.done;
  }
  if (early.placed) {
    ++stats_.messages_placed;
    finish(request);
    return true;
  }
  request.sink.consume(0, early.data.data(), early.received);
  request.scratch[0] = early.received;
  if (early.received == early.bytes) finish(request);
  return request.done;
}

// ---- Both

bool RingWire::progress() {
  if (!connected_) return progress_connection();
  bool moved = progress_connection();
  if (!posted_.empty()) moved |= progress_receives();
  if (!queued_.empty() || !viewed_.empty()) moved |= progress_sends();
  return moved;
}

bool RingWire::arm() {
  if (!connected_) return true;
  rings_.rx.give_back();
  if (rings_.rx.producer_sleeps()) wake_peer();
  rings_.rx.header()->consumer_sleeps.store(1, std::memory_order_relaxed);
  rings_.tx.header()->producer_sleeps.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!progress()) return true;
  disarm();
  return false;
}

void RingWire::disarm() {
  if (!connected_) return;
  rings_.rx.header()->consumer_sleeps.store(0, std::memory_order_relaxed);
  rings_.tx.header()->producer_sleeps.store(0, std::memory_order_relaxed);
  drain_wakeups();
}

void RingWire::early(std::vector<MessageId>* ids) const {
  for (const auto& [key, message] : early_) ids->push_back(message.id);
}

void RingWire::cancel() {
  queued_.clear();
  viewed_.clear();
  posted_.clear();
  early_.clear();
  early_bytes_ = 0;
  if (connected_) {
    rings_.tx.header()->revoked.store(1, std::memory_order_seq_cst);
    rings_.rx.header()->withdrawn.store(1, std::memory_order_seq_cst);
  }
  fail(WireError::Kind::closed, "cancelled");
}

}  // namespace weft
