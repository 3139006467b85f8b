// Which algorithm a call takes: by the shipped measurements, the same on every rank, and without cliffs.
#include "tuner/tuner.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>

#include "plan/shape.hpp"

namespace weft {
namespace {

constexpr TopologyKind kKinds[] = {TopologyKind::shm, TopologyKind::tcp, TopologyKind::hosts};
constexpr size_t kLargest = 256 << 20;

Topology topology_of(TopologyKind kind, int ranks, bool oversubscribed) {
  Topology topology = topology_of(kind, ranks);
  topology.oversubscribed = oversubscribed;
  return topology;
}

Tuner tuner_of(const Topology& topology, std::vector<ProgramPtr> programs = builtin_programs(),
               const TunePtr& tune = default_tune(), const std::string& forced = "") {
  auto tuner = Tuner::create(topology, std::move(programs), forced, 0, 0, tune);
  EXPECT_TRUE(tuner.ok()) << tuner.status().message();
  return std::move(*tuner);
}

ProgramPtr parse(const std::string& text) {
  auto program = Program::parse(text, "test.algo");
  EXPECT_TRUE(program.ok()) << program.status().message();
  return *program;
}

TunePtr tune_of(const std::string& text) {
  auto tune = parse_tune(text, "test.tune");
  EXPECT_TRUE(tune.ok()) << tune.status().message();
  return std::make_shared<const Tune>(std::move(*tune));
}

// What is chosen by a tuner and the model that it has, over sizes.
class Chooser {
 public:
  explicit Chooser(TopologyKind kind, int ranks, bool oversubscribed = false)
      : topology_(topology_of(kind, ranks, oversubscribed)),
        tuner_(tuner_of(topology_)),
        model_(default_tune(), topology_, tuner_.tile_bytes()) {}

  std::string name(Collective collective, size_t bytes) const {
    const Choice choice = tuner_.choose(collective, bytes);
    return choice.program == nullptr ? "none" : choice.program->name();
  }
  double predicted(Collective collective, size_t bytes) {
    const Choice choice = tuner_.choose(collective, bytes);
    return choice.program == nullptr ? NAN : model_.cost(*choice.program, bytes).microseconds;
  }

