// The sending side of the wire, and its life.
#include "transports/verbs/wire.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "log/log.hpp"
#include "transports/verbs/striping.hpp"

namespace weft::verbs {
namespace {

using std::chrono::milliseconds;

constexpr size_t kFragmentsEach = 24;     // of them for fragments: frames find room
constexpr uint32_t kUnsignaled = 15;      // frames in a row that do not tell of their completion
constexpr size_t kLaneFragments = 4;      // fragments in flight on a lane
constexpr milliseconds kFlushTime{2000};  // for a goodbye
constexpr size_t kIdleBytes = 256 << 10;  // kept for operations that have not begun here
constexpr uint32_t kCallsBetweenNotes = 128;
constexpr milliseconds kStall{5000};  // until the log tells
constexpr uint64_t kPatience = 100;   // ticks until an announce

uint64_t& patience(SendRequest& request) { return request.scratch[0]; }

}  // namespace

VerbsWire::VerbsWire(int peer, std::shared_ptr<Fabric> fabric, Deadline deadline, std::function<void()> on_gone)
    : Wire(peer), fabric_(std::move(fabric)), deadline_(deadline), on_gone_(std::move(on_gone)) {
  fabric_->join(this);
}

VerbsWire::~VerbsWire() {
  cancel();
  fabric_->part(this);
}

void VerbsWire::gone() {
  if (on_gone_) std::exchange(on_gone_, nullptr)();
}

void VerbsWire::adopt(uint32_t /*channel*/, Fd fd) {
  if (dead_ || control_.is_open()) return;
  const Status opened = control_.open(std::move(fd), fabric_->context().poller);
  if (!opened.ok()) return fail(WireError::Kind::broken, opened.message());
  control_.send(pack(hello()));
}

void VerbsWire::connection_failed(const std::string& why) { fail(WireError::Kind::broken, why); }

bool VerbsWire::connected() const {
  return std::any_of(pairs_.begin(), pairs_.end(), [](const auto& pair) { return pair->state == Pair::State::up; });
}

// ---- Frames

void VerbsWire::send(SendRequest& request) {
  request.done = false;
  if (dead_) return;
  ++requests_;
  Out out;
  out.request = &request;
  if (request.source.bytes <= kEagerBytes) {
    out.frame = frame_of(Kind::eager, request.id, request.source.bytes);
    out.frame.length = static_cast<uint32_t>(request.source.bytes);
    if (out_.empty() && post(out)) return;
    return out_.push(out);
  }
  patience(request) = 0;
  Early* early = early_clears_.count() > 0 ? early_clears_.find(request.id.key()) : nullptr;
  if (early == nullptr) return waiting_.insert(request.id.key(), request);
  const Frame frame = early->frame;
  Clear clear;
  std::memcpy(&clear, early->data.get(), sizeof clear);
  early_clears_.release(*early);
  if (!matches(request.id, request.source.bytes, frame)) return;
  begin(request, clear);
  post_fragments();
}

Lane* VerbsWire::lane_for_frame() {
  Lane* best = nullptr;
  for (const auto& pair : pairs_) {
    if (pair->state != Pair::State::up) continue;
    for (const auto& lane : pair->lanes) {
      const Rail& rail = fabric_->rails()[static_cast<size_t>(lane->rail)];
      if (lane->failed || lane->posted.size() >= kSendDepth || rail.sends >= rail.most_sends) continue;
      if (best == nullptr || lane->bytes < best->bytes) best = lane.get();
    }
  }
  return best;
}

bool VerbsWire::post_to(Lane& lane, const std::byte* data, uint32_t bytes, const ibv_mr* region, bool signaled) {
  Rail& rail = fabric_->rails()[static_cast<size_t>(lane.rail)];
  signaled |= lane.unsignaled >= kUnsignaled || lane.posted.size() + 8 >= kSendDepth;
  ibv_sge piece{reinterpret_cast<uint64_t>(data), bytes, region == nullptr ? 0 : region->lkey};
  ibv_send_wr work{}, *bad = nullptr;
  work.wr_id = ++lane.serial;
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = IBV_WR_SEND;
  if (signaled) work.send_flags |= IBV_SEND_SIGNALED;
  if (bytes <= rail.most_inline) work.send_flags |= IBV_SEND_INLINE;
  if (const int problem = ::ibv_post_send(lane.queue, &work, &bad); problem != 0) {
    --lane.serial;
    lane_failed(lane, fmt::format("ibv_post_send: {}", std::strerror(problem)));
    return false;
  }
  lane.unsignaled = signaled ? 0 : lane.unsignaled + 1;
  lane.posted.push({.serial = lane.serial});
  ++rail.sends;
  fabric_->stats(lane.rail).bytes_sent += bytes;
  return true;
}

// Frames that the peer may not have are kept in their buffers.
bool VerbsWire::post(Out& out) {
  if (sent_last_ - acked_ >= kCredits) return false;
  Lane* lane = lane_for_frame();
  if (lane == nullptr) return false;
  if (out.slot < kSlots && slots_[out.slot].request == nullptr) return true;  // it is over, by another clear
  auto buffer = fabric_->frames().take();
  if (!buffer.ok()) {
    fail(WireError::Kind::broken, buffer.status().message());
    return false;
  }
  const uint32_t number = sent_last_ + 1;
  std::byte* data = buffer->data;
  size_t bytes = sizeof(Frame);
  if (out.request != nullptr) {
    for (uint32_t i = 0; i < out.request->source.count; ++i) {
      const Piece& piece = out.request->source.pieces[i];
      if (piece.bytes > 0) std::memcpy(data + bytes, piece.data, piece.bytes);
      bytes += piece.bytes;
    }
  } else if (out.slot < kSlots) {
    const Clear clear = clear_of(out.slot);
    out.frame.length = sizeof clear;
    std::memcpy(data + bytes, &clear, sizeof clear);
    bytes += sizeof clear;
  }
  out.frame.number = number;
  out.frame.taken = told_ = taken_.upto;
  std::memcpy(data, &out.frame, sizeof(Frame));
  const Pair& pair = *pairs_[static_cast<size_t>(lane->pair)];
  if (!post_to(*lane, data, static_cast<uint32_t>(bytes), buffer->block->regions[static_cast<size_t>(lane->rail)],
               false)) {
    fabric_->frames().give(*buffer);
    return false;
  }
  sent_last_ = number;
  sent_[number % sent_.size()] = {*buffer, static_cast<uint32_t>(bytes), pair.number, pair.epoch};
  if (SendRequest* request = out.request) {
    --requests_;
    ++stats_.messages_sent;
    stats_.bytes_sent += request->source.bytes;
    request->done = true;
  }
  return true;
}

bool VerbsWire::post_frames() {
  bool moved = repost();
  while (!out_.empty() && resend_.empty() && !dead_ && post(out_.front())) {
    out_.pop();
    moved = true;
  }
  return moved;
}

// What was lost with a pair, over another one.
bool VerbsWire::repost() {
  bool moved = false;
  while (!resend_.empty()) {
    Lane* lane = lane_for_frame();
    if (lane == nullptr) return moved;
    const uint32_t number = resend_.back();
    Sent& sent = sent_[number % sent_.size()];
    if (sent.buffer.data != nullptr) {
      const ibv_mr* region = sent.buffer.block->regions[static_cast<size_t>(lane->rail)];
      if (!post_to(*lane, sent.buffer.data, sent.bytes, region, false)) return moved;
      sent.pair = lane->pair;
      sent.epoch = pairs_[static_cast<size_t>(lane->pair)]->epoch;
    }
    resend_.pop_back();
    moved = true;
  }
  return moved;
}

void VerbsWire::acknowledge(uint32_t upto) {
  if (upto - acked_ > sent_last_ - acked_) return;  // an older one
  for (; acked_ != upto; ++acked_) {
    Sent& sent = sent_[(acked_ + 1) % sent_.size()];
    if (sent.buffer.data != nullptr) fabric_->frames().give(sent.buffer);
    sent = {};
  }
}

bool VerbsWire::post_credit(Lane* lane, bool signaled) {
  if (lane == nullptr) return false;
  if (credit_buffer_.data == nullptr) {
    auto buffer = fabric_->frames().take();
    if (!buffer.ok()) return false;
    credit_buffer_ = *buffer;
  }
  Frame frame;
  frame.taken = taken_.upto;
  std::memcpy(credit_buffer_.data, &frame, sizeof frame);
  if (!post_to(*lane, credit_buffer_.data, sizeof frame, credit_buffer_.block->regions[static_cast<size_t>(lane->rail)],
               signaled)) {
    return false;
  }
  told_ = taken_.upto;
  return true;
}

// ---- Fragments

void VerbsWire::begin(SendRequest& request, const Clear& clear) {
  if (free_outgoing_.empty()) {
    outgoing_.push_back(std::make_unique<Outgoing>());
    free_outgoing_.push_back(outgoing_.back().get());
  }
  Outgoing& message = *free_outgoing_.back();
  free_outgoing_.pop_back();
  message.request = &request;
  message.clear = clear;
  message.fragments = static_cast<uint32_t>((request.source.bytes + clear.unit - 1) / clear.unit);
  message.next = message.done = 0;
  message.again.clear();
  message.listed = false;
  message.bounced = {};
  list(message);
}

void VerbsWire::list(Outgoing& message) {
  if (std::exchange(message.listed, true)) return;
  const uint32_t sequence = message.request->id.sequence;
  auto flow = std::find_if(flows_.begin(), flows_.end(), [&](const Flow& each) { return each.sequence == sequence; });
  if (flow == flows_.end()) flow = flows_.insert(flows_.end(), {sequence, {}});
  flow->messages.push_back(&message);
}

bool VerbsWire::usable(const Outgoing& message, const Lane& lane) const {
  const Pair& pair = *pairs_[static_cast<size_t>(lane.pair)];
  return pair.state == Pair::State::up && !lane.failed && message.clear.pair[lane.pair].epoch == pair.epoch;
}

// One fragment of each operation in turn, as long as a lane takes any.
bool VerbsWire::post_fragments() {
  bool moved = false;
  for (size_t refused = 0; !flows_.empty() && refused < flows_.size() && !dead_;) {
    if (next_flow_ >= flows_.size()) next_flow_ = 0;
    Flow& flow = flows_[next_flow_];
    if (!post_fragment(flow)) {
      ++refused;
      ++next_flow_;
      continue;
    }
    refused = 0;
    moved = true;
    if (flow.messages.empty()) {
      flows_.erase(flows_.begin() + static_cast<std::ptrdiff_t>(next_flow_));
    } else {
      ++next_flow_;
    }
  }
  return moved;
}

bool VerbsWire::post_fragment(Flow& flow) {
  Outgoing& message = *flow.messages.front();
  LaneLoad loads[64];
  Lane* lanes[64];
  size_t count = 0;
  for (const auto& pair : pairs_) {
    for (const auto& lane : pair->lanes) {
      if (count == 64) break;
      const Rail& rail = fabric_->rails()[static_cast<size_t>(lane->rail)];
      const bool room =
          lane->fragments < kFragmentsEach && lane->posted.size() < kSendDepth - 8 && rail.sends < rail.most_sends;
      lanes[count] = lane.get();
      loads[count++] = {.usable = room && usable(message, *lane), .bytes = lane->bytes};
    }
  }
  const int chosen = least_loaded({loads, count}, kLaneFragments * message.clear.unit, next_lane_);
  if (chosen < 0) return false;
  const bool again = !message.again.empty();
  const uint32_t fragment = again ? message.again.back() : message.next;
  if (!post_fragment(message, fragment, *lanes[chosen])) return false;
  next_lane_ = static_cast<size_t>(chosen) + 1;
  if (again) {
    message.again.pop_back();
  } else {
    ++message.next;
  }
  if (message.again.empty() && message.next == message.fragments) {
    message.listed = false;
    flow.messages.erase(flow.messages.begin());
  }
  return true;
}

// The fragment's bytes as a rail's device reads them; copied together where they cannot be registered, or are in too
// many pieces. 0: no memory for that.
uint32_t VerbsWire::gather(Outgoing& message, uint32_t fragment, int rail_number, ibv_sge* pieces, Block** bounce) {
  Rail& rail = fabric_->rails()[static_cast<size_t>(rail_number)];
  const Source& source = message.request->source;
  auto& entries = message.pieces[static_cast<size_t>(rail_number)];
  bool& bounced = message.bounced[static_cast<size_t>(rail_number)];
  for (uint32_t i = 0; entries.size() < source.count && !bounced; ++i) {
    auto entry = source.pieces[i].bytes == 0
                     ? Result<Registrations::Entry*>(nullptr)
                     : rail.device->memory().take(source.pieces[i].data, source.pieces[i].bytes);
    bounced = !entry.ok();
    if (!bounced) entries.push_back(*entry);
  }
  const size_t begin = message.offset(fragment), end = begin + message.length(fragment);
  uint32_t count = 0;
  size_t at = 0;
  std::byte* copy = nullptr;
  const auto copy_from_here = [&] {
    auto block = fabric_->blocks().take(end - begin);
    if (block.ok()) copy = (*(*bounce = *block)).base;
    count = 0;
    return block.ok();
  };
  if (bounced && !copy_from_here()) return 0;
  for (uint32_t i = 0; i < source.count; ++i) {
    const Piece& piece = source.pieces[i];
    const size_t from = std::max(begin, at), to = std::min(end, at + piece.bytes);
    if (from < to) {
      if (copy == nullptr && count == rail.most_pieces) {
        if (!copy_from_here()) return 0;
        i = UINT32_MAX;  // once more, from the first piece
        at = 0;
        continue;
      }
      std::byte* data = piece.data + (from - at);
      if (copy != nullptr) {
        std::memcpy(copy + (from - begin), data, to - from);
      } else {
        pieces[count++] = {reinterpret_cast<uint64_t>(data), static_cast<uint32_t>(to - from), entries[i]->keys.lkey};
      }
    }
    at += piece.bytes;
  }
  if (copy == nullptr) return count;
  pieces[0] = {reinterpret_cast<uint64_t>(copy), static_cast<uint32_t>(end - begin),
               (*bounce)->regions[static_cast<size_t>(rail_number)]->lkey};
  return 1;
}

bool VerbsWire::post_fragment(Outgoing& message, uint32_t fragment, Lane& lane) {
  Rail& rail = fabric_->rails()[static_cast<size_t>(lane.rail)];
  ibv_sge pieces[kMostPieces];
  Block* bounce = nullptr;
  const uint32_t count = gather(message, fragment, lane.rail, pieces, &bounce);
  if (count == 0) {
    fail(WireError::Kind::broken, "verbs: no memory that can be registered");
    return false;
  }
  const auto length = static_cast<uint32_t>(message.length(fragment));
  ibv_send_wr work{}, *bad = nullptr;
  work.wr_id = ++lane.serial;
  work.sg_list = pieces;
  work.num_sge = static_cast<int>(count);
  work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  work.send_flags = IBV_SEND_SIGNALED;
  work.imm_data = htonl(immediate(message.clear.slot, fragment));
  work.wr.rdma.remote_addr = message.clear.address + message.offset(fragment);
  work.wr.rdma.rkey = message.clear.pair[lane.pair].rkey;
  if (const int problem = ::ibv_post_send(lane.queue, &work, &bad); problem != 0) {
    --lane.serial;
    if (bounce != nullptr) fabric_->blocks().give(bounce);
    lane_failed(lane, fmt::format("ibv_post_send: {}", std::strerror(problem)));
    return false;
  }
  lane.unsignaled = 0;
  lane.posted.push({&message, fragment, length, bounce, lane.serial});
  ++lane.fragments;
  lane.bytes += length;
  ++rail.sends;
  fabric_->stats(lane.rail).bytes_sent += length;
  return true;
}

void VerbsWire::completed(Lane& lane, uint64_t serial) {
  Rail& rail = fabric_->rails()[static_cast<size_t>(lane.rail)];
  while (!lane.posted.empty() && lane.posted.front().serial <= serial) {
    const Lane::Posted posted = lane.posted.front();
    lane.posted.pop();
    --rail.sends;
    if (posted.message == nullptr) continue;
    --lane.fragments;
    lane.bytes -= posted.bytes;
    if (posted.bounce != nullptr) fabric_->blocks().give(posted.bounce);
    if (!dead_) fragment_done(*posted.message);
  }
}

// What stands before it went out; it did not.
void VerbsWire::flushed(Lane& lane, uint64_t serial) {
  completed(lane, serial - 1);
  if (lane.posted.empty() || lane.posted.front().serial != serial) return;
  const Lane::Posted posted = lane.posted.front();
  lane.posted.pop();
  --fabric_->rails()[static_cast<size_t>(lane.rail)].sends;
  if (posted.message == nullptr) return;
  if (posted.bounce != nullptr) fabric_->blocks().give(posted.bounce);
  pairs_[static_cast<size_t>(lane.pair)]->limbo.push_back({posted.message, posted.fragment});
}

void VerbsWire::fragment_done(Outgoing& message) {
  if (++message.done == message.fragments) finish(message);
}

void VerbsWire::finish(Outgoing& message) {
  SendRequest& request = *message.request;
  const uint32_t slot = message.clear.slot;
  if (finished_.size() <= slot) finished_.resize(slot + 1);
  finished_[slot] = message.clear.generation + 1;
  release(message);
  free_outgoing_.push_back(&message);
  --requests_;
  ++stats_.messages_sent;
  stats_.bytes_sent += request.source.bytes;
  request.done = true;
}

void VerbsWire::release_pieces(Outgoing& message, size_t rail) {
  for (Registrations::Entry* entry : message.pieces[rail]) {
    if (entry != nullptr) fabric_->rails()[rail].device->memory().release(entry);
  }
  message.pieces[rail].clear();
}

void VerbsWire::release(Outgoing& message) {
  for (size_t rail = 0; rail < kMostRails; ++rail) release_pieces(message, rail);
  message.request = nullptr;
}

// ---- Life

bool VerbsWire::progress() {
  if (dead_ || requests_ == 0) return false;
  bool moved = fabric_->poll();
  // A wire that is busy is not ticked.
  if (!was_up_ || ++calls_ % kCallsBetweenNotes == 0) {
    fabric_->tick();
    take_notes();
    look_at_pairs();
  }
  if (trouble_) mend();
  if (dead_) return moved;
  if (!out_.empty() || !resend_.empty()) moved |= post_frames();
  if (!flows_.empty()) moved |= post_fragments();
  if (taken_.upto - told_ >= kCredits / 2) moved |= post_credit(lane_for_frame(), false);
  if (left_ && !dead_) check_left();
  return moved;
}

bool VerbsWire::arm() {
  take_notes();
  if (progress() || error_.kind != WireError::Kind::none) return false;
  return fabric_->arm();
}

void VerbsWire::tick() {
  if (dead_) return;
  fabric_->tick();
  fabric_->poll();
  take_notes();
  mend();
  look_at_pairs();
  if (dead_) return;
  post_frames();
  tell_of_stall();
  // Idle, it still takes a little, so that a peer's few small messages are done.
  if (taken_.upto - told_ >= kCredits / 2 && early_.bytes() < kIdleBytes) post_credit(lane_for_frame(), false);
  if (left_) check_left();
  waiting_.for_each([&](SendRequest& request) {
    if (++patience(request) != kPatience) return;
    push({.frame = frame_of(Kind::announce, request.id, request.source.bytes)});
  });
}

// One line for whoever looks for the cause of a hang.
void VerbsWire::tell_of_stall() {
  const uint64_t mark = requests_ + sent_last_ + acked_ + taken_.upto + stats_.bytes_sent + stats_.bytes_received;
  const auto now = Clock::now();
  if (requests_ == 0 || mark != std::exchange(stall_mark_, mark)) stall_since_ = now;
  if (now - stall_since_ < kStall) return;
  stall_since_ = now;
  if (!log_enabled(LogLevel::debug)) return;
  std::string pairs, receives;
  for (const auto& pair : pairs_) {
    pairs += fmt::format(" [{} epoch {}, {} of limbo", static_cast<int>(pair->state), pair->epoch, pair->limbo.size());
    for (const auto& lane : pair->lanes)
      pairs += fmt::format(", {} posted, {} bytes", lane->posted.size(), lane->bytes);
    pairs += "]";
  }
  for (const Incoming& incoming : slots_) {
    if (incoming.request == nullptr) continue;
    receives += fmt::format(" [{}.{}: {} of {}]", incoming.request->id.sequence, incoming.request->id.index,
                            incoming.came, incoming.fragments);
  }
  std::string sends;
  for (const auto& message : outgoing_) {
    if (message->request == nullptr) continue;
    sends += fmt::format(" [{}.{}: {} posted, {} again, {} done of {}, listed {}, epochs",
                         message->request->id.sequence, message->request->id.index, message->next,
                         message->again.size(), message->done, message->fragments, message->listed);
    for (size_t i = 0; i < pairs_.size(); ++i) sends += fmt::format(" {}", message->clear.pair[i].epoch);
    sends += "]";
  }
  log(LogLevel::debug,
      "verbs: rank {}: nothing moves: {} requests, {} receives posted, {} sends wait for a clear; frames: sent {}, "
      "acknowledged {}, {} to send, {} to send again; taken {} (told {}); pairs{}; receiving{}; sending{}",
      peer(), requests_, posted_.size(), waiting_.size(), sent_last_, acked_, out_.size(), resend_.size(), taken_.upto,
      told_, pairs, receives, sends);
}

void VerbsWire::early(std::vector<MessageId>* ids) const {
  early_.for_each([ids](const Early& early) { ids->push_back(early.frame.id()); });
}

void VerbsWire::forget() {
  posted_.clear();
  waiting_.clear();
  early_.clear();
  early_clears_.clear();
  out_.clear();
  resend_.clear();
  flows_.clear();
  for (auto& message : outgoing_) {
    if (message->request != nullptr) release(*message);
  }
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].request != nullptr) close_slot(slot);
  }
  for (Sent& sent : sent_) {
    if (sent.buffer.data != nullptr) fabric_->frames().give(sent.buffer);
    sent = {};
  }
  if (credit_buffer_.data != nullptr) fabric_->frames().give(std::exchange(credit_buffer_, {}));
  requests_ = 0;
}

// No queue pair is left when memory is forgotten: a delayed peer writes nowhere.
void VerbsWire::cancel() {
  dead_ = true;
  for (auto& pair : pairs_) {
    take_down(*pair);
    pair->limbo.clear();
  }
  forget();
  control_.close();
  gone();
}

// What was sent is over there before we go.
void VerbsWire::close() {
  if (dead_) return cancel();
  const Deadline deadline = Deadline::after(kFlushTime);
  const auto busy = [&] {
    bool busy = false;
    for (auto& pair : pairs_) {
      for (auto& lane : pair->lanes) {
        if (lane->failed || pair->state != Pair::State::up) continue;
        if (lane->unsignaled > 0) post_credit(lane.get(), true);
        busy |= !lane->posted.empty();
      }
    }
    return busy;
  };
  while (busy() && !deadline.passed()) fabric_->poll();
  control_.send(pack(ByeNote{sent_last_}));
  while (!control_.flush() && !deadline.passed()) continue;
  cancel();
}

}  // namespace weft::verbs
