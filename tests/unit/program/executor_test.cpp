// Runs the plans of all ranks with tiles, a window, and wires of capacity 1 that keep their order, while a random hand
// decides who goes next. Nothing may get stuck, and every result must be right.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "plan/shape.hpp"
#include "programs.hpp"

namespace weft {
namespace {

enum class Key { right, plain };

int64_t input(int rank, uint32_t chunk, uint32_t tile) { return 1 + rank * 1000003LL + chunk * 1009LL + tile; }

struct Setting {
  uint32_t tiles, window;
  Key key = Key::right;
};

class Executor {
 public:
  Executor(std::vector<std::shared_ptr<const Plan>> plans, Setting setting, uint32_t seed)
      : setting_(setting), random_(seed) {
    for (auto& plan : plans) ranks_.emplace_back(std::move(plan), setting);
    connect();
  }

  // False when it is stuck.
  bool run() {
    while (!finished()) {
      std::shuffle(wires_.begin(), wires_.end(), random_);
      bool progress = false;
      for (Wire* wire : wires_) {
        const bool receive_first = (random_() & 1) != 0;
        if (receive_first) progress |= receive(*wire);
        progress |= send(*wire);
        if (!receive_first) progress |= receive(*wire);
      }
      for (Rank& rank : ranks_) progress |= copy(rank);
      if (!progress) return false;
    }
    return true;
  }

  std::optional<std::string> wrong() const {
    for (const Rank& rank : ranks_) {
      const Plan& plan = *rank.plan;
      for (uint32_t c = 0; c < plan.out_blocks * plan.chunks_per_block; ++c) {
        for (uint32_t t = 0; t < setting_.tiles; ++t) {
          const int64_t have = rank.memory[rank.cell(Buffer::out, c, t)];
          if (have != expected(plan, c, t)) {
            return fmt::format("rank {}, out[{}], tile {}: {} instead of {}", plan.rank, c, t, have,
                               expected(plan, c, t));
          }
        }
      }
    }
    return {};
  }

 private:
  struct Rank {
    Rank(std::shared_ptr<const Plan> of, Setting with) : plan(std::move(of)), setting(with) {
      shape = shape_of(plan->collective, plan->ranks, plan->rank, plan->root);
      in = plan->in_blocks * plan->chunks_per_block;
      out = plan->out_blocks * plan->chunks_per_block;
      memory.assign(size_t{in + out + plan->scratch_chunks} * setting.tiles, -1);
      for (uint32_t c = 0; c < in; ++c) {
        for (uint32_t t = 0; t < setting.tiles; ++t) memory[cell(Buffer::in, c, t)] = input(plan->rank, c, t);
      }
      waiting.assign(setting.tiles, plan->predecessors);
      done.assign(setting.tiles, std::vector<bool>(plan->ops.size(), false));
      left.assign(setting.tiles, plan->ops.size());
      while (lowest < setting.tiles && left[lowest] == 0) ++lowest;
    }

    size_t cell(Buffer buffer, uint32_t chunk, uint32_t tile) const {
      const uint32_t per_block = plan->chunks_per_block, begin = shape.out_first * per_block;
      uint32_t row = chunk, slot = tile;
      if (buffer == Buffer::out) {
        const bool same =
            plan->in_place && shape.can_be_in_place() && chunk >= begin && chunk < begin + shape.shared * per_block;
        row = same ? shape.in_first * per_block + chunk - begin : in + chunk;
      } else if (buffer == Buffer::scratch) {
        row = in + out + chunk;
        slot = tile % setting.window;
      }
      return size_t{row} * setting.tiles + slot;
    }
    std::vector<size_t> cells(std::span<const Region> regions, uint32_t tile) const {
      std::vector<size_t> list;
      for (const Region& region : regions) {
        for (uint32_t i = 0; i < region.count; ++i) list.push_back(cell(region.buffer, region.first + i, tile));
      }
      return list;
    }
    bool ready(uint32_t op, uint32_t tile) const {
      return tile < lowest + setting.window && waiting[tile][op] == 0 && !done[tile][op];
    }
    void finish(uint32_t op, uint32_t tile) {
      done[tile][op] = true;
      for (uint32_t s = plan->successor_begin[op]; s < plan->successor_begin[op + 1]; ++s) {
        --waiting[tile][plan->successors[s]];
      }
      --left[tile];
      while (lowest < setting.tiles && left[lowest] == 0) ++lowest;
    }

