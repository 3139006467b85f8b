#include "expand/resolve.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace weft {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

class Resolver {
 public:
  Resolver(RawOps raw, Collective collective, const Shape& shape, bool in_place, Evaluator& evaluator)
      : raw_(std::move(raw)),
        space_(raw_.space),
        shape_(shape),
        in_place_(in_place && shape.can_be_in_place()),
        keeps_early_(collective == Collective::alltoall),
        evaluator_(evaluator),
        written_(space_.total(), false) {}

  Resolved run();

 private:
  // The chunk of `in` that shares bytes with a chunk of `out` when in place, or kNever.
  uint32_t shared_in(uint32_t out_chunk) const {
    const uint32_t begin = shape_.out_first * space_.chunks_per_block, count = shape_.shared * space_.chunks_per_block;
    if (out_chunk < begin || out_chunk >= begin + count) return kNever;
    return shape_.in_first * space_.chunks_per_block + (out_chunk - begin);
  }
  bool is_lent(ChunkId id) const {
    if (space_.is_in(id)) return !shape_.has_in;
    if (space_.is_out(id)) return !shape_.has_out;
    return id >= space_.first(Space::work);
  }
  std::string describe(ChunkId id) const;

  void find_last_reads();
  void find_early_arrivals();
  void resolve_step(size_t begin, size_t end);
  ChunkId read(ChunkId id, const RawOp& op);
  void write(ChunkId& id, const RawOp& op);
  void add_kept_copies();
  void add_final_copies();
  void add_copy(ChunkId dst, ChunkId src, uint32_t step);
  void drop_idle_copies();
  void share_storage();
  void lend_scratch();

  RawOps raw_;
  const ChunkSpace space_;
  const Shape& shape_;
  const bool in_place_;
  const bool keeps_early_;
  Evaluator& evaluator_;
  std::vector<bool> written_;
  // In-place all-to-all, by chunk of `out`: the last step that reads the block under it, the last that writes it, and
  // whether it is kept.
  std::vector<uint32_t> last_read_, last_write_;
  std::vector<bool> kept_;
  std::vector<Place> places_;
  std::vector<uint32_t> storage_;
  uint32_t scratch_ = 0, storages_ = 0;
};

std::string Resolver::describe(ChunkId id) const {
  for (const Space space : {Space::work, Space::scratch, Space::out, Space::in}) {
    if (id >= space_.first(space)) return fmt::format("{}[{}]", name_of(space), id - space_.first(space));
  }
  return "in[0]";
}

Resolved Resolver::run() {
  if (keeps_early_) ++raw_.steps;  // on all ranks, in place or not: room for the last of the kept copies
  raw_.steps = std::max(raw_.steps, 1U);
  kept_.assign(space_.out, false);
  if (keeps_early_ && in_place_) {
    find_last_reads();
    find_early_arrivals();
  }
  auto& ops = raw_.ops;
  for (size_t begin = 0; begin < ops.size() && evaluator_.ok();) {
    size_t end = begin;
    while (end < ops.size() && ops[end].step == ops[begin].step) ++end;
    resolve_step(begin, end);
    begin = end;
  }
  Resolved result;
  if (!evaluator_.ok()) return result;
  add_kept_copies();
  add_final_copies();
  share_storage();
  drop_idle_copies();
  lend_scratch();
  result.raw = std::move(raw_);
  result.places = std::move(places_);
  result.storage = std::move(storage_);
  result.scratch = scratch_;
  result.storages = storages_;
  return result;
}

// Of `work` too, which reads `in` while it is not written. A copy of a block onto itself is no read: it is dropped.
void Resolver::find_last_reads() {
  last_read_.assign(space_.out, kNever);
  last_write_.assign(space_.out, kNever);
  for (const RawOp& op : raw_.ops) {
    for (uint32_t s = 0; s < op.sources(); ++s) {
      const ChunkId* source = raw_.source(op, s);
      for (uint32_t i = 0; i < op.length; ++i) {
        const bool itself = op.verb == Verb::copy && op.sources() == 1 && space_.is_out(raw_.dst(op)[i]) &&
                            raw_.dst(op)[i] - space_.in == source[i];
        if (space_.is_in(source[i]) && !itself) last_read_[source[i]] = op.step;
        if (space_.is_work(source[i])) last_read_[source[i] - space_.first(Space::work)] = op.step;
      }
    }
    if (!op.has_dst()) continue;
    for (uint32_t i = 0; i < op.length; ++i) {
      const ChunkId dst = raw_.dst(op)[i];
      if (space_.is_out(dst)) last_write_[dst - space_.in] = op.step;
    }
  }
}