 private:
  Topology topology_;
  Tuner tuner_;
  AlphaBetaModel model_;
};

bool chooses_by_size(Collective collective) {
  return collective <= Collective::scatter;  // neither barrier nor v-variants
}

TEST(Tuner, ShippedChoices) {
  struct Pin {
    TopologyKind kind;
    int ranks;
    Collective collective;
    size_t bytes;
    const char* algorithm;
  };
  constexpr Pin kPins[] = {
      {TopologyKind::shm, 2, Collective::allreduce, 8, "recursive_doubling"},
      {TopologyKind::shm, 2, Collective::allreduce, 256 << 10, "ring"},
      {TopologyKind::shm, 2, Collective::allreduce, 512 << 10, "halving_doubling"},
      {TopologyKind::shm, 2, Collective::allreduce, 64 << 20, "halving_doubling"},
      {TopologyKind::shm, 2, Collective::reducescatter, 32 << 10, "bruck"},
      {TopologyKind::shm, 2, Collective::reducescatter, 8 << 20, "bruck"},
      {TopologyKind::shm, 2, Collective::broadcast, 512, "double_tree"},
      {TopologyKind::shm, 2, Collective::broadcast, 32 << 10, "chain"},
      {TopologyKind::shm, 2, Collective::broadcast, 8 << 20, "flat"},
      {TopologyKind::tcp, 2, Collective::allreduce, 4 << 10, "flat"},
      {TopologyKind::tcp, 2, Collective::allreduce, 8 << 20, "halving_doubling"},
      {TopologyKind::shm, 4, Collective::allreduce, 16, "flat"},
      {TopologyKind::shm, 4, Collective::allreduce, 4 << 10, "recursive_doubling"},
      {TopologyKind::shm, 4, Collective::allreduce, 32 << 10, "recursive_doubling"},
      {TopologyKind::shm, 4, Collective::allreduce, 8 << 20, "ring"},
      {TopologyKind::shm, 4, Collective::allgather, 64 << 20, "flat"},
      {TopologyKind::shm, 4, Collective::reducescatter, 8 << 20, "pairwise"},
      {TopologyKind::shm, 4, Collective::alltoall, 32 << 10, "flat"},
      {TopologyKind::shm, 4, Collective::broadcast, 8 << 20, "flat"},
      {TopologyKind::hosts, 8, Collective::allgatherv, 0, "ring"},
  };
  for (const Pin& pin : kPins) {
    EXPECT_EQ(Chooser(pin.kind, pin.ranks, pin.ranks > 2).name(pin.collective, pin.bytes), pin.algorithm)
        << name_of(pin.kind) << " " << pin.ranks << " " << name_of(pin.collective) << " " << pin.bytes;
  }
}

// 1024 ranks within seconds, on a machine that is busy with other things: it takes a tenth of that.
TEST(Tuner, EveryCollectiveHasAChoiceForManyRanks) {
  std::vector<int> counts{127, 1024};
  for (int ranks = 1; ranks <= 33; ++ranks) counts.push_back(ranks);
  const auto begin = std::chrono::steady_clock::now();
  for (const TopologyKind kind : kKinds) {
    for (const int ranks : counts) {
      Chooser chooser(kind, ranks);
      for (int c = 0; c < kCollectives - 1; ++c) {
        const auto collective = static_cast<Collective>(c);
        for (const size_t bytes : {size_t{0}, size_t{1}, size_t{64} << 10, kLargest, size_t{1} << 50}) {
          ASSERT_NE(chooser.name(collective, bytes), "none") << ranks << " " << name_of(collective);
          ASSERT_TRUE(std::isfinite(chooser.predicted(collective, bytes))) << ranks << " " << name_of(collective);
        }
      }
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST(Tuner, CountsOfVVariantsDoNotMatter) {
  for (const int ranks : {2, 7, 33}) {
    const Chooser chooser(TopologyKind::shm, ranks);
    for (const Collective collective : {Collective::allgatherv, Collective::reducescatterv, Collective::alltoallv,
                                        Collective::gatherv, Collective::scatterv}) {
      const std::string any = chooser.name(collective, 0);
      for (size_t bytes = 1; bytes < kLargest; bytes *= 3) EXPECT_EQ(chooser.name(collective, bytes), any);
    }
  }
}

// A rank that has made other choices before, in another order, makes the same ones.
TEST(Tuner, SameOnEveryRank) {
  std::mt19937 random(7);
  for (const TopologyKind kind : kKinds) {
    const Chooser a(kind, 7), b(kind, 7);
    std::vector<std::pair<Collective, size_t>> calls;
    for (int i = 0; i < 500; ++i) {
      const auto collective = static_cast<Collective>(random() % (kCollectives - 1));
      calls.emplace_back(collective, random() % (2U << random() % 24));
    }
    std::vector<std::string> names;
    for (const auto& [collective, bytes] : calls) names.push_back(a.name(collective, bytes));
    for (size_t i = calls.size(); i-- > 0;) {
      ASSERT_EQ(b.name(calls[i].first, calls[i].second), names[i]);
      ASSERT_EQ(a.name(calls[i].first, calls[i].second), names[i]);
    }
  }
}

// Sizes 1.2x apart are within 3x of each other, and a larger call is never predicted to be much faster than a smaller
// one.
TEST(Tuner, NoCliffsBetweenSizes) {
  constexpr double kJump = 3, kDip = 0.9;
  for (const TopologyKind kind : kKinds) {
    for (int i = 2 * 2; i < 2 * 34; ++i) {
      const int ranks = i / 2;
      Chooser chooser(kind, ranks, i % 2 == 1);
      for (int c = 0; c < kCollectives - 1; ++c) {
        const auto collective = static_cast<Collective>(c);
        if (!chooses_by_size(collective)) continue;
        double before = chooser.predicted(collective, 1), highest = before;
        for (size_t bytes = 2; bytes < kLargest; bytes += std::max<size_t>(1, bytes / 5)) {
          const double now = chooser.predicted(collective, bytes);
          ASSERT_LT(now, before * kJump) << name_of(kind) << " " << ranks << " " << name_of(collective) << " " << bytes;
          ASSERT_GT(now, highest * kDip) << name_of(kind) << " " << ranks << " " << name_of(collective) << " " << bytes;
          before = now;
          highest = std::max(highest, now);
        }
      }
    }
  }
}

TEST(Tuner, SevenRanksAreLikeEight) {
  for (int i = 0; i < 2 * kTopologyKinds; ++i) {
    const TopologyKind kind = kKinds[i / 2];
    Chooser seven(kind, 7, i % 2 == 1), eight(kind, 8, i % 2 == 1);
    for (int c = 0; c < kCollectives - 1; ++c) {
      const auto collective = static_cast<Collective>(c);
      if (!chooses_by_size(collective)) continue;
      for (size_t bytes = 8; bytes < kLargest; bytes += bytes / 5 + 1) {
        const double ratio = seven.predicted(collective, bytes) / eight.predicted(collective, bytes);
        ASSERT_LT(ratio, 2) << name_of(kind) << " " << name_of(collective) << " " << bytes;
        ASSERT_GT(ratio, 0.5) << name_of(kind) << " " << name_of(collective) << " " << bytes;
      }
    }
  }
}

constexpr const char* kSimple =
    "weft-tune 1\nkind shm\nalpha 1\nmessage 0\nbeta 0\ngamma 0\n"
    "kind tcp\nalpha 1\nmessage 0\nbeta 0\ngamma 0\nkind hosts\nalpha 1\nmessage 0\nbeta 0\ngamma 0\n";

// Of equals the first in the table; one that was never measured gives way, however fast the model thinks it is.
TEST(Tuner, TiesAndWhatWasNotMeasured) {
  const std::string step = "step {\n  send (r+1)%P out[0]\n  recv reduce (r-1)%P out[1]\n}\n";
  const ProgramPtr one = parse("allreduce one chunks=2\n" + step), other = parse("allreduce other chunks=2\n" + step);
  const ProgramPtr slow = parse("allreduce slow chunks=2\n" + step + step);
  const Topology topology = topology_of(TopologyKind::shm, 4);
  EXPECT_EQ(tuner_of(topology, {one, other, slow}, tune_of(kSimple)).choose(Collective::allreduce, 8).program,
            one.get());
  EXPECT_EQ(tuner_of(topology, {other, slow, one}, tune_of(kSimple)).choose(Collective::allreduce, 8).program,
            other.get());
  const std::string measured =
      std::string("weft-tune 1\nkind shm\nalpha 1\nmessage 0\nbeta 0\ngamma 0\n") + "allreduce slow 4 8:1\n";
  const Tuner tuner = tuner_of(topology, {one, other, slow}, tune_of(measured));
  const Choice choice = tuner.choose(Collective::allreduce, 8);
  EXPECT_EQ(choice.program, slow.get());
  EXPECT_EQ(choice.reason, "predicted for 8 bytes: 2 us; one: 1 us by the model alone");
}

// One that cannot be expanded is taken only where there is no other: the call then says what is wrong with it.
TEST(Tuner, WhatHasNoPlan) {
  const std::string step = "step {\n  send (r+1)%P out[0]\n  recv reduce (r-1)%P out[1]\n}\n";
  const ProgramPtr good = parse("allreduce good chunks=2\n" + step);
  const ProgramPtr broken = parse("allreduce broken\n" + step);  // it has no second chunk
  const Topology topology = topology_of(TopologyKind::shm, 4);
  const TunePtr free = tune_of("weft-tune 1\nkind shm\nalpha 0\nmessage 0\nbeta 1\ngamma 0\n");
  for (const TunePtr& tune : {free, tune_of(kSimple)}) {
    EXPECT_EQ(tuner_of(topology, {broken, good}, tune).choose(Collective::allreduce, 8).program, good.get());
    EXPECT_EQ(tuner_of(topology, {good, broken}, tune).choose(Collective::allreduce, 8).program, good.get());
    EXPECT_EQ(tuner_of(topology, {broken}, tune).choose(Collective::allreduce, 8).program, broken.get());
  }
  EXPECT_EQ(tuner_of(topology, {}).choose(Collective::allreduce, 8).program, nullptr);
}

TEST(Tuner, SaysWhy) {
  const Tuner tuner = tuner_of(topology_of(TopologyKind::shm, 3));
  const std::string reason(tuner.choose(Collective::allreduce, 4096).reason);
  EXPECT_NE(reason.find("predicted for 4096 bytes: "), std::string::npos) << reason;
  EXPECT_NE(reason.find(" us; "), std::string::npos) << reason;
  // For the number of ranks it cannot be what was forced.
  const Tuner forced = tuner_of(topology_of(TopologyKind::shm, 3), builtin_programs(), default_tune(), "doubling");
  const std::string refused(forced.choose(Collective::allgather, 1000).reason);
  EXPECT_EQ(refused.find("the forced one is not for this number of ranks; predicted"), 0U) << refused;
  EXPECT_EQ(tuner_of(topology_of(TopologyKind::shm, 4), builtin_programs(), default_tune(), "doubling")
                .choose(Collective::allgather, 1000)
                .reason,
            "forced");
}

TEST(Tuner, ForcedForRangesOfSizes) {
  const Topology topology = topology_of(TopologyKind::shm, 4);
  const Tuner tuner = tuner_of(topology, builtin_programs(), default_tune(),
                               "ring,allreduce:0-4K:flat,allreduce:1M-inf:halving_doubling,broadcast:8-16:chain");
  const auto name = [&](Collective collective, size_t bytes) {
    return tuner.choose(collective, bytes).program->name();
  };
  EXPECT_EQ(name(Collective::allreduce, 0), "flat");
  EXPECT_EQ(name(Collective::allreduce, 4095), "flat");
  EXPECT_EQ(name(Collective::allreduce, 4096), "ring");
  EXPECT_EQ(name(Collective::allreduce, 1 << 20), "halving_doubling");
  EXPECT_EQ(name(Collective::broadcast, 15), "chain");
  EXPECT_EQ(name(Collective::broadcast, 16), tuner_of(topology).choose(Collective::broadcast, 16).program->name());
  for (const auto& [text, reason] : {std::pair("allreduce:4K-1K:ring", "4K-1K is no range of sizes; legal: LOW-HIGH"),
                                     {"allreduce:x-1K:ring", "x-1K is no range"},
                                     {"allreduce:4K:ring", "4K is no range"},
                                     {"allreduce:0-4K:rink", "no algorithm is called allreduce:0-4K:rink; legal: "},
                                     {"allredu:0-4K:ring", "no collective is called allredu"}}) {
    const auto refused = Tuner::create(topology, builtin_programs(), text, 0, 0);
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_NE(refused.status().message().find(reason), std::string::npos) << refused.status().message();
  }
}

TEST(Tuner, KindsOfTopology) {
  for (const TopologyKind kind : kKinds) EXPECT_EQ(kind_of(topology_of(kind, 5)), kind);
  EXPECT_EQ(kind_of(Topology{}), TopologyKind::shm);
}

Features features(const std::string& collective, const std::string& name, int ranks) {
  for (const ProgramPtr& program : builtin_programs()) {
    if (name_of(program->collective()) != collective || program->name() != name) continue;
    auto found = features_of(*program, ranks);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return *found;
  }
  ADD_FAILURE() << collective << " " << name;
  return {};
}

// Against what the books say of them.
TEST(Features, OfKnownAlgorithms) {
  for (const int ranks : {2, 3, 7, 8, 16, 17, 33, 1024}) {
    SCOPED_TRACE(ranks);
    const double p = ranks, log = std::ceil(std::log2(ranks));
    const Features ring = features("allreduce", "ring", ranks);
    EXPECT_EQ(ring.steps, 2 * (p - 1));
    EXPECT_EQ(ring.messages, 4 * (p - 1));
    EXPECT_NEAR(ring.rank_bytes, 2 * (p - 1) / p, 1e-9);
    EXPECT_NEAR(ring.path_bytes, 2 * (p - 1) / p, 1e-9);
    EXPECT_NEAR(ring.combined_bytes, (p - 1) / p, 1e-9);
    EXPECT_NEAR(ring.chunk_bytes, 1 / p, 1e-12);
    const Features chain = features("broadcast", "chain", ranks);
    EXPECT_EQ(chain.steps, p - 1);
    EXPECT_EQ(chain.rank_bytes, 1);
    EXPECT_NEAR(chain.path_bytes, p - 1, 1e-9);
    const Features binomial = features("broadcast", "binomial", ranks);
    EXPECT_EQ(binomial.steps, log);
    EXPECT_EQ(binomial.rank_bytes, log);
    const Features flat = features("allgather", "flat", ranks);
    EXPECT_EQ(flat.steps, 1);
    EXPECT_EQ(flat.messages, 2 * (p - 1));
    EXPECT_NEAR(flat.rank_bytes, (p - 1) / p, 1e-9);
    if (std::exp2(log) != p) continue;
    const Features doubling = features("allreduce", "recursive_doubling", ranks);
    EXPECT_EQ(doubling.steps, log);
    EXPECT_EQ(doubling.rank_bytes, log);
    EXPECT_EQ(doubling.combined_bytes, 2 * log);  // the copies of the steps after
  }
}

// Tiles overlap: a large vector through a chain takes hardly longer than one hop.
TEST(Model, TilesFollowEachOther) {
  const Topology topology = topology_of(TopologyKind::shm, 9);
  const TunePtr tune = tune_of("weft-tune 1\nkind shm\nalpha 0\nmessage 0\nbeta 1\ngamma 0\n");
  AlphaBetaModel model(tune, topology, 1000);
  for (const ProgramPtr& program : builtin_programs()) {
    if (program->collective() != Collective::broadcast || program->name() != "chain") continue;
    EXPECT_DOUBLE_EQ(model.cost(*program, 1000).microseconds, 8);         // eight hops of a microsecond
    EXPECT_DOUBLE_EQ(model.cost(*program, 100000).microseconds, 99 + 8);  // and 99 tiles behind the first
  }
}

// What was measured with noise does not make a larger call faster than a smaller one.
TEST(Model, LargerIsNeverMuchFaster) {
  const TunePtr tune =
      tune_of("weft-tune 1\nkind shm\nalpha 1\nmessage 0\nbeta 0\ngamma 0\nbarrier dissemination 2 16:8 4K:1\n");
  AlphaBetaModel model(tune, topology_of(TopologyKind::shm, 2), 1000);
  for (const ProgramPtr& program : builtin_programs()) {
    if (program->collective() != Collective::barrier || !program->supports(2)) continue;
    for (size_t bytes = 1; bytes < 100000; bytes += bytes / 3 + 1) {
      EXPECT_DOUBLE_EQ(model.cost(*program, bytes).microseconds, 8);
    }
  }
}

}  // namespace
}  // namespace weft
