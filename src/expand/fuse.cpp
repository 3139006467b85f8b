#include "expand/fuse.hpp"

#include <algorithm>

namespace weft {
namespace {

constexpr uint32_t kNoOp = UINT32_MAX;

class Fusion {
 public:
  explicit Fusion(Resolved& resolved) : resolved_(resolved), raw_(resolved.raw), uses_(resolved.storages) {
    for (uint32_t i = 0; i < raw_.ops.size(); ++i) {
      const RawOp& op = raw_.ops[i];
      for (uint32_t l = 0; l < op.lists; ++l) {
        for (uint32_t j = 0; j < op.length; ++j) {
          Use& use = uses_[storage(op, l, j)];
          const bool writes = op.has_dst() && l == 0;
          ++(writes ? use.writes : use.reads);
          if (writes) use.writer = i;
        }
      }
    }
  }

  void run() {
    std::vector<bool> gone(raw_.ops.size());
    for (uint32_t i = 0; i < raw_.ops.size(); ++i) {
      const RawOp& op = raw_.ops[i];
      if (op.verb != Verb::copy || op.sources() != 2 || op.length == 0) continue;
      for (const uint32_t received : {2U, 1U}) {
        const uint32_t recv = receive_of(op, received);
        if (recv == kNoOp || !free(recv, i, 3 - received)) continue;
        join(raw_.ops[recv], op, 3 - received);
        gone[i] = true;
        break;
      }
    }
    size_t kept = 0;
    for (size_t i = 0; i < raw_.ops.size(); ++i) {
      if (!gone[i]) raw_.ops[kept++] = raw_.ops[i];
    }
    raw_.ops.resize(kept);
  }

 private:
  struct Use {
    uint32_t reads = 0, writes = 0, writer = kNoOp;
  };

  uint32_t storage(const RawOp& op, uint32_t list, uint32_t position) const {
    return resolved_.storage[raw_.list(op, list)[position]];
  }

  // The plain receive that writes all of this list, which is scratch and used for nothing else.
  uint32_t receive_of(const RawOp& op, uint32_t list) const {
    const uint32_t recv = uses_[storage(op, list, 0)].writer;
    if (recv == kNoOp || raw_.ops[recv].verb != Verb::recv || raw_.ops[recv].reduce) return kNoOp;
    if (raw_.ops[recv].length != op.length || raw_.ops[recv].step >= op.step) return kNoOp;
    for (uint32_t j = 0; j < op.length; ++j) {
      const uint32_t here = storage(op, list, j);
      const Use& use = uses_[here];
      if (resolved_.places[raw_.list(op, list)[j]].buffer != Buffer::scratch) return kNoOp;
      if (use.reads != 1 || use.writes != 1 || storage(raw_.ops[recv], 0, j) != here) return kNoOp;
    }
    return recv;
  }

  // From the step of the receive up to the copy nobody else touches dst, or writes the other operand.
  bool free(uint32_t recv, uint32_t copy, uint32_t other) const {
    const RawOp& combine = raw_.ops[copy];
    uint32_t first = recv;
    while (first > 0 && raw_.ops[first - 1].step == raw_.ops[recv].step) --first;
    for (uint32_t i = first; i < copy; ++i) {
      const RawOp& op = raw_.ops[i];
      for (uint32_t l = 0; i != recv && l < op.lists; ++l) {
        const bool writes = op.has_dst() && l == 0;
        for (uint32_t j = 0; j < op.length; ++j) {
          for (uint32_t k = 0; k < combine.length; ++k) {
            const uint32_t touched = storage(op, l, j);
            if (touched == storage(combine, 0, k) || (writes && touched == storage(combine, other, k))) return false;
          }
        }
      }
    }
    return true;
  }

  void join(RawOp& recv, const RawOp& combine, uint32_t other) {
    const size_t begin = raw_.chunks.size();
    for (const uint32_t list : {0U, other}) {
      for (uint32_t j = 0; j < combine.length; ++j) raw_.chunks.push_back(raw_.list(combine, list)[j]);
    }
    recv.begin = begin;
    recv.lists = 2;
    recv.reduce = true;
  }

  Resolved& resolved_;
  RawOps& raw_;
  std::vector<Use> uses_;
};

}  // namespace

void fuse(Resolved& resolved) { Fusion(resolved).run(); }

}  // namespace weft