    std::shared_ptr<const Plan> plan;
    Setting setting;
    Shape shape;
    uint32_t in = 0, out = 0, lowest = 0;
    std::vector<int64_t> memory;
    std::vector<std::vector<uint32_t>> waiting;
    std::vector<std::vector<bool>> done;
    std::vector<size_t> left;
  };

  struct Item {
    uint64_t key;
    uint32_t tile, op;
  };
  struct Wire {
    int from = 0, to = 0;
    std::vector<Item> sends, receives;
    size_t sent = 0, received = 0;
    std::optional<std::vector<int64_t>> inside;
  };

  void connect() {
    for (Rank& rank : ranks_) {
      const uint64_t stride = std::max(rank.plan->steps, setting_.window);
      for (uint32_t t = 0; t < setting_.tiles; ++t) {
        for (uint32_t i = 0; i < rank.plan->ops.size(); ++i) {
          const Op& op = rank.plan->ops[i];
          if (op.verb == Verb::copy) continue;
          const bool sends = op.verb == Verb::send;
          const int from = sends ? rank.plan->rank : op.peer, to = sends ? op.peer : rank.plan->rank;
          Wire& wire = named_[{from, to, op.lane}];
          wire.from = from;
          wire.to = to;
          const uint64_t key =
              setting_.key == Key::plain ? t + op.step : t / setting_.window * stride + t % setting_.window + op.step;
          (sends ? wire.sends : wire.receives).push_back({key, t, i});
        }
      }
    }
    for (auto& [name, wire] : named_) {
      for (auto* items : {&wire.sends, &wire.receives}) {
        std::sort(items->begin(), items->end(), [](const Item& a, const Item& b) {
          return std::tie(a.key, a.tile, a.op) < std::tie(b.key, b.tile, b.op);
        });
      }
      wires_.push_back(&wire);
    }
  }

  bool send(Wire& wire) {
    Rank& rank = ranks_[static_cast<size_t>(wire.from)];
    if (wire.inside || wire.sent == wire.sends.size()) return false;
    const Item item = wire.sends[wire.sent];
    if (!rank.ready(item.op, item.tile)) return false;
    std::vector<int64_t> values;
    for (const size_t cell : rank.cells(rank.plan->src(rank.plan->ops[item.op]), item.tile)) {
      values.push_back(rank.memory[cell]);
    }
    wire.inside = std::move(values);
    ++wire.sent;
    rank.finish(item.op, item.tile);
    return true;
  }

  bool receive(Wire& wire) {
    Rank& rank = ranks_[static_cast<size_t>(wire.to)];
    if (!wire.inside || wire.received == wire.receives.size()) return false;
    const Item item = wire.receives[wire.received];
    if (!rank.ready(item.op, item.tile)) return false;
    const Op& op = rank.plan->ops[item.op];
    const auto dst = rank.cells(rank.plan->dst(op), item.tile), kept = rank.cells(rank.plan->src(op), item.tile);
    EXPECT_EQ(dst.size(), wire.inside->size());
    for (size_t i = 0; i < dst.size(); ++i) {
      rank.memory[dst[i]] = (*wire.inside)[i] + (op.reduce ? rank.memory[kept[i]] : 0);
    }
    wire.inside.reset();
    ++wire.received;
    rank.finish(item.op, item.tile);
    return true;
  }

  bool copy(Rank& rank) {
    bool progress = false;
    const uint32_t end = std::min(setting_.tiles, rank.lowest + setting_.window);
    for (uint32_t t = rank.lowest; t < end; ++t) {
      for (uint32_t i = 0; i < rank.plan->ops.size(); ++i) {
        const Op& op = rank.plan->ops[i];
        if (op.verb != Verb::copy || !rank.ready(i, t) || (random_() & 1) != 0) continue;
        const auto dst = rank.cells(rank.plan->dst(op), t), src = rank.cells(rank.plan->src(op), t);
        for (size_t j = 0; j < dst.size(); ++j) {
          int64_t sum = 0;
          for (size_t s = 0; s < op.sources; ++s) sum += rank.memory[src[s * dst.size() + j]];
          rank.memory[dst[j]] = sum;
        }
        rank.finish(i, t);
        progress = true;
      }
    }
    // A copy that the random hand left for later is no standstill.
    return progress || any_copy_ready(rank);
  }

