// The lives of a wire's pairs of rails: how they begin, how they end, what is done again then.
#include <algorithm>
#include <array>

#include "bootstrap/crypto.hpp"
#include "log/log.hpp"
#include "transports/verbs/wire.hpp"

namespace weft::verbs {
namespace {

using std::chrono::milliseconds;

// All pairs are down: time for one to come back, or for the peer's end to be noticed, which would be the cause.
constexpr milliseconds kStranded{500};
constexpr milliseconds kConnect{5000};
constexpr milliseconds kPause{20};  // before the next life of a pair

RailAddress address_of(const Rail& rail) {
  return {.name = rail.port.name(),
          .gid = rail.port.gid.raw,
          .lid = rail.port.lid,
          .mtu = static_cast<uint8_t>(rail.port.mtu),
          .ethernet = rail.port.ethernet,
          .cm_port = rail.cm_port};
}

ibv_mtu smaller_mtu(const Rail& rail, uint8_t theirs, const std::string& configured) {
  int mtu = std::min<int>(rail.port.mtu, theirs);
  for (int i = IBV_MTU_256; i <= IBV_MTU_4096; ++i) {
    if (configured == std::to_string(128 << i)) mtu = std::min(mtu, i);
  }
  return static_cast<ibv_mtu>(mtu);
}

Status to_init(Lane& lane, const Rail& rail) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = rail.port.number;
  attributes.qp_access_flags = kQueueAccess;
  const int problem =
      ::ibv_modify_qp(lane.queue, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return problem == 0 ? Status() : system_error(problem, "ibv_modify_qp to INIT");
}

Status to_ready(Lane& lane, const Rail& rail, const UpNote& up, size_t queue_pair, const Config& config) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = smaller_mtu(rail, up.rail.mtu, config.verbs_mtu);
  attributes.dest_qp_num = up.numbers[queue_pair];
  attributes.rq_psn = up.packets[queue_pair];
  attributes.max_dest_rd_atomic = 1;
  attributes.min_rnr_timer = kNotReadyTimer;
  attributes.ah_attr.dlid = up.rail.lid;
  attributes.ah_attr.sl = static_cast<uint8_t>(config.verbs_service_level);
  attributes.ah_attr.port_num = rail.port.number;
  if (rail.port.ethernet || !is_empty(up.rail.gid)) {
    attributes.ah_attr.is_global = 1;
    std::copy(up.rail.gid.begin(), up.rail.gid.end(), attributes.ah_attr.grh.dgid.raw);
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(rail.port.gid.index);
    attributes.ah_attr.grh.hop_limit = 255;
    attributes.ah_attr.grh.traffic_class = static_cast<uint8_t>(config.verbs_traffic_class);
  }
  int problem = ::ibv_modify_qp(lane.queue, &attributes,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (problem != 0) return system_error(problem, "ibv_modify_qp to RTR");
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = static_cast<uint8_t>(config.verbs_timeout);
  attributes.retry_cnt = static_cast<uint8_t>(config.verbs_retries);
  attributes.rnr_retry = kNotReadyRetries;
  attributes.sq_psn = lane.first_packet;
  attributes.max_rd_atomic = 1;
  problem = ::ibv_modify_qp(
      lane.queue, &attributes,
      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return problem == 0 ? Status() : system_error(problem, "ibv_modify_qp to RTS");
}

}  // namespace

HelloNote VerbsWire::hello() const {
  HelloNote note;
  note.queue_pairs = static_cast<uint32_t>(fabric_->config().verbs_queue_pairs);
  note.cm = fabric_->config().verbs_connect == "rdmacm";
  for (const Rail& rail : fabric_->rails()) note.rails.push_back(address_of(rail));
  return note;
}

void VerbsWire::take_notes() {
  while (!dead_) {
    const auto note = control_.next();
    if (!note) break;
    const auto take = [&]<typename Note>(void (VerbsWire::*on)(Note), std::remove_cvref_t<Note> parsed) {
      if (!unpack(std::string_view(*note).substr(1), &parsed)) {
        return fail(WireError::Kind::broken, fmt::format("rank {} sent a note that is not understood", peer()));
      }
      (this->*on)(std::move(parsed));
    };
    switch (static_cast<NoteKind>(note->front())) {
      case NoteKind::hello:
        take(&VerbsWire::on_hello, HelloNote());
        break;
      case NoteKind::up:
        take(&VerbsWire::on_up, UpNote());
        break;
      case NoteKind::ready:
        take(&VerbsWire::on_ready, ReadyNote());
        break;
      case NoteKind::down:
        take(&VerbsWire::on_down, DownNote());
        break;
      case NoteKind::refuse:
        take(&VerbsWire::on_refuse, RefuseNote());
        break;
      case NoteKind::bye:
        take(&VerbsWire::on_bye, ByeNote());
        break;
      default:
        fail(WireError::Kind::broken, fmt::format("rank {} sent a note of unknown kind", peer()));
    }
  }
  if (dead_ || !control_.ended() || left_) return;
  // It may have told us by a frame why it went.
  fabric_->poll();
  fail(WireError::Kind::closed, fmt::format("rank {} closed its connection without a goodbye", peer()));
}

void VerbsWire::on_bye(const ByeNote& bye) {
  left_ = true;
  their_frames_ = bye.frames;
  moved_at_ = Clock::now();
}

void VerbsWire::on_hello(const HelloNote& theirs) {
  const HelloNote ours = hello();
  if (theirs.eager != ours.eager || theirs.credits != ours.credits || theirs.queue_pairs != ours.queue_pairs ||
      theirs.cm != ours.cm) {
    return fail(
        WireError::Kind::broken,
        fmt::format("rank {} has other settings: WEFT_VERBS_QUEUE_PAIRS={} WEFT_VERBS_CONNECT={}, here {} and {}",
                    peer(), theirs.queue_pairs, theirs.cm ? "rdmacm" : "oob", ours.queue_pairs,
                    ours.cm ? "rdmacm" : "oob"));
  }
  if (std::exchange(greeted_, true)) return;
  const bool lower = fabric_->context().rank < peer();
  const auto numbers = lower ? pair_rails(ours.rails, theirs.rails) : pair_rails(theirs.rails, ours.rails);
  for (const auto& [a, b] : numbers) {
    auto pair = std::make_unique<Pair>();
    pair->number = static_cast<int>(pairs_.size());
    pair->rail = lower ? a : b;
    pair->theirs = theirs.rails[static_cast<size_t>(lower ? b : a)];
    pair->told = true;
    pair->heard.emplace();
    pairs_.push_back(std::move(pair));
  }
  std::string reasons;
  for (auto& pair : pairs_) {
    const Status started = start(*pair);
    if (started.ok()) continue;
    pair->trouble = started.message();
    log(LogLevel::info, "verbs: rank {}: {}", peer(), started.message());
    reasons += (reasons.empty() ? "" : "; ") + started.message();
  }
  if (std::none_of(pairs_.begin(), pairs_.end(), [](const auto& pair) { return pair->living(); })) {
    fail(WireError::Kind::broken,
         fmt::format("no rail to rank {} comes up: {}", peer(),
                     pairs_.empty() ? "none of ours is of the kind of one of theirs" : reasons));
  }
}

// A new life of a pair, if our rail allows it.
Status VerbsWire::start(Pair& pair) {
  const Rail& rail = fabric_->rails()[static_cast<size_t>(pair.rail)];
  if (!rail.up) return weft::error(weftSystemError, "{}", rail.trouble);
  UpNote up;
  std::array<uint64_t, 9> random;  // for up to eight queue pairs, and a token
  WEFT_RETURN_IF_ERROR(random_bytes({reinterpret_cast<uint8_t*>(random.data()), sizeof random}));
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int64_t i = 0; i < fabric_->config().verbs_queue_pairs; ++i) {
    auto lane = std::make_unique<Lane>();
    lane->wire = this;
    lane->pair = pair.number;
    lane->rail = pair.rail;
    Status opened = fabric_->open(*lane);
    if (opened.ok() && !fabric_->uses_cm()) opened = to_init(*lane, rail);
    if (!opened.ok()) {
      if (lane->queue != nullptr) fabric_->close(*lane);
      for (auto& other : lanes) fabric_->close(*other);
      return opened;
    }
    lane->first_packet = static_cast<uint32_t>(random[static_cast<size_t>(i)]) & 0xffffff;
    up.numbers.push_back(lane->queue->qp_num);
    up.packets.push_back(lane->first_packet);
    lanes.push_back(std::move(lane));
  }
  pair.lanes = std::move(lanes);
  pair.state = Pair::State::connecting;
  up.pair = static_cast<uint32_t>(pair.number);
  up.epoch = ++pair.epoch;
  up.token = pair.token = random.back();
  up.rail = address_of(rail);
  pair.connected = pair.they_are = pair.told = false;
  pair.heard.reset();
  pair.trouble.clear();
  control_.send(pack(up));
  if (pair.their_up.has_value() && pair.their_up->epoch == pair.epoch) connect(pair);
  return {};
}

// Both have their queue pairs.
void VerbsWire::connect(Pair& pair) {
  const UpNote& up = *pair.their_up;
  pair.begun_at = Clock::now();
  pair.theirs = up.rail;
  if (up.numbers.size() != pair.lanes.size()) return end(pair, "another number of queue pairs");
  if (fabric_->uses_cm()) {
    if (fabric_->context().rank > peer()) {
      if (const Status dialled = fabric_->dial(pair); !dialled.ok()) end(pair, dialled.message());
    }
    return;
  }
  const Rail& rail = fabric_->rails()[static_cast<size_t>(pair.rail)];
  for (size_t i = 0; i < pair.lanes.size(); ++i) {
    const Status ready = to_ready(*pair.lanes[i], rail, up, i, fabric_->config());
    if (!ready.ok()) return end(pair, ready.message());
  }
  pair_connected(pair);
}

void VerbsWire::pair_connected(Pair& pair) {
  pair.connected = true;
  control_.send(pack(ReadyNote{static_cast<uint32_t>(pair.number), pair.epoch}));
  check_up(pair);
}

void VerbsWire::check_up(Pair& pair) {
  if (!pair.connected || !pair.they_are || pair.state != Pair::State::connecting) return;
  pair.state = Pair::State::up;
  was_up_ = true;
  ++fabric_->stats(pair.rail).connections;
  log(pair.epoch > 1 ? LogLevel::info : LogLevel::debug, "verbs: rank {}: {} and {} are connected", peer(),
      fabric_->rails()[static_cast<size_t>(pair.rail)].port.name(), pair.theirs.name);
  if (pair.epoch == 1) return;
  // What is being received may use it, too.
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].request != nullptr) push_clear(slot);
  }
}