void Resolver::find_early_arrivals() {
  for (const RawOp& op : raw_.ops) {
    if (!op.has_dst()) continue;
    for (uint32_t i = 0; i < op.length; ++i) {
      const ChunkId dst = raw_.dst(op)[i];
      if (!space_.is_out(dst)) continue;
      const uint32_t out_chunk = dst - space_.in;
      if (last_read_[out_chunk] != kNever && last_read_[out_chunk] >= op.step) kept_[out_chunk] = true;
    }
  }
}

// Reads see what the steps before have written, so all of them come first.
void Resolver::resolve_step(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const RawOp& op = raw_.ops[i];
    for (uint32_t s = 0; s < op.sources(); ++s) {
      ChunkId* source = raw_.source(op, s);
      for (uint32_t j = 0; j < op.length; ++j) source[j] = read(source[j], op);
    }
  }
  for (size_t i = begin; i < end; ++i) {
    const RawOp& op = raw_.ops[i];
    for (uint32_t j = 0; op.has_dst() && j < op.length; ++j) write(raw_.dst(op)[j], op);
  }
}

ChunkId Resolver::read(ChunkId id, const RawOp& op) {
  if (space_.is_out(id) && kept_[id - space_.in] && written_[id]) return space_.twin(id - space_.in);
  if (written_[id] || (space_.is_in(id) && shape_.has_in)) return id;
  ChunkId alias = kNever;
  if (space_.is_out(id) && shape_.aliases) alias = shared_in(id - space_.in);
  if (space_.is_work(id)) alias = id - space_.first(Space::work);
  if (alias != kNever && (shape_.has_in || written_[alias])) return alias;
  evaluator_.fail(op.line, op.column, fmt::format("{} is read before anything is written to it", describe(id)));
  return id;
}

void Resolver::write(ChunkId& id, const RawOp& op) {
  if (space_.is_in(id) && shape_.has_in) {
    evaluator_.fail(op.line, op.column, fmt::format("{} belongs to the caller and cannot be written", describe(id)));
    return;
  }
  written_[id] = true;
  if (space_.is_out(id) && kept_[id - space_.in]) id = space_.twin(id - space_.in);
}

void Resolver::add_copy(ChunkId dst, ChunkId src, uint32_t step) {
  // Neighbours become one operation.
  if (!raw_.ops.empty()) {
    RawOp& last = raw_.ops.back();
    const bool continues =
        last.line == 0 && last.step == step && last.begin + last.lists * size_t{last.length} == raw_.chunks.size();
    if (continues) {
      raw_.chunks.insert(raw_.chunks.begin() + static_cast<std::ptrdiff_t>(last.begin + last.length), dst);
      raw_.chunks.push_back(src);
      ++last.length;
      return;
    }
  }
  RawOp op;
  op.step = step;
  op.lists = 2;
  op.length = 1;
  op.begin = raw_.chunks.size();
  raw_.chunks.push_back(dst);
  raw_.chunks.push_back(src);
  raw_.ops.push_back(op);
}

void Resolver::add_kept_copies() {
  if (!keeps_early_ || !in_place_) return;
  for (uint32_t c = 0; c < space_.out; ++c) {
    if (kept_[c]) add_copy(space_.in + c, space_.twin(c), std::max(last_read_[c], last_write_[c]) + 1);
  }
  std::stable_sort(raw_.ops.begin(), raw_.ops.end(), [](const RawOp& a, const RawOp& b) { return a.step < b.step; });
}

void Resolver::add_final_copies() {
  if (!shape_.has_out) return;
  for (uint32_t c = 0; c < space_.out; ++c) {
    if (written_[space_.in + c]) continue;
    const uint32_t from = shape_.aliases ? shared_in(c) : kNever;
    if (from == kNever || (!shape_.has_in && !written_[from])) {
      evaluator_.fail(1, 1, fmt::format("nothing is ever written to out[{}]", c));
      return;
    }
    if (!in_place_) add_copy(space_.in + c, from, raw_.steps - 1);
  }
}

