// Every program against the serial reference: collectives, types, ops, in and out of place, roots, counts, addresses,
// contents, numbers of ranks, tiles, transports, threads and processes. A sample by default, with a printed seed; all
// of it with WEFT_TEST_FULL=1.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>

#include "case.hpp"

namespace weft::testing {
namespace {

using reference::Pattern;
using Random = std::mt19937_64;

constexpr size_t kCounts[] = {17, 31, 61, 127, 257, 509, 1021, 2039, 3001, 4093};

// One communicator: how many ranks, which program for each collective, which tiles.
struct Setting {
  int ranks = 1;
  size_t turn = 0;  // program number turn % n of each collective's n
  const char* tile = "0";
  bool wide = false;
  const char* window = "4";
};

using Programs = std::map<Collective, ProgramPtr>;

Programs programs_of(const Setting& setting) {
  std::map<Collective, std::vector<ProgramPtr>> all;
  for (const ProgramPtr& program : builtin_programs()) {
    if (program->supports(setting.ranks)) all[program->collective()].push_back(program);
  }
  Programs chosen;
  for (const auto& [collective, list] : all) chosen[collective] = list[setting.turn % list.size()];
  return chosen;
}

std::string forced(const Programs& programs) {
  std::string text;
  for (const auto& [collective, program] : programs) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", name_of(collective), program->name());
  }
  return text;
}

size_t most_turns() {
  std::map<Collective, size_t> counts;
  size_t most = 0;
  for (const ProgramPtr& program : builtin_programs()) most = std::max(most, ++counts[program->collective()]);
  return most;
}

template <typename List>
auto pick(const List& list, Random& random) {
  return list[random() % std::size(list)];
}

size_t pick_count(int ranks, Random& random) {
  if (random() % 2 == 0) return random() % (2 * static_cast<size_t>(ranks) + 2);
  return pick(kCounts, random);
}

Case draw_case(Collective collective, const Setting& setting, Random& random) {
  Case call;
  call.collective = collective;
  call.ranks = setting.ranks;
  call.type = static_cast<weftDataType_t>(random() % weftNumTypes);
  call.op = static_cast<weftRedOp_t>(random() % (weftNumOps + 1));
  call.wide = setting.wide;
  call.pattern = pick(std::vector<Pattern>{Pattern::kBits, Pattern::kFinite, Pattern::kExact}, random);
  call.count = pick_count(setting.ranks, random);
  call.root = static_cast<int>(random() % static_cast<uint64_t>(setting.ranks));
  const uint64_t kind = random() % 3;
  call.in_place = kind == 0 ? 0 : kind == 1 ? ~0u : static_cast<uint32_t>(random());
  call.seed = random();
  call.stream = random() % 5 == 0;
  call.shared_memory = random() % 8 == 0;
  return call;
}

// A test of what no rank runs would be none.
void expect_all_covered(const std::map<std::string, int>& covered) {
  for (const ProgramPtr& program : builtin_programs()) {
    if (!program->supports(8)) continue;  // those over levels of groups are run by levels_test.cpp
    const std::string name = fmt::format("{}:{}", name_of(program->collective()), program->name());
    EXPECT_TRUE(covered.contains(name)) << name << " was not run";
  }
}

void run_setting(Mode mode, const char* transport, const Setting& setting, const std::vector<Expectation>& cases,
                 const Programs& programs) {
  SCOPED_TRACE(fmt::format("{} {}, {} ranks, tile {}, window {}, {}{}", mode == Mode::threads ? "threads" : "processes",
                           transport, setting.ranks, setting.tile, setting.window, forced(programs),
                           setting.wide ? ", wide" : ""));
  run_ranks(mode, setting.ranks,
            [&cases](int rank, weftComm_t comm) {
              weftStream_t stream = nullptr;
              WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
              for (const Expectation& expectation : cases) {
                expectation.run(rank, comm, stream);
                if (::testing::Test::HasFailure()) break;
              }
              WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
            },
            {{"WEFT_TRANSPORT", transport},
             {"WEFT_TILE", setting.tile},
             {"WEFT_WINDOW", setting.window},
             {"WEFT_ACCUM", setting.wide ? "wide" : "narrow"},
             {"WEFT_ALGO", forced(programs)}});
}

struct Plane {
  const char* name;
  Mode mode;
  const char* transport;
  int rounds;  // over all programs, in the sample
};

void PrintTo(const Plane& plane, std::ostream* out) { *out << plane.name; }

class Grid : public ::testing::TestWithParam<Plane> {
 protected:
  // Failures leave the rest of a grid without meaning, and cost a timeout each.
  bool go_on() const { return !HasFailure(); }
  bool whole() const { return test_full() && !sanitized(); }
};

TEST_P(Grid, Sample) {
  if (whole()) GTEST_SKIP() << "the whole grid is asked for";
  const Plane& plane = GetParam();
  Random random(test_seed() + static_cast<uint64_t>(std::hash<std::string>{}(plane.name)));
  std::map<std::string, int> covered;
  int runs = 0;
  const int rounds = sanitized() ? 1 : plane.rounds;
  for (int round = 0; round < rounds && go_on(); ++round) {
    for (size_t turn = 0; turn < most_turns() && go_on(); ++turn) {
      Setting setting;
      // Some programs are for powers of two only; all are run in the first round.
      setting.ranks = round == 0 ? pick(std::vector<int>{2, 4, 8}, random) : 1 + static_cast<int>(random() % 9);
      setting.turn = turn;
      setting.tile = pick(std::vector<const char*>{"64", "256", "1024", "0"}, random);
      setting.window = pick(std::vector<const char*>{"1", "2", "4", "7"}, random);
      setting.wide = random() % 4 == 0;
      const Programs programs = programs_of(setting);
      std::vector<Expectation> cases;
      for (const auto& [collective, program] : programs) {
        const int several = reduces(collective) ? 4 : 2;
        for (int i = 0; i < several; ++i) cases.emplace_back(draw_case(collective, setting, random), program.get());
        covered[fmt::format("{}:{}", name_of(collective), program->name())] += several;
      }
      std::shuffle(cases.begin(), cases.end(), random);
      run_setting(plane.mode, plane.transport, setting, cases, programs);
      runs += static_cast<int>(cases.size());
    }
  }
  std::printf("%d calls\n", runs);
  if (go_on()) expect_all_covered(covered);
}

// All ranks 1..9 and 16, all programs, tiles and windows; within one setting every type with every op, every root, all
// small counts.
TEST_P(Grid, Full) {
  if (!whole()) {
    GTEST_SKIP() << (sanitized() ? "a sanitizer's build takes a sample"
                                 : "a sample is asked for; WEFT_TEST_FULL=1 runs the whole grid");
  }
  const Plane& plane = GetParam();
  Random random(test_seed());
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    for (size_t turn = 0; turn < most_turns(); ++turn) {
      for (const char* tile : {"64", "256", "0"}) {
        if (!go_on()) return;
        Setting setting{ranks, turn, tile, random() % 2 == 0,
                        pick(std::vector<const char*>{"1", "2", "4", "7"}, random)};
        const Programs programs = programs_of(setting);
        std::vector<Expectation> cases;
        for (const auto& [collective, program] : programs) {
          for (int i = 0; i < weftNumTypes * (reduces(collective) ? weftNumOps + 1 : 1); ++i) {
            Case call = draw_case(collective, setting, random);
            call.type = static_cast<weftDataType_t>(i % weftNumTypes);
            call.op = static_cast<weftRedOp_t>(i / weftNumTypes);
            call.root = i % ranks;
            if (i <= 2 * ranks + 1) call.count = static_cast<size_t>(i);
            cases.emplace_back(call, program.get());
          }
        }
        std::shuffle(cases.begin(), cases.end(), random);
        run_setting(plane.mode, plane.transport, setting, cases, programs);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Transports, Grid,
    ::testing::Values(Plane{"ThreadsLoop", Mode::threads, "loop", 24}, Plane{"ThreadsShm", Mode::threads, "shm", 8},
                      Plane{"ThreadsTcp", Mode::threads, "tcp", 8}, Plane{"ProcessesShm", Mode::processes, "shm", 12},
                      Plane{"ProcessesTcp", Mode::processes, "tcp", 8}, Plane{"ProcessesAny", Mode::processes, "", 4}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace weft::testing