void VerbsWire::on_up(const UpNote& up) {
  if (up.pair >= pairs_.size()) return;
  Pair& pair = *pairs_[up.pair];
  pair.their_up = up;
  if (pair.state == Pair::State::connecting && up.epoch == pair.epoch) connect(pair);
}

void VerbsWire::on_ready(const ReadyNote& ready) {
  if (ready.pair >= pairs_.size() || ready.epoch != pairs_[ready.pair]->epoch) return;
  Pair& pair = *pairs_[ready.pair];
  pair.they_are = true;
  check_up(pair);
}

// Its queue pairs are no more. What they had posted is in limbo.
void VerbsWire::take_down(Pair& pair) {
  if (pair.state == Pair::State::up) --fabric_->stats(pair.rail).connections;
  pair.state = Pair::State::down;
  for (auto& lane : pair.lanes) {
    fabric_->close(*lane);
    for (; !lane->posted.empty(); lane->posted.pop()) {
      const Lane::Posted& posted = lane->posted.front();
      if (posted.bounce != nullptr) fabric_->blocks().give(posted.bounce);
      if (posted.message != nullptr) pair.limbo.push_back({posted.message, posted.fragment});
    }
  }
  pair.lanes.clear();
}

// The end of a life at our side: from here on nothing comes or goes over it, and what came is known.
void VerbsWire::end(Pair& pair, const std::string& why) {
  if (!pair.living()) return;
  if (!left_) {
    const bool was_up = pair.state == Pair::State::up;
    log(was_up ? LogLevel::info : LogLevel::debug, "verbs: rank {}: {} and {} are {}: {}", peer(),
        fabric_->rails()[static_cast<size_t>(pair.rail)].port.name(), pair.theirs.name,
        was_up ? "disconnected" : "not connected", why);
  }
  take_down(pair);
  pair.trouble = why;
  pair.retry_at = Clock::now() + kPause;
  DownNote down;
  down.pair = static_cast<uint32_t>(pair.number);
  down.epoch = pair.epoch;
  down.reason = why;
  down.taken = taken_;
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const Incoming& incoming = slots_[slot];
    if (incoming.request != nullptr) down.partial.push_back({slot, incoming.generation, incoming.bits});
  }
  control_.send(pack(down));
  pair.told = true;
  if (pair.heard.has_value()) settle(pair);
}