// A copy of bytes onto themselves is none, and a reduction of one source is a copy.
void Resolver::drop_idle_copies() {
  std::vector<RawOp> kept;
  kept.reserve(raw_.ops.size());
  for (RawOp op : raw_.ops) {
    if (op.verb != Verb::copy) {
      kept.push_back(op);
      continue;
    }
    op.reduce = op.sources() > 1;
    if (!op.reduce) {
      ChunkId* dst = raw_.dst(op);
      ChunkId* source = raw_.source(op, 0);
      uint32_t length = 0;
      for (uint32_t i = 0; i < op.length; ++i) {
        if (storage_[dst[i]] == storage_[source[i]]) continue;
        dst[length] = dst[i];
        source[length++] = source[i];
      }
      std::copy(source, source + length, dst + length);
      op.length = length;
    }
    if (op.length > 0) kept.push_back(op);
  }
  raw_.ops = std::move(kept);
}

void Resolver::share_storage() {
  storage_.resize(space_.total());
  std::iota(storage_.begin(), storage_.end(), 0U);
  if (!in_place_) return;
  for (uint32_t c = 0; c < space_.out; ++c) {
    if (const uint32_t same = shared_in(c); same != kNever) storage_[space_.in + c] = same;
  }
}

// Lent chunks share slots of scratch when they live at different times. A slot has the size of its place in a block,
// or, where every block has a size of its own, of its block: then nothing is shared.
void Resolver::lend_scratch() {
  const uint32_t per_block = space_.chunks_per_block;
  const uint32_t period = shape_.per_block_sizes ? shape_.blocks() * per_block : per_block;
  places_.resize(space_.total());
  for (ChunkId id = 0; id < space_.total(); ++id) {
    if (space_.is_in(id)) places_[id] = {Buffer::in, id};
    if (space_.is_out(id)) places_[id] = {Buffer::out, id - space_.in};
    if (id >= space_.first(Space::scratch)) places_[id] = {Buffer::scratch, id - space_.first(Space::scratch)};
  }
  scratch_ = space_.scratch;
  const uint32_t base = (space_.scratch + period - 1) / period * period;

  std::vector<uint32_t> last_use(space_.total(), kNever);
  std::vector<ChunkId> lent;
  for (const RawOp& op : raw_.ops) {
    for (size_t i = op.begin; i < op.begin + size_t{op.lists} * op.length; ++i) {
      const ChunkId id = raw_.chunks[i];
      if (!is_lent(id)) continue;
      if (last_use[id] == kNever) lent.push_back(id);  // by first use, which is a write
      last_use[id] = op.step;
    }
  }
  if (lent.empty()) {
    storages_ = space_.total();
    return;
  }
  std::vector<ChunkId> by_end = lent;
  std::stable_sort(by_end.begin(), by_end.end(), [&](ChunkId a, ChunkId b) { return last_use[a] < last_use[b]; });

  const auto slot_class = [&](ChunkId id) {
    const uint32_t chunk = space_.is_in(id)     ? id
                           : space_.is_out(id)  ? id - space_.in
                           : space_.is_work(id) ? id - space_.first(Space::work)
                                                : id - space_.twin(0);
    return chunk % period;
  };
  std::vector<std::vector<uint32_t>> free(period);
  std::vector<uint32_t> used(period, 0);
  size_t next_lent = 0, next_end = 0;
  for (const RawOp& op : raw_.ops) {
    while (next_end < by_end.size() && last_use[by_end[next_end]] < op.step) {
      const ChunkId ended = by_end[next_end++];
      free[slot_class(ended)].push_back(places_[ended].index);
    }
    for (size_t i = op.begin; i < op.begin + size_t{op.lists} * op.length; ++i) {
      if (next_lent == lent.size() || raw_.chunks[i] != lent[next_lent]) continue;
      const ChunkId id = lent[next_lent++];
      const uint32_t kind = slot_class(id);
      uint32_t slot = 0;
      if (free[kind].empty()) {
        slot = base + used[kind]++ * period + kind;
      } else {
        slot = free[kind].back();
        free[kind].pop_back();
      }
      places_[id] = {Buffer::scratch, slot};
      scratch_ = std::max(scratch_, slot + 1);
    }
  }
  // Lent chunks with one slot are the same bytes.
  storages_ = space_.total() + scratch_;
  for (const ChunkId id : lent) storage_[id] = space_.total() + places_[id].index;
}

}  // namespace

Resolved resolve(RawOps raw, Collective collective, const Shape& shape, bool in_place, Evaluator& evaluator) {
  return Resolver(std::move(raw), collective, shape, in_place, evaluator).run();
}

}  // namespace weft
