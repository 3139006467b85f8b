#include "case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace weft::testing {
namespace {

using reference::Bits;
using reference::Pattern;

constexpr std::byte kUnset{0x5a};  // `out` before the call

// A random number that everybody can recompute.
uint64_t draw(uint64_t seed, uint64_t what, uint64_t rank = 0) {
  std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), static_cast<uint32_t>(what),
                         static_cast<uint32_t>(rank)};
  uint32_t words[2];
  sequence.generate(words, words + 2);
  return uint64_t{words[0]} << 32 | words[1];
}

// Elements that go from one rank to another, or that a block has, in a v-variant: a quarter of the blocks are empty.
size_t v_count(const Case& call, int from, int to) {
  const uint64_t pair = call.collective == Collective::alltoallv ? static_cast<uint64_t>(from) << 16 : 0;
  const uint64_t random = draw(call.seed, 1, pair | static_cast<uint64_t>(to));
  return random % 4 == 0 ? 0 : (random >> 8) % (call.count + 1);
}

Side one_block(size_t count) { return {true, {{0, 0, count}}, count}; }

Side even_blocks(int blocks, size_t count) {
  Side side{true, {}, static_cast<size_t>(blocks) * count};
  for (size_t i = 0; i < static_cast<size_t>(blocks); ++i) side.blocks.push_back({i * count, i * count, count});
  return side;
}

