#include "engine/small.hpp"

#include <algorithm>
#include <map>

namespace weft {
namespace {

// Between two that both send and receive, sends from this size on are read in place: one copy less, for a system call
// and the wait for its end. One that only sends runs ahead instead, up to RingWire::kEager.
constexpr size_t kViewFrom = 12 << 10;

// Buffers are bound to these while a record is compiled; only differences are kept.
std::byte* base_of(uint32_t buffer) { return reinterpret_cast<std::byte*>(uintptr_t{buffer + 1} << 40); }

SmallPlace place_of(const std::byte* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return {static_cast<uint32_t>((address >> 40) - 1), static_cast<uint32_t>(address & ((uintptr_t{1} << 40) - 1))};
}

class Compiler {
 public:
  Compiler(const Plan& plan, Geometry& geometry, std::optional<ptrdiff_t> distance, Wire* (*wire_to)(void*, int),
           void* owner)
      : plan_(plan),
        geometry_(geometry),
        distance_(distance),
        wire_to_(wire_to),
        owner_(owner),
        record_(std::make_unique<SmallRecord>()) {}

  std::unique_ptr<SmallRecord> run() {
    if (geometry_.tiles() != 1) return nullptr;
    geometry_.set_buffers(base_of(0), base_of(1));
    geometry_.set_scratch(base_of(2));
    record_->scratch_bytes = geometry_.scratch_bytes();
    // Inside a step nothing depends on anything: sends go first, so that the peer waits least.
    for (size_t begin = 0; begin < plan_.ops.size();) {
      size_t end = begin;
      while (end < plan_.ops.size() && plan_.ops[end].step == plan_.ops[begin].step) ++end;
      for (const Verb verb : {Verb::send, Verb::recv, Verb::copy}) {
        for (size_t i = begin; i < end; ++i) {
          if (plan_.ops[i].verb == verb && !add(plan_.ops[i])) return nullptr;
        }
      }
      begin = end;
    }
    fuse();
    if (!view_sends()) return nullptr;
    record_->element = static_cast<uint32_t>(geometry_.element_bytes());
    return std::move(record_);
  }

 private:
  bool add(const Op& op) {
    if (op.verb == Verb::copy) return add_copy(op);
    const bool send = op.verb == Verb::send;
    SmallOp small;
    small.kind = send ? SmallOp::Kind::send : op.reduce ? SmallOp::Kind::recv_reduce : SmallOp::Kind::recv;
    std::vector<Piece> pieces, beside;
    if (op.reduce) {
      geometry_.pieces(plan_.dst(op), plan_.src(op), 0, &pieces, &beside);
    } else {
      geometry_.pieces(send ? plan_.src(op) : plan_.dst(op), 0, &pieces);
    }
    if (pieces.empty()) return true;  // no message at either end
    small.wire = wire_to_(owner_, op.peer);
    if (small.wire == nullptr || pieces.size() > 1) return false;
    small.ring = small.wire->ring_wire();
    if (pieces[0].bytes > small.wire->eager_bytes() && (small.ring == nullptr || op.reduce)) return false;
    small.bytes = static_cast<uint32_t>(pieces[0].bytes);
    (send ? small.src : small.dst) = place_of(pieces[0].data);
    if (op.reduce) small.src = place_of(beside[0].data);
    small.index = posted_[{op.peer, send}]++;
    record_->ops.push_back(small);
    return true;
  }

  bool add_copy(const Op& op) {
    SmallOp small;
    small.kind = op.sources == 1 ? SmallOp::Kind::copy : SmallOp::Kind::combine;
    small.sources = op.sources;
    small.first_source = static_cast<uint32_t>(record_->sources.size());
    const auto src = plan_.src(op);
    const size_t per_source = src.size() / op.sources;
    for (uint16_t source = 0; source < op.sources; ++source) {
      std::vector<Piece> pieces, beside;
      geometry_.pieces(plan_.dst(op), src.subspan(source * per_source, per_source), 0, &pieces, &beside);
      if (pieces.empty()) return true;
      if (pieces.size() > 1 || (op.sources > 1 && pieces[0].bytes > RingWire::kEager)) return false;
      small.bytes = static_cast<uint32_t>(pieces[0].bytes);
      small.dst = place_of(pieces[0].data);
      small.src = place_of(beside[0].data);
      record_->sources.push_back(small.src);
    }
    record_->ops.push_back(small);
    return true;
  }

