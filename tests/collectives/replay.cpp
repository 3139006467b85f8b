// The plans of all ranks run one step after the other on whole chunks, with the serial reference's arithmetic: what the
// engine has to arrive at bit for bit, whatever its tiles, windows, threads and wires did.
#include <bit>
#include <cstring>
#include <deque>
#include <map>

#include "bind/geometry.hpp"
#include "case.hpp"

namespace weft::testing {
namespace {

using reference::Bits;
using Bytes = std::vector<std::byte>;

class Replay {
 public:
  Replay(const Program& program, const Case& call)
      : call_(call),
        wide_(call.wide && reference::is_narrow(call.type)),
        type_(wide_ ? weftFloat32 : call.type),
        op_(call.op == weftNumOps || call.op == weftAvg ? weftSum : call.op) {
    for (int rank = 0; rank < call.ranks; ++rank) add_rank(program, rank);
  }

  std::vector<Bytes> run() {
    const uint32_t steps = ranks_.empty() ? 0 : ranks_[0].plan->steps;
    for (uint32_t step = 0; step < steps; ++step) run_step(step);
    std::vector<Bytes> results;
    for (Rank& rank : ranks_) results.push_back(finish(rank.out));
    return results;
  }

 private:
  struct Rank {
    std::shared_ptr<const Plan> plan;
    Geometry geometry;
    Bytes in, out, scratch;
    size_t next = 0;  // op
  };
  struct Write {
    Rank* rank;
    std::span<const Region> to;
    Bytes bytes;
  };

  // The input as the engine's first hop takes it: widened, pre-multiplied.
  Bytes prepare(int rank) const {
    const Bytes given = input_of(call_, rank);
    const size_t from = type_bytes(call_.type), to = type_bytes(type_), count = given.size() / from;
    Bytes prepared(count * to);
    const bool scaled = call_.op == weftNumOps;
    const auto image = [this](Bits bits) {
      return wide_ ? std::bit_cast<uint32_t>(reference::widen(call_.type, bits)) : bits;
    };
    const Bits scalar = scaled ? image(scalar_of(call_, rank)) : 0;
    for (size_t i = 0; i < count; ++i) {
      Bits bits = image(reference::load(call_.type, given.data() + i * from));
      if (scaled) bits = reference::scale(type_, bits, scalar);
      reference::store(type_, prepared.data() + i * to, bits);
    }
    return prepared;
  }

  Bytes finish(const Bytes& out) const {
    const size_t from = type_bytes(type_), to = type_bytes(call_.type), count = out.size() / from;
    Bytes result(count * to);
    for (size_t i = 0; i < count; ++i) {
      Bits bits = reference::load(type_, out.data() + i * from);
      if (call_.op == weftAvg) bits = reference::divide(type_, bits, call_.ranks);
      if (wide_) bits = reference::narrow(call_.type, std::bit_cast<float>(static_cast<uint32_t>(bits)));
      reference::store(call_.type, result.data() + i * to, bits);
    }
    return result;
  }

  void add_rank(const Program& program, int number) {
    auto plan = expand(
        program,
        {.ranks = call_.ranks, .rank = number, .root = call_.root, .in_place = false, .hierarchy = call_.hierarchy});
    if (!plan.ok()) throw std::runtime_error(plan.status().message());
    Rank rank;
    rank.plan = *plan;
    rank.in = prepare(number);
    const Side ins = in_side(call_, number), outs = out_side(call_, number);
    Call call;
    call.collective = call_.collective;
    call.count = call_.collective == Collective::reducescatterv ? outs.blocks[0].count : call_.count;
    call.type = type_;
    call.root = call_.root;
    if (call_.collective == Collective::reducescatterv) {
      for (const Block& block : ins.blocks) {
        call.in_counts.push_back(block.count);
        call.in_displs.push_back(block.first);
      }
    }
    rank.out.resize(outs.exists ? outs.blocks[0].count * type_bytes(type_) : 0);
    rank.geometry.bind(call, *rank.plan, type_bytes(type_), size_t{1} << 30, 1);
    rank.scratch.resize(rank.geometry.scratch_bytes());
    ranks_.push_back(std::move(rank));
    Rank& kept = ranks_.back();
    kept.geometry.set_buffers(kept.in.data(), kept.out.data());
    kept.geometry.set_scratch(kept.scratch.data());
  }

  static Bytes read(const Rank& rank, std::span<const Region> regions) {
    std::vector<Piece> pieces;
    rank.geometry.pieces(regions, 0, &pieces);
    Bytes bytes;
    for (const Piece& piece : pieces) bytes.insert(bytes.end(), piece.data, piece.data + piece.bytes);
    return bytes;
  }

  void combine_into(Bytes& left, const Bytes& right) const {
    const size_t element = type_bytes(type_);
    if (left.size() != right.size()) throw std::runtime_error("operands of different sizes");
    for (size_t at = 0; at < left.size(); at += element) {
      const Bits bits = reference::combine(type_, op_, reference::load(type_, left.data() + at),
                                           reference::load(type_, right.data() + at));
      reference::store(type_, left.data() + at, bits);
    }
  }

  // Within a step everything is read before anything is written.
  void run_step(uint32_t step) {
    std::map<std::pair<int, int>, std::deque<Bytes>> wires;
    std::vector<Write> writes;
    for (const bool sends : {true, false}) {
      for (Rank& rank : ranks_) {
        const auto& ops = rank.plan->ops;
        size_t at = rank.next;
        for (; at < ops.size() && ops[at].step == step; ++at) {
          if ((ops[at].verb == Verb::send) == sends) run_op(rank, ops[at], wires, writes);
        }
        if (!sends) rank.next = at;
      }
    }
    for (Write& write : writes) {
      std::vector<Piece> pieces;
      write.rank->geometry.pieces(write.to, 0, &pieces);
      const std::byte* from = write.bytes.data();
      for (const Piece& piece : pieces) {
        std::memcpy(piece.data, from, piece.bytes);
        from += piece.bytes;
      }
    }
  }

  void run_op(Rank& rank, const Op& op, std::map<std::pair<int, int>, std::deque<Bytes>>& wires,
              std::vector<Write>& writes) {
    const Plan& plan = *rank.plan;
    if (op.verb == Verb::send) {
      wires[{plan.rank, op.peer}].push_back(read(rank, plan.src(op)));
      return;
    }
    Bytes value;
    if (op.verb == Verb::recv) {
      auto& wire = wires[{op.peer, plan.rank}];
      if (wire.empty()) throw std::runtime_error("a receive without its send");
      value = std::move(wire.front());
      wire.pop_front();
      if (op.reduce) combine_into(value, read(rank, plan.src(op)));
    } else {
      const auto src = plan.src(op);
      const size_t each = src.size() / op.sources;
      value = read(rank, src.first(each));
      for (uint16_t i = 1; i < op.sources; ++i) combine_into(value, read(rank, src.subspan(i * each, each)));
    }
    writes.push_back({&rank, plan.dst(op), std::move(value)});
  }

  const Case& call_;
  const bool wide_;
  const weftDataType_t type_;
  const weftRedOp_t op_;
  std::deque<Rank> ranks_;
};

}  // namespace

std::vector<std::vector<std::byte>> replay(const Program& program, const Case& call) {
  return Replay(program, call).run();
}

}  // namespace weft::testing