// Blocks in any order in memory, with gaps. An empty block's displacement leads nowhere.
Side scattered_blocks(const std::vector<size_t>& counts, uint64_t seed) {
  std::mt19937_64 random(seed);
  Side side{true, std::vector<Block>(counts.size()), 0};
  std::vector<size_t> order(counts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  const size_t most_gap = random() % 3 == 0 ? 0 : 5;
  size_t at = 0;
  for (const size_t block : order) {
    if (counts[block] == 0) {
      side.blocks[block].at = 1000000000;
      continue;
    }
    at += random() % (most_gap + 1);
    side.blocks[block].at = at;
    at += counts[block];
  }
  side.extent = at;
  size_t first = 0;
  for (size_t block = 0; block < counts.size(); ++block) {
    side.blocks[block].first = first;
    side.blocks[block].count = counts[block];
    first += counts[block];
  }
  return side;
}

// The counts of rank r's blocks in `in` or `out` of a v-variant.
std::vector<size_t> v_counts(const Case& call, int rank, bool in) {
  std::vector<size_t> counts;
  for (int other = 0; other < call.ranks; ++other) {
    const bool outward = call.collective != Collective::alltoallv || in;
    counts.push_back(outward ? v_count(call, rank, other) : v_count(call, other, rank));
  }
  return counts;
}

// Guarded memory, or what weftMemAlloc or an arena gave.
class Memory {
 public:
  Memory(size_t bytes, bool shared, uint64_t random, Arena* arena) {
    if (arena != nullptr) data_ = arena->take(bytes, (random >> 8) % 71);
    if (data_ != nullptr) {
      // its gaps are the arena's to check
    } else if (shared && bytes > 0) {
      EXPECT_EQ(weftMemAlloc(&shared_, bytes), weftSuccess);
      data_ = static_cast<std::byte*>(shared_);
    } else {
      const auto against = random % 2 == 0 ? GuardedBuffer::Against::begin : GuardedBuffer::Against::end;
      const size_t shift = (random >> 1) % 3 == 0 ? 0 : (random >> 8) % 71;
      guarded_.emplace_back(bytes, shift, against);
      data_ = guarded_[0].data();
    }
    std::memset(data_, std::to_integer<int>(kUnset), bytes);
    bytes_ = bytes;
  }
  ~Memory() {
    if (shared_ != nullptr) weftMemFree(shared_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  ::testing::AssertionResult whole() const {
    return guarded_.empty() ? ::testing::AssertionSuccess() : guarded_[0].whole();
  }

 private:
  std::vector<GuardedBuffer> guarded_;
  void* shared_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

struct Arrays {
  std::vector<size_t> counts, displs;
  explicit Arrays(const Side& side) {
    for (const Block& block : side.blocks) {
      counts.push_back(block.count);
      displs.push_back(block.at);
    }
  }
};

// To oneself inside a group, the caller's.
weftResult_t issue_message(const Case& call, const Side& ins, const Side& outs, const void* in, void* out,
                           weftComm_t comm, weftStream_t stream) {
  if (outs.exists) {
    const weftResult_t result = weftRecv(out, call.count, call.type, call.root, comm, stream);
    if (result != weftSuccess || !ins.exists) return result;
  }
  return weftSend(in, call.count, call.type, call.peer, comm, stream);
}

weftResult_t issue(const Case& call, const Side& ins, const Side& outs, const void* in, void* out, weftRedOp_t op,
                   weftComm_t comm, weftStream_t stream) {
  const Arrays of_in(ins), of_out(outs);
  const auto array = [](const std::vector<size_t>& values) { return values.empty() ? nullptr : values.data(); };
  const size_t in_first = ins.blocks.empty() ? 0 : ins.blocks[0].count;
  const size_t out_first = outs.blocks.empty() ? 0 : outs.blocks[0].count;
  switch (call.collective) {
    case Collective::allreduce:
      return weftAllReduce(in, out, call.count, call.type, op, comm, stream);
    case Collective::reduce:
      return weftReduce(in, out, call.count, call.type, op, call.root, comm, stream);
    case Collective::broadcast:
      return weftBroadcast(in, out, call.count, call.type, call.root, comm, stream);
    case Collective::allgather:
      return weftAllGather(in, out, call.count, call.type, comm, stream);
    case Collective::reducescatter:
      return weftReduceScatter(in, out, call.count, call.type, op, comm, stream);
    case Collective::alltoall:
      return weftAlltoAll(in, out, call.count, call.type, comm, stream);
    case Collective::gather:
      return weftGather(in, out, call.count, call.type, call.root, comm, stream);
    case Collective::scatter:
      return weftScatter(in, out, call.count, call.type, call.root, comm, stream);
    case Collective::barrier:
      return weftBarrier(comm, stream);
    case Collective::allgatherv:
      return weftAllGatherv(in, in_first, out, array(of_out.counts), array(of_out.displs), call.type, comm, stream);
    case Collective::reducescatterv:
      return weftReduceScatterv(in, array(of_in.counts), array(of_in.displs), out, out_first, call.type, op, comm,
                                stream);
    case Collective::alltoallv:
      return weftAlltoAllv(in, array(of_in.counts), array(of_in.displs), out, array(of_out.counts),
                           array(of_out.displs), call.type, comm, stream);
    case Collective::gatherv:
      return weftGatherv(in, in_first, out, array(of_out.counts), array(of_out.displs), call.type, call.root, comm,
                         stream);
    case Collective::scatterv:
      return weftScatterv(in, array(of_in.counts), array(of_in.displs), out, out_first, call.type, call.root, comm,
                          stream);
    case Collective::sendrecv:
      return issue_message(call, ins, outs, in, out, comm, stream);
  }
  return weftInternalError;
}

// Elements from the start of the one buffer to the start of the other, for a call in place.
struct Overlap {
  size_t in = 0, out = 0;
};
Overlap overlap_of(const Case& call, int rank, const Side& ins, const Side& outs) {
  const auto own = static_cast<size_t>(rank);
  // What leads nowhere (an empty block) may stand anywhere.
  const auto place = [own](const Side& side) { return side.blocks[own].count == 0 ? 0 : side.blocks[own].at; };
  switch (call.collective) {
    case Collective::allgather:
    case Collective::allgatherv:
    case Collective::gather:
    case Collective::gatherv:
      return {place(outs), 0};
    case Collective::reducescatter:
    case Collective::reducescatterv:
    case Collective::scatter:
    case Collective::scatterv:
      return {0, place(ins)};
    default:
      return {};
  }
}

// The elements of `type` that the reduction over all ranks gives for one block, in the order of the ranks.
std::vector<std::byte> folded(const Case& call, const std::vector<std::vector<std::byte>>& inputs, const Block& block) {
  std::vector<const void*> from;
  std::vector<Bits> scalars;
  for (int rank = 0; rank < call.ranks; ++rank) {
    from.push_back(inputs[static_cast<size_t>(rank)].data() + block.first * type_bytes(call.type));
    if (call.op == weftNumOps) scalars.push_back(scalar_of(call, rank));
  }
  const weftRedOp_t op = call.op == weftNumOps ? weftSum : call.op;
  return reference::fold_buffers(call.type, op, from, block.count, call.wide, scalars);
}

}  // namespace

bool is_v(Collective collective) { return collective >= Collective::allgatherv && collective <= Collective::scatterv; }
bool reduces(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce ||
         collective == Collective::reducescatter || collective == Collective::reducescatterv;
}
bool has_root(Collective collective) {
  return collective == Collective::reduce || collective == Collective::broadcast || collective == Collective::gather ||
         collective == Collective::gatherv || collective == Collective::scatter || collective == Collective::scatterv;
}

std::string describe(const Case& call) {
  static const char* const kPatterns[] = {"any bits", "finite", "exact"};
  std::string text = fmt::format("{} of {} {}", name_of(call.collective), call.count, kTypes[call.type].name);
  if (reduces(call.collective)) {
    text += fmt::format(" {}{}", call.op == weftNumOps ? "premulsum" : kOps[call.op], call.wide ? " wide" : "");
  }
  if (has_root(call.collective)) text += fmt::format(" root {}", call.root);
  if (call.collective == Collective::sendrecv) text += fmt::format(" from {} to {}", call.root, call.peer);
  return text + fmt::format(", {} ranks, in place {:#x}, {}{}{}, seed {:#x}", call.ranks, call.in_place,
                            kPatterns[static_cast<int>(call.pattern)], call.stream ? ", stream" : "",
                            call.shared_memory ? ", shared" : "", call.seed);
}

Side in_side(const Case& call, int rank) {
  switch (call.collective) {
    case Collective::broadcast:
    case Collective::sendrecv:
      return rank == call.root ? one_block(call.count) : Side{};
    case Collective::reducescatter:
    case Collective::alltoall:
      return even_blocks(call.ranks, call.count);
    case Collective::scatter:
      return rank == call.root ? even_blocks(call.ranks, call.count) : Side{};
    case Collective::allgatherv:
    case Collective::gatherv:
      return one_block(v_count(call, 0, rank));
    case Collective::reducescatterv:
    case Collective::alltoallv:
      return scattered_blocks(v_counts(call, rank, true), draw(call.seed, 2, static_cast<uint64_t>(rank)));
    case Collective::scatterv:
      if (rank != call.root) return Side{};
      return scattered_blocks(v_counts(call, rank, true), draw(call.seed, 2));
    case Collective::barrier:
      return Side{};
    default:
      return one_block(call.count);
  }
}

Side out_side(const Case& call, int rank) {
  switch (call.collective) {
    case Collective::reduce:
      return rank == call.root ? one_block(call.count) : Side{};
    case Collective::sendrecv:
      return rank == call.peer ? one_block(call.count) : Side{};
    case Collective::allgather:
    case Collective::alltoall:
      return even_blocks(call.ranks, call.count);
    case Collective::gather:
      return rank == call.root ? even_blocks(call.ranks, call.count) : Side{};
    case Collective::reducescatterv:
    case Collective::scatterv:
      return one_block(v_count(call, 0, rank));
    case Collective::allgatherv:
    case Collective::alltoallv:
      return scattered_blocks(v_counts(call, rank, false), draw(call.seed, 3, static_cast<uint64_t>(rank)));
    case Collective::gatherv:
      if (rank != call.root) return Side{};
      return scattered_blocks(v_counts(call, rank, false), draw(call.seed, 3));
    case Collective::barrier:
      return Side{};
    default:
      return one_block(call.count);
  }
}

Bits scalar_of(const Case& call, int rank) {
  if (call.pattern == Pattern::kExact) return reference::exact_scalar(call.type, rank);
  return reference::element(Pattern::kFinite, call.type, weftProd, call.seed + 77, rank, 0);
}

std::vector<std::byte> input_of(const Case& call, int rank) {
  const Side side = in_side(call, rank);
  size_t elements = 0;
  for (const Block& block : side.blocks) elements += block.count;
  std::vector<std::byte> bytes(elements * type_bytes(call.type));
  const weftRedOp_t op = call.op == weftNumOps ? weftSum : call.op;
  reference::fill(call.pattern, call.type, op, call.seed, rank, 0, bytes.data(), elements);
  return bytes;
}

Expectation::Expectation(const Case& call, const Program* program)
    : call_(call), algorithm_(program == nullptr ? "?" : program->name()), results_(static_cast<size_t>(call.ranks)) {
  if (call.collective == Collective::barrier) return;
  if (reduces(call.collective) && call.pattern != Pattern::kExact && program != nullptr) {
    results_ = replay(*program, call);
    return;
  }
  std::vector<std::vector<std::byte>> inputs;
  for (int rank = 0; rank < call.ranks; ++rank) inputs.push_back(input_of(call, rank));
  const size_t element = type_bytes(call.type);
  for (int rank = 0; rank < call.ranks; ++rank) {
    const Side outs = out_side(call, rank);
    auto& result = results_[static_cast<size_t>(rank)];
    for (size_t block = 0; block < outs.blocks.size(); ++block) {
      const bool scatters = call.collective == Collective::reducescatter ||
                            call.collective == Collective::reducescatterv || call.collective == Collective::alltoall ||
                            call.collective == Collective::alltoallv || call.collective == Collective::scatter ||
                            call.collective == Collective::scatterv;
      const bool from_root = call.collective == Collective::broadcast || call.collective == Collective::scatter ||
                             call.collective == Collective::scatterv || call.collective == Collective::sendrecv;
      const int source = from_root ? call.root : static_cast<int>(block);
      const Block from =
          in_side(call, reduces(call.collective) ? rank : source).blocks[scatters ? static_cast<size_t>(rank) : 0];
      if (reduces(call.collective)) {
        const auto bytes = folded(call, inputs, from);
        result.insert(result.end(), bytes.begin(), bytes.end());
      } else {
        const std::byte* begin = inputs[static_cast<size_t>(source)].data() + from.first * element;
        result.insert(result.end(), begin, begin + from.count * element);
      }
    }
  }
}

void Expectation::run(int rank, weftComm_t comm, weftStream_t stream) const {
  Part part(*this, rank);
  const weftStream_t on = call_.stream ? stream : nullptr;
  WEFT_EXPECT_OK(part.issue(comm, on), comm) << part.what();
  if (on != nullptr) {
    WEFT_EXPECT_OK(weftStreamSynchronize(on), comm) << part.what();
  }
  part.check();
}

// ---- Arena

Arena::Arena(void* base, size_t bytes)
    : base_(static_cast<std::byte*>(base)), next_(base_), end_(base_ + bytes), gaps_{{base_, end_}} {
  (void)give_back();
}

std::byte* Arena::take(size_t bytes, size_t shift) {
  constexpr size_t kGap = 64;
  if (static_cast<size_t>(end_ - next_) < bytes + shift + kGap) return nullptr;
  std::byte* data = next_ + shift;
  gaps_.back() = {next_, data};
  next_ = data + bytes;
  gaps_.emplace_back(next_, end_);
  return data;
}

bool Arena::give_back() {
  const bool whole = std::all_of(gaps_.begin(), gaps_.end(), [this](const auto& gap) {
    const auto painted = [](std::byte byte) { return byte == GuardedBuffer::kPaint; };
    return std::all_of(gap.first, gap.second, painted);
  });
  std::fill(base_, end_, GuardedBuffer::kPaint);
  next_ = base_;
  gaps_ = {{base_, end_}};
  return whole;
}

// ---- A rank's part

struct Part::State {
  State(const Expectation& expectation, int rank, Arena* arena);
  void put_input(const std::vector<std::byte>& input);
  void expect(const std::vector<std::byte>& result);
  void same(const Memory& memory, const std::vector<std::byte>& after, const char* which) const;

  const Case& call;
  const int rank;
  const std::string what;
  const Side ins, outs;
  const size_t element;
  const bool on_spot;
  const Overlap overlap;
  const uint64_t random;
  Memory first, second;
  std::byte *in, *out;
  std::vector<std::byte> first_after, second_after;  // all memory once the call is over
};

Part::State::State(const Expectation& expectation, int rank_, Arena* arena)
    : call(expectation.call()),
      rank(rank_),
      what(fmt::format("rank {}: {}, {}", rank, describe(call), expectation.algorithm())),
      ins(in_side(call, rank)),
      outs(out_side(call, rank)),
      element(type_bytes(call.type)),
      on_spot((call.in_place >> rank & 1) != 0 && ins.exists && outs.exists &&
              call.collective != Collective::alltoallv && call.collective != Collective::sendrecv),
      overlap(on_spot ? overlap_of(call, rank, ins, outs) : Overlap{}),
      random(draw(call.seed, 4, static_cast<uint64_t>(rank))),
      first(on_spot ? element * std::max(overlap.in + ins.extent, overlap.out + outs.extent) : ins.extent * element,
            call.shared_memory, random, arena),
      second(on_spot ? 0 : outs.extent * element, call.shared_memory, random >> 20, arena),
      in(first.data() + overlap.in * element),
      out(on_spot ? first.data() + overlap.out * element : second.data()) {
  put_input(input_of(call, rank));
  expect(expectation.result(rank));
}

void Part::State::put_input(const std::vector<std::byte>& input) {
  for (const Block& block : ins.blocks) {
    if (block.count > 0)
      std::memcpy(in + block.at * element, input.data() + block.first * element, block.count * element);
  }
}

// As before the call but for the blocks of `out`.
void Part::State::expect(const std::vector<std::byte>& result) {
  first_after.assign(first.data(), first.data() + first.bytes());
  second_after.assign(second.data(), second.data() + second.bytes());
  std::byte* const result_at = on_spot ? first_after.data() + overlap.out * element : second_after.data();
  for (const Block& block : outs.blocks) {
    if (block.count == 0) continue;
    std::memcpy(result_at + block.at * element, result.data() + block.first * element, block.count * element);
  }
}

void Part::State::same(const Memory& memory, const std::vector<std::byte>& after, const char* which) const {
  EXPECT_TRUE(memory.whole()) << what << ", " << which;
  if (after.empty() || std::memcmp(memory.data(), after.data(), after.size()) == 0) return;
  // Elements are counted from where the buffer's do; what is left over is a gap.
  EXPECT_EQ(reference::first_difference(call.type, memory.data(), after.data(), after.size() / element), "")
      << what << ", " << which;
}

Part::Part(const Expectation& expectation, int rank, Arena* arena)
    : state_(std::make_unique<State>(expectation, rank, arena)) {}
Part::~Part() = default;
Part::Part(Part&&) noexcept = default;
const std::string& Part::what() const { return state_->what; }

weftResult_t Part::issue(weftComm_t comm, weftStream_t stream) {
  const State& s = *state_;
  // Arguments without meaning are NULL or anything.
  void* const nothing = s.random >> 40 & 1 ? nullptr : reinterpret_cast<void*>(uintptr_t{0x10});
  const void* in = !s.ins.exists ? nothing : s.ins.extent == 0 && !s.on_spot ? nullptr : s.in;
  void* out = !s.outs.exists ? nothing : s.outs.extent == 0 && !s.on_spot ? nullptr : s.out;
  weftRedOp_t op = s.call.op;
  if (reduces(s.call.collective) && op == weftNumOps) {
    Bits scalar = scalar_of(s.call, s.rank);
    const weftResult_t made = weftRedOpCreatePreMulSum(&op, &scalar, s.call.type, weftScalarHostImmediate, comm);
    if (made != weftSuccess) return made;
  }
  const weftResult_t result = testing::issue(s.call, s.ins, s.outs, in, out, op, comm, stream);
  if (op != s.call.op) {
    WEFT_EXPECT_OK(weftRedOpDestroy(op, comm), comm);
  }
  return result;
}

void Part::check() const {
  state_->same(state_->first, state_->first_after, state_->on_spot ? "both buffers" : "sendbuff");
  state_->same(state_->second, state_->second_after, "recvbuff");
}

}  // namespace weft::testing
