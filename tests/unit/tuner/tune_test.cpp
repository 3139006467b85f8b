// Tune files: what is read, what is refused, and what lies between the points.
#include "tuner/tune.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "program/program.hpp"

namespace weft {
namespace {

Topology ranks_of(int ranks, bool oversubscribed = false) {
  Topology topology = topology_of(TopologyKind::shm, ranks);
  topology.oversubscribed = oversubscribed;
  return topology;
}

const std::string kHead = "weft-tune 1\nkind shm\nalpha 0.5\nmessage 0.1\nbeta 0.2\ngamma 0.1\n";

Tune good(const std::string& text) {
  auto tune = parse_tune(text, "test.tune");
  EXPECT_TRUE(tune.ok()) << tune.status().message();
  return tune.ok() ? *tune : Tune{};
}

TEST(TuneFile, IsRead) {
  const Tune tune = good(
      "# before the version\nweft-tune 1   # and after it\n\nkind tcp\r\nbeta 0.25\nalpha 3e1\ngamma 0\nmessage 2\n"
      "allreduce ring 4  8:1.5 64K:2 1M:0.5\nallreduce ring 2  1:1\n");
  EXPECT_FALSE(tune.kinds[0].has_value());
  ASSERT_TRUE(tune.kinds[1].has_value());
  const KindTune& tcp = tune.of(TopologyKind::tcp);
  EXPECT_EQ(tcp.alpha, 30);
  EXPECT_EQ(tcp.message, 2);
  EXPECT_EQ(tcp.beta, 0.25);
  EXPECT_EQ(tcp.gamma, 0);
  EXPECT_EQ(tcp.correction(Collective::allreduce, "ring", ranks_of(4), 64 << 10), 2);
  EXPECT_EQ(tcp.correction(Collective::allreduce, "ring", ranks_of(2), 64 << 10), 1);
  EXPECT_EQ(tcp.correction(Collective::allreduce, "flat", ranks_of(2), 8), std::nullopt);
  EXPECT_EQ(tcp.correction(Collective::reduce, "ring", ranks_of(2), 8), std::nullopt);
}

TEST(TuneFile, InterpolatesInTheLogarithms) {
  const Tune tune = good(kHead + "allreduce ring 2 8:1 512:4\nallreduce ring 8 8:3 512:8\n");
  const auto at = [&](int ranks, size_t bytes) {
    return *tune.of(TopologyKind::shm).correction(Collective::allreduce, "ring", ranks_of(ranks), bytes);
  };
  EXPECT_EQ(at(2, 8), 1);
  EXPECT_EQ(at(2, 64), 2);  // halfway from 8 to 512
  EXPECT_EQ(at(2, 512), 4);
  EXPECT_NEAR(at(4, 8), std::sqrt(3), 0.1);  // halfway from 2 to 8
  EXPECT_EQ(at(2, 0), 1);                    // outside: as at the edge
  EXPECT_EQ(at(2, 1 << 20), 4);
  EXPECT_EQ(at(1, 8), 1);
  EXPECT_EQ(at(1000, 8), 3);
  // Continuous and rising all the way.
  for (size_t bytes = 9; bytes <= 512; ++bytes) {
    EXPECT_GT(at(3, bytes), at(3, bytes - 1));
    EXPECT_LT(at(3, bytes), at(3, bytes - 1) * 1.2);
  }
}

// Two ranks had a core each, three and four did not.
TEST(TuneFile, RanksThatSharedCores) {
  const Tune tune = good(kHead + "cores 2\nallreduce ring 2 8:1\nallreduce ring 4 8:9\nallreduce flat 3 8:7\n");
  const auto at = [&](const char* algorithm, const Topology& topology) {
    return *tune.of(TopologyKind::shm).correction(Collective::allreduce, algorithm, topology, 8);
  };
  EXPECT_EQ(at("ring", ranks_of(8, true)), 9);
  EXPECT_EQ(at("ring", ranks_of(4, true)), 9);
  EXPECT_EQ(at("ring", ranks_of(4)), 1);
  EXPECT_EQ(at("ring", ranks_of(2)), 1);
  EXPECT_EQ(at("ring", ranks_of(2, true)), 1);
  EXPECT_EQ(at("flat", ranks_of(4)), 7);  // better than nothing
}

TEST(TuneFile, RefusesWithPlaceValueAndWhatIsLegal) {
  struct Case {
    std::string text;
    std::vector<std::string> named;
  };
  const Case cases[] = {
      {"", {"x.tune:1:", "weft-tune 1"}},
      {"# nothing\n", {"x.tune:2:", "weft-tune 1"}},
      {"kind shm\n", {"x.tune:1:", "kind", "weft-tune 1"}},
      {"weft-tune 2\n", {"x.tune:1:", "2", "legal: 1"}},
      {"weft-tune\n", {"x.tune:1:"}},
      {"weft-tune 1\nalpha 2\n", {"x.tune:2:", "alpha", "kind shm"}},
      {"weft-tune 1\nkind moon\n", {"x.tune:2:", "moon", "shm, tcp, hosts"}},
      {"weft-tune 1\nkind\n", {"x.tune:2:", "shm, tcp, hosts"}},
      {"weft-tune 1\nkind shm\nalpha 1\n", {"x.tune:4:", "message"}},
      {"weft-tune 1\nkind shm\nkind tcp\n", {"x.tune:3:", "alpha"}},
      {kHead + kHead.substr(12), {"x.tune:7:", "shm", "second"}},
      {"weft-tune 1\nkind shm\nalpha -1\n", {"x.tune:3:", "-1", "0 to 1e9"}},
      {"weft-tune 1\nkind shm\nalpha nan\n", {"x.tune:3:", "nan"}},
      {"weft-tune 1\nkind shm\nalpha inf\n", {"x.tune:3:", "inf"}},
      {"weft-tune 1\nkind shm\nalpha 1 2\n", {"x.tune:3:", "one number"}},
      {"weft-tune 1\nkind shm\nalpha 1us\n", {"x.tune:3:", "1us"}},
      {"weft-tune 1\nkind shm\nalpha\n", {"x.tune:3:", "alpha"}},
      {"weft-tune 1\nkind shm\nalpha 1\nalpha 1\n", {"x.tune:4:", "alpha", "second"}},
      {kHead + "cores 0\n", {"x.tune:7:", "0", "1 or more"}},
      {kHead + "cores\n", {"x.tune:7:", "cores", "1 or more"}},
      {kHead + "cores 2\ncores 2\n", {"x.tune:8:", "cores", "second"}},
      {kHead + "alhpa 2\n", {"x.tune:7:", "alhpa", "gamma", "allreduce"}},
      {kHead + "allreduce ring 2\n", {"x.tune:7:", "BYTES:FACTOR"}},
      {kHead + "allreduce ring two 8:1\n", {"x.tune:7:", "two", "1 to 1048576"}},
      {kHead + "allreduce ring 0 8:1\n", {"x.tune:7:", "0"}},
      {kHead + "allreduce ring 2 8\n", {"x.tune:7:", "8", "64K:1.25"}},
      {kHead + "allreduce ring 2 8:\n", {"x.tune:7:", "8:"}},
      {kHead + "allreduce ring 2 :1\n", {"x.tune:7:", ":1"}},
      {kHead + "allreduce ring 2 8:0\n", {"x.tune:7:", "8:0", "1e-6"}},
      {kHead + "allreduce ring 2 8:1e7\n", {"x.tune:7:", "8:1e7", "1e6"}},
      {kHead + "allreduce ring 2 0:1\n", {"x.tune:7:", "0:1", "1 to 1048576G"}},
      {kHead + "allreduce ring 2 8Q:1\n", {"x.tune:7:", "8Q:1"}},
      {kHead + "allreduce ring 2 99999999999G:1\n", {"x.tune:7:", "99999999999G:1"}},
      {kHead + "allreduce ring 2 64:1 64:2\n", {"x.tune:7:", "64:2", "rise"}},
      {kHead + "allreduce ring 2 8:1\n\nallreduce ring 2 8:1\n", {"x.tune:9:", "allreduce ring 2", "second"}},
      {kHead + "sendrecv direct 2 8:1\n", {"x.tune:7:", "sendrecv"}},
  };
  for (const Case& wrong : cases) {
    const auto tune = parse_tune(wrong.text, "x.tune");
    ASSERT_FALSE(tune.ok()) << wrong.text;
    EXPECT_EQ(tune.status().code(), weftInvalidArgument);
    EXPECT_NE(tune.status().message().find("legal: "), std::string::npos) << tune.status().message();
    for (const std::string& word : wrong.named) {
      EXPECT_NE(tune.status().message().find(word), std::string::npos) << word << " in " << tune.status().message();
    }
  }
}

TEST(TuneFile, ShippedOneHasEveryKindAndKnowsItsAlgorithms) {
  for (const auto& kind : default_tune()->kinds) {
    ASSERT_TRUE(kind.has_value());
    EXPECT_GT(kind->alpha, 0);
    EXPECT_GT(kind->beta, 0);
    for (const auto& [which, corrections] : kind->corrections) {
      const auto& programs = builtin_programs();
      EXPECT_TRUE(std::any_of(programs.begin(), programs.end(),
                              [&](const ProgramPtr& program) {
                                return program->collective() == which.first && program->name() == which.second;
                              }))
          << name_of(which.first) << " " << which.second;
    }
  }
}

class OwnFile : public testing::Test {
 protected:
  OwnFile() : path_(std::filesystem::temp_directory_path() / fmt::format("weft-{}.tune", ::getpid())) {}
  ~OwnFile() override { std::filesystem::remove(path_); }
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  std::filesystem::path path_;
};

TEST_F(OwnFile, TakesThePlaceOfItsKinds) {
  EXPECT_EQ(*read_tune(""), default_tune());
  write(kHead);
  auto tune = read_tune(path_);
  ASSERT_TRUE(tune.ok()) << tune.status().message();
  EXPECT_EQ((*tune)->of(TopologyKind::shm).alpha, 0.5);
  EXPECT_TRUE((*tune)->of(TopologyKind::shm).corrections.empty());
  EXPECT_EQ((*tune)->of(TopologyKind::tcp).alpha, default_tune()->of(TopologyKind::tcp).alpha);
  EXPECT_NE((*tune)->text, default_tune()->text);
}

TEST_F(OwnFile, IsRefusedWithItsName) {
  const auto refused = [&](const std::string& path, const std::string& said) {
    const auto tune = read_tune(path);
    ASSERT_FALSE(tune.ok());
    EXPECT_EQ(tune.status().message().find("WEFT_TUNE_FILE=" + path), 0U) << tune.status().message();
    EXPECT_NE(tune.status().message().find(said), std::string::npos) << tune.status().message();
  };
  refused(path_, "No such file");
  write("weft-tune 1\nkind mars\n");
  refused(path_, ":2: mars");
  refused(std::filesystem::temp_directory_path(), "");
}

// Damage to the shipped text, and no text at all: an error with a place, or a file.
TEST(TuneFile, RandomBytesNeverCrash) {
  std::mt19937 random(20240607U + static_cast<uint32_t>(testing::UnitTest::GetInstance()->random_seed()));
  const std::string& whole = default_tune()->text;
  const std::string shipped = whole.substr(0, whole.rfind('\n', 4000) + 1);
  constexpr std::string_view kPieces[] = {"kind ", "alpha ", ":", "K",   "1e308", "-",
                                          "\n",    "#",      " ", "8:1", "\0x",   "1e999"};
  size_t parsed = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = round % 4 == 0 ? std::string(random() % 200, ' ') : shipped;
    for (char& c : text) {
      if (round % 4 == 0) c = static_cast<char>(random() % 256);
    }
    if (round % 8 == 0) text = "weft-tune 1\n" + text;
    for (size_t n = random() % 3; n > 0 && !text.empty(); --n) {
      const size_t at = random() % text.size();
      const std::string_view piece = kPieces[random() % std::size(kPieces)];
      if (random() % 2 == 0) text.erase(at, 1 + random() % 30);
      text.insert(std::min(at, text.size()), piece);
    }
    auto tune = parse_tune(text, "fuzz");
    if (!tune.ok()) {
      ++refused;
      ASSERT_EQ(tune.status().message().find("fuzz:"), 0U) << tune.status().message();
      continue;
    }
    ++parsed;
    for (const auto& kind : tune->kinds) {
      if (kind) (void)kind->correction(Collective::allreduce, "ring", ranks_of(3), random());
    }
  }
  EXPECT_GT(parsed, 100U);
  EXPECT_GT(refused, 100U);
}

}  // namespace
}  // namespace weft