  bool any_copy_ready(const Rank& rank) const {
    for (uint32_t t = rank.lowest; t < std::min(setting_.tiles, rank.lowest + setting_.window); ++t) {
      for (uint32_t i = 0; i < rank.plan->ops.size(); ++i) {
        if (rank.plan->ops[i].verb == Verb::copy && rank.ready(i, t)) return true;
      }
    }
    return false;
  }

  bool finished() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.lowest == setting_.tiles; });
  }

  // From the definition of each collective.
  int64_t expected(const Plan& plan, uint32_t chunk, uint32_t tile) const {
    const uint32_t per_block = plan.chunks_per_block, block = chunk / per_block, part = chunk % per_block;
    const uint32_t mine = static_cast<uint32_t>(plan.rank) * per_block + part;
    const auto sum = [&](uint32_t of) {
      int64_t total = 0;
      for (int r = 0; r < plan.ranks; ++r) total += input(r, of, tile);
      return total;
    };
    switch (plan.collective) {
      case Collective::allreduce:
      case Collective::reduce:
        return sum(chunk);
      case Collective::reducescatter:
      case Collective::reducescatterv:
        return sum(mine);
      case Collective::broadcast:
        return input(plan.root, chunk, tile);
      case Collective::scatter:
      case Collective::scatterv:
        return input(plan.root, mine, tile);
      case Collective::alltoall:
      case Collective::alltoallv:
        return input(static_cast<int>(block), mine, tile);
      default:
        return input(static_cast<int>(block), part, tile);
    }
  }

  const Setting setting_;
  std::mt19937 random_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<int, int, int>, Wire> named_;
  std::vector<Wire*> wires_;
};

std::vector<std::shared_ptr<const Plan>> plans_of(const Program& program, int ranks, int root, uint32_t in_place) {
  std::vector<std::shared_ptr<const Plan>> plans;
  for (int r = 0; r < ranks; ++r) {
    const bool here = program.collective() != Collective::alltoallv && (in_place >> r & 1) != 0;
    plans.push_back(plan_of(program, {ranks, r, root, here}));
  }
  return plans;
}

TEST(Executor, NothingGetsStuckAndEveryResultIsRight) {
  std::mt19937 random(11);
  for (const ProgramPtr& program : builtin_programs()) {
    for (const int ranks : {2, 3, 4, 5, 8, 9}) {
      if (!program->supports(ranks)) continue;
      for (const Setting setting : {Setting{1, 1}, Setting{7, 1}, Setting{9, 3}, Setting{12, 4}, Setting{5, 16}}) {
        const int root = static_cast<int>(random() % static_cast<uint32_t>(ranks));
        Executor executor(plans_of(*program, ranks, root, random()), setting, random());
        ASSERT_TRUE(executor.run()) << full_name(*program) << " is stuck: " << ranks << " ranks, " << setting.tiles
                                    << " tiles, window " << setting.window;
        if (program->collective() == Collective::barrier) continue;
        const auto wrong = executor.wrong();
        ASSERT_FALSE(wrong) << full_name(*program) << ", " << ranks << " ranks, root " << root << ": " << *wrong;
      }
    }
  }
}

// The test can fail: ordered by tile + step alone, where the window has an edge, ranks wait for each other for ever.
TEST(Executor, APlainWavefrontGetsStuck) {
  int stuck = 0;
  for (const int ranks : {3, 4, 5, 8}) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      Executor executor(plans_of(*builtin("allreduce", "ring"), ranks, 0, 0), {20, 2, Key::plain}, seed);
      stuck += static_cast<int>(!executor.run());
    }
  }
  EXPECT_GT(stuck, 0);
}

}  // namespace
}  // namespace weft