void VerbsWire::on_down(const DownNote& down) {
  if (down.pair >= pairs_.size()) return;
  Pair& pair = *pairs_[down.pair];
  if (down.epoch == pair.epoch + 1 && !pair.living() && pair.told && pair.heard.has_value()) {
    // A life that only they began.
    pair.epoch = down.epoch;
    control_.send(pack(DownNote{.pair = down.pair, .epoch = down.epoch, .taken = taken_}));
    return;
  }
  if (down.epoch != pair.epoch) return;
  pair.heard = down;
  if (pair.living()) {
    end(pair, fmt::format("rank {} says: {}", peer(), down.reason));
  } else if (pair.told) {
    settle(pair);
  }
}

// Both ends know what came over the pair. What did not goes over another one.
void VerbsWire::settle(Pair& pair) {
  const DownNote& down = *pair.heard;
  for (const Pair::Limbo& lost : std::exchange(pair.limbo, {})) {
    Outgoing& message = *lost.message;
    const auto partial = std::find_if(down.partial.begin(), down.partial.end(), [&](const auto& each) {
      return each.slot == message.clear.slot && each.generation == message.clear.generation;
    });
    const bool came = partial == down.partial.end() || lost.fragment / 8 >= partial->bits.size() ||
                      (partial->bits[lost.fragment / 8] >> (lost.fragment % 8) & 1) != 0;
    if (came) {
      fragment_done(message);
    } else {
      message.again.push_back(lost.fragment);
      list(message);
    }
  }
  acknowledge(down.taken.upto);
  for (uint32_t number = acked_ + 1; number != sent_last_ + 1; ++number) {
    const Sent& sent = sent_[number % sent_.size()];
    if (sent.pair == pair.number && sent.epoch == pair.epoch && !down.taken.has(number)) resend_.push_back(number);
  }
}