  bool overlap(const SmallPlace& a, size_t a_bytes, const SmallPlace& b, size_t b_bytes) const {
    const auto [a_buffer, a_begin] = in_memory(a);
    const auto [b_buffer, b_begin] = in_memory(b);
    return a_buffer == b_buffer && a_begin < b_begin + static_cast<ptrdiff_t>(b_bytes) &&
           b_begin < a_begin + static_cast<ptrdiff_t>(a_bytes);
  }
  // In place, input and output are one.
  std::pair<uint32_t, ptrdiff_t> in_memory(const SmallPlace& place) const {
    const auto offset = static_cast<ptrdiff_t>(place.offset);
    if (place.buffer == 0 && distance_.has_value()) return {1, offset - *distance_};
    return {place.buffer, offset};
  }

  bool touches(const SmallOp& op, const SmallPlace& place, size_t bytes) const {
    if (op.kind == SmallOp::Kind::combine) {
      for (uint32_t i = 0; i < op.sources; ++i) {
        if (overlap(record_->sources[op.first_source + i], op.bytes, place, bytes)) return true;
      }
    } else if (op.kind != SmallOp::Kind::recv && overlap(op.src, op.bytes, place, bytes)) {
      return true;
    }
    return op.kind != SmallOp::Kind::send && overlap(op.dst, op.bytes, place, bytes);
  }

  // A receive into scratch that only one combination of two reads becomes a reducing receive: the sends before it are
  // done, so what kept the two apart in the plan is no longer there.
  void fuse() {
    auto& ops = record_->ops;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].kind != SmallOp::Kind::recv || ops[i].dst.buffer != 2) continue;
      size_t user = 0, users = 0;
      for (size_t j = 0; j < ops.size(); ++j) {
        if (j != i && touches(ops[j], ops[i].dst, ops[i].bytes)) {
          user = j;
          ++users;
        }
      }
      if (users != 1 || user < i || ops[user].kind != SmallOp::Kind::combine || ops[user].sources != 2) continue;
      const SmallPlace a = record_->sources[ops[user].first_source], b = record_->sources[ops[user].first_source + 1];
      const bool scratch_is_a = overlap(a, 1, ops[i].dst, ops[i].bytes);
      const SmallPlace other = scratch_is_a ? b : a;
      bool free = ops[user].bytes == ops[i].bytes;
      for (size_t j = i + 1; j < user; ++j) {
        free = free && !touches(ops[j], ops[user].dst, ops[user].bytes) && !touches(ops[j], other, ops[user].bytes);
      }
      if (!free) continue;
      ops[i].kind = SmallOp::Kind::recv_reduce;
      ops[i].dst = ops[user].dst;
      ops[i].src = other;
      ops.erase(ops.begin() + static_cast<ptrdiff_t>(user));
    }
  }

  // Large sends are read by the peer where they lie, if nothing writes there afterwards. One that waited for its peer
  // before it went on could wait for ever.
  bool view_sends() {
    size_t viewed = 0;
    auto& ops = record_->ops;
    const bool receives = std::any_of(ops.begin(), ops.end(), [](const SmallOp& op) {
      return op.kind == SmallOp::Kind::recv || op.kind == SmallOp::Kind::recv_reduce;
    });
    const size_t from = receives ? kViewFrom : RingWire::kEager + 1;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].kind != SmallOp::Kind::send || ops[i].ring == nullptr || ops[i].bytes < from) continue;
      bool kept = viewed < SmallRecord::kMostViewed;
      for (size_t j = i + 1; j < ops.size(); ++j) {
        kept = kept &&
               (ops[j].kind == SmallOp::Kind::send || !overlap(ops[j].dst, ops[j].bytes, ops[i].src, ops[i].bytes));
      }
      if (!kept && ops[i].bytes > RingWire::kEager) return false;
      ops[i].viewed = kept;
      viewed += kept;
    }
    return true;
  }

  const Plan& plan_;
  Geometry& geometry_;
  std::optional<ptrdiff_t> distance_;
  Wire* (*wire_to_)(void*, int);
  void* owner_;
  std::unique_ptr<SmallRecord> record_;
  std::map<std::pair<int, bool>, uint32_t> posted_;
};

}  // namespace

std::unique_ptr<SmallRecord> compile_small(const Plan& plan, Geometry& geometry, std::optional<ptrdiff_t> distance,
                                           Wire* (*wire_to)(void*, int), void* owner) {
  return Compiler(plan, geometry, distance, wire_to, owner).run();
}

SmallCache::Entry* SmallCache::find_slow(const Key& key) {
  auto at = entries_.find(key);
  if (at == entries_.end()) return nullptr;
  last_key_ = key;
  last_ = &at->second;
  return last_;
}

SmallCache::Entry* SmallCache::put(const Key& key, Entry entry) {
  if (entries_.size() >= kMost) entries_.clear();
  last_key_ = key;
  last_ = &entries_.insert_or_assign(key, std::move(entry)).first->second;
  return last_;
}

}  // namespace weft
