// Tokens to experts and back, against what every rank can work out by itself: random and skewed routings over even and
// uneven nodes, the bytes between nodes, fp8 on the way.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "ranks.hpp"

namespace weft::testing {
namespace {

using Random = std::mt19937_64;

// A topology file that puts ranks on nodes, gone afterwards.
class NodesFile {
 public:
  explicit NodesFile(const std::vector<int>& nodes) {
    char name[] = "/tmp/weft-moe-XXXXXX";
    ::close(::mkstemp(name));
    path_ = name;
    const nlohmann::json file = {{"weft_topology", 1},
                                 {"ranks", nodes.size()},
                                 {"levels", {{{"name", "node"}, {"groups", nodes}}, {{"name", "world"}}}}};
    std::ofstream(path_) << file.dump();
  }
  ~NodesFile() { ::unlink(path_.c_str()); }
  NodesFile(const NodesFile&) = delete;
  NodesFile& operator=(const NodesFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One dispatch as all ranks know it.
struct Routing {
  int ranks, experts, topk;
  size_t hidden;
  std::vector<size_t> tokens;                    // by rank
  std::vector<std::vector<int32_t>> experts_of;  // by rank: [tokens][topk]
  std::vector<std::vector<float>> weights;
};

Routing draw(int ranks, Random& random) {
  Routing routing;
  routing.ranks = ranks;
  routing.experts = ranks * static_cast<int>(1 + random() % 4);
  routing.topk = static_cast<int>(1 + random() % std::min<uint64_t>(8, static_cast<uint64_t>(routing.experts)));
  routing.hidden = 1 + random() % 200;
  const uint64_t kind = random() % 5;
  for (int rank = 0; rank < ranks; ++rank) {
    const size_t tokens = random() % 4 == 0 ? 0 : random() % 40;
    routing.tokens.push_back(tokens);
    std::vector<int32_t> chosen;
    std::vector<float> weights;
    for (size_t token = 0; token < tokens; ++token) {
      std::vector<int32_t> all(static_cast<size_t>(routing.experts));
      for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
      std::shuffle(all.begin(), all.end(), random);
      if (kind == 0) std::sort(all.begin(), all.end());                    // all to the first ones
      if (kind == 1) std::sort(all.begin(), all.end(), std::greater<>());  // all to the last ones
      if (kind == 2) std::stable_sort(all.begin(), all.end(), [](int a, int b) { return a % 2 < b % 2; });
      for (int k = 0; k < routing.topk; ++k) {
        const bool none = kind == 3 ? random() % 2 == 0 : random() % 16 == 0;
        chosen.push_back(none ? -1 : all[static_cast<size_t>(k)]);
        weights.push_back(static_cast<float>(1 + random() % 4));
      }
    }
    routing.experts_of.push_back(std::move(chosen));
    routing.weights.push_back(std::move(weights));
  }
  return routing;
}

// Small whole numbers, which every order of adding up keeps exact.
float element(int rank, size_t token, size_t i) {
  return static_cast<float>((static_cast<size_t>(rank) * 131 + token * 17 + i * 3) % 61) - 30;
}

std::vector<float> tokens_of(const Routing& routing, int rank) {
  std::vector<float> tokens;
  for (size_t token = 0; token < routing.tokens[static_cast<size_t>(rank)]; ++token) {
    for (size_t i = 0; i < routing.hidden; ++i) tokens.push_back(element(rank, token, i));
  }
  return tokens;
}

weftMoeConfig_t config_of(const Routing& routing, weftDataType_t type = weftFloat32,
                          weftDataType_t wire = weftFloat32) {
  return {sizeof(weftMoeConfig_t), routing.experts, routing.topk, routing.hidden, type, wire};
}

// Expert e makes (e % 5 + 1) * row of a row.
float factor(int expert) { return static_cast<float>(expert % 5 + 1); }

void check(const Routing& routing, int rank, weftComm_t comm) {
  const weftMoeConfig_t config = config_of(routing);
  weftMoe_t moe = nullptr;
  WEFT_ASSERT_OK(weftMoeCreate(&moe, comm, &config), comm);
  const int local = routing.experts / routing.ranks;
  const std::vector<float> tokens = tokens_of(routing, rank);
  const auto& experts = routing.experts_of[static_cast<size_t>(rank)];
  const auto& weights = routing.weights[static_cast<size_t>(rank)];
  // What is to come, by expert: rows, in any order.
  std::vector<std::multiset<std::vector<float>>> expected(static_cast<size_t>(local));
  size_t all = 0;
  for (int from = 0; from < routing.ranks; ++from) {
    const std::vector<float> theirs = tokens_of(routing, from);
    for (size_t i = 0; i < routing.experts_of[static_cast<size_t>(from)].size(); ++i) {
      const int expert = routing.experts_of[static_cast<size_t>(from)][i];
      if (expert < 0 || expert / local != rank) continue;
      const auto* row = theirs.data() + i / static_cast<size_t>(routing.topk) * routing.hidden;
      expected[static_cast<size_t>(expert % local)].emplace(row, row + routing.hidden);
      ++all;
    }
  }
  std::vector<size_t> counts(static_cast<size_t>(local));
  size_t total = 0;
  // Now and then there is not enough room at first.
  const size_t room = rank % 2 == 0 && all > 0 ? all - 1 : all + 3;
  std::vector<float> rows((all + 3) * routing.hidden, -1000);
  const weftResult_t first =
      weftMoeDispatch(moe, tokens.data(), experts.data(), weights.data(), routing.tokens[static_cast<size_t>(rank)],
                      rows.data(), room, counts.data(), &total);
  EXPECT_EQ(total, all);
  if (room < all) {
    EXPECT_EQ(first, weftInvalidUsage);
    WEFT_ASSERT_OK(weftMoeRows(moe, rows.data(), all), comm);
  } else {
    WEFT_ASSERT_OK(first, comm);
  }
  size_t at = 0;
  for (int expert = 0; expert < local; ++expert) {
    std::multiset<std::vector<float>> got;
    ASSERT_EQ(counts[static_cast<size_t>(expert)], expected[static_cast<size_t>(expert)].size());
    for (size_t i = 0; i < counts[static_cast<size_t>(expert)]; ++i, ++at) {
      float* row = rows.data() + at * routing.hidden;
      got.emplace(row, row + routing.hidden);
      for (size_t h = 0; h < routing.hidden; ++h) row[h] *= factor(rank * local + expert);
    }
    ASSERT_EQ(got, expected[static_cast<size_t>(expert)]);
  }
  std::vector<float> out(tokens.size(), -7);
  WEFT_ASSERT_OK(weftMoeCombine(moe, rows.data(), out.data()), comm);
  for (size_t token = 0; token < routing.tokens[static_cast<size_t>(rank)]; ++token) {
    float sum = 0;
    for (size_t k = 0; k < static_cast<size_t>(routing.topk); ++k) {
      const size_t i = token * static_cast<size_t>(routing.topk) + k;
      if (experts[i] >= 0) sum += weights[i] * factor(experts[i]);
    }
    for (size_t h = 0; h < routing.hidden; ++h) {
      ASSERT_EQ(out[token * routing.hidden + h], sum * element(rank, token, h)) << token << " " << h;
    }
  }
  WEFT_EXPECT_OK(weftMoeDestroy(moe), nullptr);
}

struct Shape {
  const char* name;
  std::vector<int> nodes;
};
const Shape kShapes[] = {{"OneRank", {0}},
                         {"OneNode", {0, 0, 0}},
                         {"TwoNodes", {0, 0, 1, 1}},
                         {"ThreeAndOne", {0, 0, 0, 1}},
                         {"OneOneTwo", {0, 1, 2, 2}},
                         {"Interleaved", {0, 1, 0, 1, 2, 0}},
                         {"EveryoneAlone", {0, 1, 2}}};

class Moe : public ::testing::TestWithParam<std::tuple<size_t, bool>> {};

TEST_P(Moe, RandomAndSkewedRoutings) {
  const Shape& shape = kShapes[std::get<0>(GetParam())];
  const bool processes = std::get<1>(GetParam());
  const NodesFile file(shape.nodes);
  Random random(test_seed());
  std::vector<Routing> routings;
  const int ranks = static_cast<int>(shape.nodes.size());
  for (int i = 0; i < (sanitized() ? 20 : 75); ++i) routings.push_back(draw(ranks, random));
  run_ranks(processes ? Mode::processes : Mode::threads, ranks,
            [&](int rank, weftComm_t comm) {
              for (size_t i = 0; i < routings.size() && !::testing::Test::HasFailure(); ++i) {
                SCOPED_TRACE(fmt::format("rank {}, routing {}", rank, i));
                check(routings[i], rank, comm);
              }
            },
            {{"WEFT_TRANSPORT", processes ? "shm" : "loop"}, {"WEFT_TOPOLOGY", file.path()}});
}

INSTANTIATE_TEST_SUITE_P(Shapes, Moe,
                         ::testing::Combine(::testing::Range<size_t>(0, std::size(kShapes)), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(kShapes[std::get<0>(info.param)].name) +
                                  (std::get<1>(info.param) ? "Processes" : "Threads");
                         });

std::vector<uint64_t> sent_to(weftComm_t comm, int ranks) {
  std::vector<uint64_t> sent(static_cast<size_t>(ranks));
  size_t length = 1 << 20;
  std::string text(length, '\0');
  WEFT_EXPECT_OK(weftCommDump(comm, weftDumpJson, text.data(), &length), comm);
  const auto dump = nlohmann::json::parse(text.c_str());
  for (const auto& wire : dump["wires"]) sent[wire["peer"].get<size_t>()] += wire["bytes_sent"].get<uint64_t>();
  return sent;
}

// What a dispatch with this wire format sends to other nodes, and the rows that it should be.
void measure(weftComm_t comm, int rank, const std::vector<int>& nodes, weftDataType_t wire, double* bytes,
             double* rows) {
  constexpr size_t kTokens = 64, kHidden = 4096;
  constexpr int kTopk = 4, kPerRank = 4;
  const int ranks = static_cast<int>(nodes.size()), experts = ranks * kPerRank;
  const weftMoeConfig_t config{sizeof(weftMoeConfig_t), experts, kTopk, kHidden, weftBfloat16, wire};
  Random random(static_cast<uint64_t>(rank) + 5);
  std::vector<uint16_t> tokens(kTokens * kHidden, 0x3f80);
  std::vector<int32_t> chosen;
  double local = 0;
  for (size_t token = 0; token < kTokens; ++token) {
    std::set<int> mine, others;
    while (mine.size() < kTopk) mine.insert(static_cast<int>(random() % static_cast<uint64_t>(experts)));
    for (const int expert : mine) {
      chosen.push_back(expert);
      const int node = nodes[static_cast<size_t>(expert / kPerRank)];
      if (node != nodes[static_cast<size_t>(rank)]) others.insert(node);
    }
    local += static_cast<double>(others.size());
  }
  const std::vector<float> weights(chosen.size(), 1);
  weftMoe_t moe = nullptr;
  WEFT_ASSERT_OK(weftMoeCreate(&moe, comm, &config), comm);
  std::vector<size_t> counts(kPerRank);
  std::vector<uint16_t> received(kTokens * static_cast<size_t>(ranks) * kTopk * kHidden);
  size_t total = 0;
  const auto before = sent_to(comm, ranks);
  WEFT_ASSERT_OK(weftMoeDispatch(moe, tokens.data(), chosen.data(), weights.data(), kTokens, received.data(),
                                 kTokens * static_cast<size_t>(ranks) * kTopk, counts.data(), &total),
                 comm);
  const auto after = sent_to(comm, ranks);
  double mine[2] = {0, local}, all[2];
  for (size_t peer = 0; peer < nodes.size(); ++peer) {
    if (nodes[peer] != nodes[static_cast<size_t>(rank)]) mine[0] += static_cast<double>(after[peer] - before[peer]);
  }
  WEFT_ASSERT_OK(weftAllReduce(mine, all, 2, weftFloat64, weftSum, comm, nullptr), comm);
  *bytes = all[0];
  *rows = all[1] * kHidden * 2;
  for (size_t i = 0; i < total * kHidden; ++i) ASSERT_EQ(received[i], 0x3f80) << i;
  WEFT_EXPECT_OK(weftMoeDestroy(moe), nullptr);
}

// A token crosses to a node once, whatever the number of its experts there; in fp8 with about half of the bytes.
TEST(MoeBytes, BetweenNodes) {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 1, 2, 2}}) {
    const NodesFile file(nodes);
    run_threads(static_cast<int>(nodes.size()),
                [&](int rank, weftComm_t comm) {
                  double plain = 0, encoded = 0, rows = 0;
                  measure(comm, rank, nodes, weftBfloat16, &plain, &rows);
                  EXPECT_NEAR(plain / rows, 1, 0.03);
                  measure(comm, rank, nodes, weftFloat8e4m3, &encoded, &rows);
                  EXPECT_LT(encoded / plain, 0.53);
                },
                {{"WEFT_TOPOLOGY", file.path()}, {"WEFT_TRANSPORT", "loop"}});
  }
}

// fp8 with a scale for 128 elements: within 1/16 of each element that is not tiny beside its neighbours, and what is
// not finite is seen.
TEST(MoeFp8, ErrorsAndNaNs) {
  run_threads(2, [](int rank, weftComm_t comm) {
    constexpr size_t kHidden = 300;
    for (const weftDataType_t type : {weftFloat32, weftFloat16, weftBfloat16}) {
      if (type != weftFloat32) continue;  // the values below are floats
      const weftMoeConfig_t config{sizeof(weftMoeConfig_t), 2, 1, kHidden, type, weftFloat8e4m3};
      weftMoe_t moe = nullptr;
      WEFT_ASSERT_OK(weftMoeCreate(&moe, comm, &config), comm);
      std::vector<float> tokens(3 * kHidden), rows(6 * kHidden), out(3 * kHidden);
      Random random(static_cast<uint64_t>(rank));
      std::normal_distribution<float> normal(0, 1);
      for (size_t i = 0; i < kHidden; ++i) {
        tokens[i] = normal(random) * (i < 128 ? 1e-6F : 1e4F);  // blocks of different sizes
        tokens[kHidden + i] = 0;
        tokens[2 * kHidden + i] = 1;
      }
      tokens[2 * kHidden + 5] = NAN;
      tokens[2 * kHidden + 200] = INFINITY;
      const std::vector<int32_t> experts(3, 1 - rank);
      const std::vector<float> weights(3, 1);
      size_t counts = 0, total = 0;
      WEFT_ASSERT_OK(
          weftMoeDispatch(moe, tokens.data(), experts.data(), weights.data(), 3, rows.data(), 6, &counts, &total),
          comm);
      WEFT_ASSERT_OK(weftMoeCombine(moe, rows.data(), out.data()), comm);
      for (size_t block = 0; block < kHidden; block += 128) {
        float largest = 0;
        const size_t end = std::min(block + 128, kHidden);
        for (size_t i = block; i < end; ++i) largest = std::max(largest, std::fabs(tokens[i]));
        for (size_t i = block; i < end; ++i) {
          EXPECT_NEAR(out[i], tokens[i], std::max(std::fabs(tokens[i]) / 15, largest / 448 / 64)) << i;
        }
      }
      for (size_t i = kHidden; i < 2 * kHidden; ++i) EXPECT_EQ(out[i], 0);
      EXPECT_TRUE(std::isnan(out[2 * kHidden + 5]));
      EXPECT_TRUE(std::isnan(out[2 * kHidden + 200]));
      EXPECT_EQ(out[2 * kHidden + 6], 1);
      WEFT_EXPECT_OK(weftMoeDestroy(moe), nullptr);
    }
  });
}

TEST(MoeMisuse, IsNamed) {
  run_threads(2, [](int rank, weftComm_t comm) {
    const auto expect = [&](weftResult_t result, weftResult_t code, const std::string& words) {
      EXPECT_EQ(result, code);
      EXPECT_NE(std::string(weftGetLastError(comm)).find(words), std::string::npos) << weftGetLastError(comm);
    };
    weftMoe_t moe = nullptr;
    weftMoeConfig_t config{sizeof(weftMoeConfig_t), 3, 1, 8, weftFloat32, weftFloat32};
    expect(weftMoeCreate(&moe, comm, &config), weftInvalidArgument, "config->experts is 3; legal: multiples of 2");
    config.experts = 4;
    config.topk = 0;
    expect(weftMoeCreate(&moe, comm, &config), weftInvalidArgument, "config->topk is 0; legal: 1 to 64");
    config.topk = 2;
    config.wire = weftFloat16;
    expect(weftMoeCreate(&moe, comm, &config), weftInvalidArgument, "config->wire is 6");
    config.wire = weftFloat32;
    config.size = 3;
    expect(weftMoeCreate(&moe, comm, &config), weftInvalidArgument, "its size is not set");
    config.size = sizeof config;
    WEFT_ASSERT_OK(weftMoeCreate(&moe, comm, &config), comm);
    float token[8] = {}, row[64], weights[2] = {1, 1};
    size_t counts[2], total = 0;
    expect(weftMoeCombine(moe, row, token), weftInvalidUsage, "without a dispatch");
    for (const auto& [experts, words] : {std::pair(std::array<int32_t, 2>{0, 4}, "experts[0][1] is 4; legal: 0 to 3"),
                                         {std::array<int32_t, 2>{1, 1}, "experts[0] names expert 1 twice"}}) {
      expect(weftMoeDispatch(moe, token, experts.data(), weights, 1, row, 8, counts, &total), weftInvalidArgument,
             words);
    }
    WEFT_EXPECT_OK(weftMoeDestroy(moe), nullptr);
    // Ranks that do not agree.
    config.hidden = 8 + static_cast<size_t>(rank);
    WEFT_ASSERT_OK(weftMoeCreate(&moe, comm, &config), comm);
    const int32_t experts[2] = {0, 1};
    expect(weftMoeDispatch(moe, token, experts, weights, 0, row, 8, counts, &total), weftInvalidUsage, "hidden is ");
    WEFT_EXPECT_OK(weftMoeDestroy(moe), nullptr);
  });
}

}  // namespace
}  // namespace weft::testing