void VerbsWire::lane_failed(Lane& lane, const std::string& why) {
  if (std::exchange(lane.failed, true)) return;
  trouble_ = true;
  pairs_[static_cast<size_t>(lane.pair)]->trouble = why;
}

void VerbsWire::mend() {
  if (!std::exchange(trouble_, false)) return;
  for (auto& pair : pairs_) {
    const bool failed = std::any_of(pair->lanes.begin(), pair->lanes.end(), [](auto& lane) { return lane->failed; });
    if (failed) end(*pair, std::string(pair->trouble));
  }
}

void VerbsWire::rail_down(int rail, bool gone) {
  for (auto& pair : pairs_) {
    if (pair->rail == rail) end(*pair, fabric_->rails()[static_cast<size_t>(rail)].trouble);
  }
  if (gone) release_rail(rail);
}

// Its device goes, and with it what was registered with it.
void VerbsWire::release_rail(int number) {
  const auto rail = static_cast<size_t>(number);
  for (auto& message : outgoing_) {
    release_pieces(*message, rail);
    message->bounced[rail] = false;
  }
  for (Incoming& incoming : slots_) release_entry(incoming, rail);
}

// Pairs that can begin again, and the case that none is up.
void VerbsWire::look_at_pairs() {
  if (dead_ || left_) return;
  const auto now = Clock::now();
  bool up = false;
  std::string troubles;
  for (auto& pair : pairs_) {
    const bool begun =
        pair->state == Pair::State::connecting && pair->their_up.has_value() && pair->their_up->epoch == pair->epoch;
    if (begun && now - pair->begun_at > kConnect) end(*pair, "it was not connected in time");
    if (!pair->living() && pair->told && pair->heard.has_value() && now >= pair->retry_at &&
        fabric_->rails()[static_cast<size_t>(pair->rail)].up && control_.is_open() && !control_.ended()) {
      if (const Status started = start(*pair); !started.ok()) pair->trouble = started.message();
    }
    up |= pair->state == Pair::State::up;
    if (!pair->trouble.empty()) {
      troubles +=
          fmt::format("{}{} to {}: {}", troubles.empty() ? "" : "; ",
                      fabric_->rails()[static_cast<size_t>(pair->rail)].port.name(), pair->theirs.name, pair->trouble);
    }
  }
  if (up) {
    stranded_since_ = {};
    return;
  }
  if (!was_up_) {
    if (deadline_.passed()) {
      fail(WireError::Kind::broken,
           fmt::format("no rail to rank {} came up in time{}{}", peer(), troubles.empty() ? "" : ": ", troubles));
    }
    return;
  }
  if (stranded_since_ == Clock::time_point{}) stranded_since_ = now;
  if (now - stranded_since_ < kStranded) return;
  fail(WireError::Kind::closed,
       fmt::format("all rails to rank {} are down{}{}", peer(), troubles.empty() ? "" : ": ", troubles));
}

Pair* VerbsWire::expecting(uint32_t number, uint32_t epoch, uint64_t token) {
  if (dead_ || number >= pairs_.size()) return nullptr;
  Pair& pair = *pairs_[number];
  return pair.state == Pair::State::connecting && pair.epoch == epoch && pair.token == token ? &pair : nullptr;
}

}  // namespace weft::verbs
