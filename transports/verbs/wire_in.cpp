// The receiving side of the wire.
#include <algorithm>
#include <cstring>

#include "transports/clash.hpp"
#include "transports/verbs/wire.hpp"

namespace weft::verbs {
namespace {

constexpr size_t kCacheLine = 64;
// After a goodbye what was written before it is here, but perhaps not polled.
constexpr std::chrono::milliseconds kLeftGrace{50};

// Fragments are cut at whole cache lines, and at whole elements where those are to be combined.
uint32_t unit_of(const Sink& sink, size_t fragment_bytes) {
  const size_t element = sink.reduce != nullptr ? sink.element : 1;
  const size_t step = kCacheLine % element == 0 ? kCacheLine : element;
  size_t unit = std::max(fragment_bytes - fragment_bytes % step, step);
  while ((sink.bytes + unit - 1) / unit > kMostFragments) unit *= 2;
  return static_cast<uint32_t>(unit);
}

}  // namespace

void VerbsWire::recv(RecvRequest& request) {
  request.done = false;
  if (dead_) return;
  ++requests_;
  const size_t bytes = request.sink.bytes;
  if (Early* early = early_.count() > 0 ? early_.find(request.id.key()) : nullptr) {
    if (!matches(request.id, bytes, early->frame)) return;
    if (early->frame.kind == Kind::eager) return deliver(*early, request);
    early_.release(*early);  // an announce
  }
  if (bytes > kEagerBytes) {
    if (const Status opened = open_slot(request); !opened.ok()) {
      return fail(WireError::Kind::broken, opened.message());
    }
  }
  posted_.insert(request.id.key(), request);
  if (!out_.empty()) post_frames();
}

// A place for the message to land: where it belongs, if that is one piece which every rail can write to; else a block
// of ours.
Status VerbsWire::open_slot(RecvRequest& request) {
  if (free_slots_.empty()) {
    if (slots_.size() == kSlots)
      return weft::error(weftSystemError, "verbs: more than {} large receives at once", kSlots);
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t slot = free_slots_.back();
  Incoming& incoming = slots_[slot];
  const Sink& sink = request.sink;
  incoming.landing = nullptr;
  incoming.entries = {};
  bool direct = sink.reduce == nullptr && sink.count == 1;
  for (size_t i = 0; direct && i < fabric_->rails().size(); ++i) {
    const Rail& rail = fabric_->rails()[i];
    if (rail.device == nullptr) continue;
    auto entry = rail.device->memory().take(sink.dst[0].data, sink.bytes);
    direct = entry.ok();
    if (direct) incoming.entries[i] = *entry;
  }
  if (direct) {
    incoming.base = sink.dst[0].data;
  } else {
    for (size_t rail = 0; rail < kMostRails; ++rail) release_entry(incoming, rail);
    auto block = fabric_->blocks().take(sink.bytes);
    if (!block.ok()) return block.status();
    incoming.landing = *block;
    incoming.base = (*block)->base;
  }
  free_slots_.pop_back();
  incoming.request = &request;
  ++incoming.generation;
  incoming.came = 0;
  incoming.unit = unit_of(sink, static_cast<size_t>(fabric_->config().verbs_fragment_bytes));
  incoming.fragments = static_cast<uint32_t>((sink.bytes + incoming.unit - 1) / incoming.unit);
  incoming.bits.assign((incoming.fragments + 7) / 8, '\0');
  request.scratch[0] = slot;
  push_clear(slot);
  return {};
}

void VerbsWire::push_clear(uint32_t slot) {
  const RecvRequest& request = *slots_[slot].request;
  push({.frame = frame_of(Kind::clear, request.id, request.sink.bytes), .slot = slot});
}

void VerbsWire::release_entry(Incoming& incoming, size_t rail) {
  Registrations::Entry*& entry = incoming.entries[rail];
  if (entry != nullptr) fabric_->rails()[rail].device->memory().release(entry);
  entry = nullptr;
}

// As the pairs are now.
Clear VerbsWire::clear_of(uint32_t slot) {
  Incoming& incoming = slots_[slot];
  Clear clear;
  clear.address = reinterpret_cast<uint64_t>(incoming.base);
  clear.slot = slot;
  clear.generation = incoming.generation;
  clear.unit = incoming.unit;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const Pair& pair = *pairs_[i];
    if (!pair.living()) continue;
    const auto rail = static_cast<size_t>(pair.rail);
    if (incoming.landing != nullptr) {
      const ibv_mr* region = incoming.landing->regions[rail];
      if (region != nullptr) clear.pair[i] = {region->rkey, pair.epoch};
      continue;
    }
    Registrations::Entry*& entry = incoming.entries[rail];
    if (entry == nullptr) {  // the rail has come back meanwhile
      auto taken = fabric_->rails()[rail].device->memory().take(incoming.base, incoming.request->sink.bytes);
      if (!taken.ok()) continue;
      entry = *taken;
    }
    clear.pair[i] = {entry->keys.rkey, pair.epoch};
  }
  return clear;
}

void VerbsWire::close_slot(uint32_t slot) {
  Incoming& incoming = slots_[slot];
  if (incoming.landing != nullptr) fabric_->blocks().give(incoming.landing);
  for (size_t rail = 0; rail < kMostRails; ++rail) release_entry(incoming, rail);
  incoming.landing = nullptr;
  incoming.request = nullptr;
  free_slots_.push_back(slot);
}

void VerbsWire::frame_came(const std::byte* data, size_t bytes) {
  if (dead_) return;
  Frame frame;
  std::memcpy(&frame, data, std::min(bytes, sizeof frame));
  if (const char* what = fault(frame, bytes)) {
    return fail(WireError::Kind::broken, fmt::format("rank {} sent what is no frame of ours: {}", peer(), what));
  }
  if (left_) moved_at_ = Clock::now();
  acknowledge(frame.taken);
  if (frame.kind == Kind::credit) return;
  if (taken_.has(frame.number)) return;  // it came by a pair that died after it
  taken_.add(frame.number);
  data += sizeof frame;
  switch (frame.kind) {
    case Kind::eager:
      return on_eager(frame, data);
    case Kind::clear: {
      Clear clear;
      std::memcpy(&clear, data, sizeof clear);
      return on_clear(frame, clear);
    }
    case Kind::announce:
      return on_announce(frame);
    case Kind::credit:
      return;
  }
}

void VerbsWire::on_eager(const Frame& frame, const std::byte* data) {
  if (RecvRequest* request = posted_.find(frame.key())) {
    if (!matches(request->id, request->sink.bytes, frame)) return;
    posted_.take(frame.key());
    request->sink.consume(0, data, frame.length);
    return arrived(*request);
  }
  if (early_.find(frame.key()) != nullptr) {
    return fail(WireError::Kind::broken,
                fmt::format("rank {} sent message {}.{} twice", peer(), frame.sequence, frame.index));
  }
  Early& early = early_.add(frame);
  if (frame.length > 0) std::memcpy(early.data.get(), data, frame.length);
  early.complete = true;
}

// A second clear for a message tells of pairs that came up after the first one; they may come in either order, and
// after the message is done.
void VerbsWire::on_clear(const Frame& frame, const Clear& clear) {
  const auto merge = [&](Clear* known) {
    for (int i = 0; i < kMostRails; ++i) {
      if (clear.pair[i].epoch > known->pair[i].epoch) known->pair[i] = clear.pair[i];
    }
  };
  if (clear.slot >= kSlots || clear.unit == 0 || (frame.total + clear.unit - 1) / clear.unit > kMostFragments) {
    return fail(WireError::Kind::broken, fmt::format("rank {} sent a clear that makes no sense", peer()));
  }
  if (clear.slot < finished_.size() && finished_[clear.slot] == clear.generation + 1) return;
  for (const auto& message : outgoing_) {
    if (message->request == nullptr || message->clear.slot != clear.slot ||
        message->clear.generation != clear.generation) {
      continue;
    }
    return merge(&message->clear);
  }
  if (SendRequest* request = waiting_.find(frame.key())) {
    if (!matches(request->id, request->source.bytes, frame)) return;
    waiting_.take(frame.key());
    return begin(*request, clear);
  }
  Early* early = early_clears_.find(frame.key());
  Clear known = clear;
  if (early != nullptr) {
    std::memcpy(&known, early->data.get(), sizeof known);
    merge(&known);
  } else {
    early = &early_clears_.add(frame);
  }
  std::memcpy(early->data.get(), &known, sizeof known);
}

// The length was agreed on before the clear went out.
void VerbsWire::fragment_came(Lane& lane, uint32_t immediate, size_t bytes) {
  if (dead_) return;
  const uint32_t slot = immediate >> 20, fragment = immediate & (kMostFragments - 1);
  fabric_->stats(lane.rail).bytes_received += bytes;
  if (left_) moved_at_ = Clock::now();
  if (slot >= slots_.size() || slots_[slot].request == nullptr || fragment >= slots_[slot].fragments ||
      slots_[slot].has(fragment)) {
    return fail(
        WireError::Kind::broken,
        fmt::format("rank {} wrote fragment {} of slot {}, which is not being received", peer(), fragment, slot));
  }
  Incoming& incoming = slots_[slot];
  RecvRequest& request = *incoming.request;
  incoming.bits[fragment / 8] = static_cast<char>(incoming.bits[fragment / 8] | 1 << (fragment % 8));
  if (incoming.landing != nullptr) {
    const size_t offset = size_t{fragment} * incoming.unit;
    request.sink.consume(offset, incoming.base + offset, std::min<size_t>(incoming.unit, request.sink.bytes - offset));
  }
  if (++incoming.came < incoming.fragments) return;
  posted_.take(request.id.key());
  close_slot(slot);
  arrived(request);
}

// A large message waits over there. If we expect it we have said so already; else this is for our recv() to find.
void VerbsWire::on_announce(const Frame& frame) {
  if (RecvRequest* request = posted_.find(frame.key())) {
    matches(request->id, request->sink.bytes, frame);
  } else if (early_.find(frame.key()) == nullptr) {
    early_.add(frame);
  }
}

// The peer has failed by it, and has said what its own message is.
void VerbsWire::on_refuse(const RefuseNote& refuse) { fail(refusal(peer(), refuse.theirs, refuse.ours, refuse.bytes)); }

void VerbsWire::deliver(Early& early, RecvRequest& request) {
  request.sink.consume(0, early.data.get(), early.frame.length);
  early_.release(early);
  arrived(request);
}

void VerbsWire::arrived(RecvRequest& request) {
  --requests_;
  ++stats_.messages_received;
  stats_.bytes_received += request.sink.bytes;
  request.done = true;
}

// If not, the wire has failed and the peer is told.
bool VerbsWire::matches(const MessageId& ours, size_t bytes, const Frame& theirs) {
  std::optional<WireError> error = clash(peer(), ours, bytes, theirs.id(), theirs.total);
  if (!error.has_value()) return true;
  control_.send(pack(RefuseNote{ours, theirs.id(), bytes}));
  fail(std::move(*error));
  return false;
}

void VerbsWire::check_left() {
  if (requests_ == 0 || taken_.upto != their_frames_ || Clock::now() - moved_at_ < kLeftGrace) return;
  fail(WireError::Kind::closed, fmt::format("rank {} has left, with messages to or from it outstanding", peer()));
}

void VerbsWire::fail(WireError why) {
  dead_ = true;
  if (error_.kind == WireError::Kind::none) error_ = std::move(why);
}

}  // namespace weft::verbs
