// Programs over levels of groups on real ranks, against the serial reference: even and uneven nodes, racks and sites,
// told by a topology file.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <random>

#include "case.hpp"
#include "topology/topology_file.hpp"

namespace weft::testing {
namespace {

using reference::Pattern;
using Random = std::mt19937_64;

// A file that is gone afterwards.
class File {
 public:
  explicit File(const std::string& text) {
    char name[] = "/tmp/weft-levels-XXXXXX";
    const int fd = ::mkstemp(name);
    EXPECT_GE(fd, 0);
    ::close(fd);
    path_ = name;
    std::ofstream(path_) << text;
  }
  ~File() { ::unlink(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Shape {
  const char* name;
  std::vector<std::vector<int>> groups;  // nodes, racks, sites
  std::vector<int> order;                // of rings
};

const Shape kShapes[] = {
    {"TwoNodesOfTwo", {{0, 0, 1, 1}}},
    {"ThreeAndOne", {{0, 0, 0, 1}}},
    {"OneOneTwo", {{0, 1, 2, 2}}},
    {"Interleaved", {{0, 1, 0, 1, 2, 0}}, {3, 5, 4, 0, 1, 2}},
    {"ThreeLevels", {{0, 0, 1, 2, 2, 3, 3, 3}, {0, 0, 0, 1, 1, 1, 1, 1}}},
    {"FourLevels", {{0, 1, 1, 2, 3, 3, 4}, {0, 0, 0, 1, 1, 1, 2}, {0, 0, 0, 0, 0, 0, 1}}, {6, 2, 0, 1, 5, 3, 4}},
    {"NodesInOrder", {{0, 1, 2, 3, 4}}, {0, 2, 4, 1, 3}},
};

Topology topology_of_shape(const Shape& shape) {
  constexpr const char* kNames[] = {"node", "rack", "site"};
  std::vector<Hierarchy::Level> levels;
  for (size_t i = 0; i < shape.groups.size(); ++i) levels.push_back({kNames[i], shape.groups[i]});
  Topology topology;
  topology.ranks = static_cast<int>(shape.groups[0].size());
  topology.hierarchy = Hierarchy::create(topology.ranks, levels, shape.order);
  return topology;
}

struct Plane {
  const char* name;
  Mode mode;
  const char* transport;
};
const Plane kPlanes[] = {{"ThreadsLoop", Mode::threads, "loop"},
                         {"ProcessesShm", Mode::processes, "shm"},
                         {"ProcessesTcp", Mode::processes, "tcp"}};

class Levels : public ::testing::TestWithParam<std::tuple<size_t, size_t>> {
 protected:
  const Plane& plane() const { return kPlanes[std::get<0>(GetParam())]; }
  const Shape& shape() const { return kShapes[std::get<1>(GetParam())]; }
};

Case draw(Collective collective, const Hierarchy& hierarchy, Random& random) {
  Case call;
  call.collective = collective;
  call.ranks = hierarchy.ranks();
  call.type = static_cast<weftDataType_t>(random() % weftNumTypes);
  call.op = static_cast<weftRedOp_t>(random() % (weftNumOps + 1));
  constexpr Pattern kPatterns[] = {Pattern::kBits, Pattern::kFinite, Pattern::kExact};
  call.pattern = kPatterns[random() % 3];
  constexpr size_t kCounts[] = {0, 1, 2, 7, 31, 257, 1021, 4093};
  call.count = kCounts[random() % std::size(kCounts)];
  call.root = static_cast<int>(random() % static_cast<uint64_t>(call.ranks));
  call.in_place = static_cast<uint32_t>(random() % 3 == 0 ? 0 : random());
  call.seed = random();
  call.stream = random() % 5 == 0;
  call.shared_memory = random() % 8 == 0;
  call.hierarchy = &hierarchy;
  return call;
}

TEST_P(Levels, EveryProgram) {
  const Topology topology = topology_of_shape(shape());
  const File file(to_json(topology));
  Random random(test_seed());
  for (const char* name : {"hierarchical", "hierarchical_tree", "ring"}) {
    if (topology.hierarchy.levels() == 1 && std::string_view(name) != "ring") continue;
    std::vector<Expectation> cases;
    std::string forced;
    for (const ProgramPtr& program : builtin_programs()) {
      if (program->name() != name || !program->supports(topology.hierarchy)) continue;
      forced += fmt::format("{}{}:{}", forced.empty() ? "" : ",", name_of(program->collective()), name);
      for (int i = 0; i < 12; ++i) {
        cases.emplace_back(draw(program->collective(), topology.hierarchy, random), program.get());
      }
    }
    ASSERT_GT(cases.size(), 30U);
    std::shuffle(cases.begin(), cases.end(), random);
    for (const char* tile : {"256", "0"}) {
      SCOPED_TRACE(fmt::format("{} tile {}", name, tile));
      run_ranks(plane().mode, topology.ranks,
                [&cases](int rank, weftComm_t comm) {
                  weftStream_t stream = nullptr;
                  WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
                  for (const Expectation& expectation : cases) {
                    expectation.run(rank, comm, stream);
                    if (::testing::Test::HasFailure()) break;
                  }
                  WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
                },
                {{"WEFT_TRANSPORT", plane().transport},
                 {"WEFT_TILE", tile},
                 {"WEFT_WINDOW", "3"},
                 {"WEFT_ALGO", forced},
                 {"WEFT_TOPOLOGY", file.path()}});
      if (HasFailure()) return;
    }
  }
}

// What the tuner takes by itself, and communicators that are made of a part of the ranks.
TEST_P(Levels, ChosenAndSplit) {
  const Topology topology = topology_of_shape(shape());
  const File file(to_json(topology));
  run_ranks(plane().mode, topology.ranks,
            [&](int rank, weftComm_t comm) {
              weftComm_t half = nullptr;
              WEFT_ASSERT_OK(weftCommSplit(comm, rank % 2, -rank, &half, nullptr), comm);
              for (const weftComm_t each : {comm, half}) {
                int size = 0, mine = 0;
                WEFT_ASSERT_OK(weftCommCount(each, &size), each);
                WEFT_ASSERT_OK(weftCommUserRank(each, &mine), each);
                for (const size_t count : {1UL, 5000UL, 300000UL}) {
                  std::vector<float> values(count);
                  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(mine + static_cast<int>(i % 100));
                  WEFT_ASSERT_OK(
                      weftAllReduce(values.data(), values.data(), count, weftFloat32, weftSum, each, nullptr), each);
                  for (size_t i = 0; i < count; ++i) {
                    ASSERT_EQ(values[i], static_cast<float>(size * (size - 1) / 2 + size * static_cast<int>(i % 100)))
                        << i;
                  }
                }
              }
              WEFT_EXPECT_OK(weftCommDestroy(half), nullptr);
            },
            {{"WEFT_TRANSPORT", plane().transport}, {"WEFT_TOPOLOGY", file.path()}});
}

INSTANTIATE_TEST_SUITE_P(Planes, Levels,
                         ::testing::Combine(::testing::Range<size_t>(0, std::size(kPlanes)),
                                            ::testing::Range<size_t>(0, std::size(kShapes))),
                         [](const auto& info) {
                           return std::string(kPlanes[std::get<0>(info.param)].name) +
                                  kShapes[std::get<1>(info.param)].name;
                         });

// Labels of processes, as a launcher or a user would set them.
TEST(LevelsByLabels, SitesAndRacks) {
  run_launched(6, [](int rank) {
    const std::string site = rank < 4 ? "east" : "west", rack = std::to_string(rank / 2);
    const Environment labels(
        {{"WEFT_SITE", site}, {"WEFT_RACK", rack}, {"WEFT_TRANSPORT", "shm"}, {"WEFT_ALGO", "allreduce:hierarchical"}});
    weftComm_t comm = nullptr;
    WEFT_ASSERT_OK(weftCommInitEnv(&comm, nullptr), nullptr);
    int value = rank;
    WEFT_EXPECT_OK(weftAllReduce(&value, &value, 1, weftInt32, weftSum, comm, nullptr), comm);
    EXPECT_EQ(value, 15);
    WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr);
  });
}

// A program of one's own that is wrong over levels only is refused where there are some.
TEST(LevelsByFile, OwnProgramsAreVerified) {
  const File own(
      "allreduce mine\nrequires levels > 1\nover 0 step { if r == 0 { for i in 1..P send i out[0] } else recv 0 out[0] "
      "}\n");
  const std::string algorithm = own.path() + ".algo";
  ASSERT_EQ(std::rename(own.path().c_str(), algorithm.c_str()), 0);
  run_launched(4, [&](int rank) {
    const Environment there(
        {{"WEFT_ALGO_PATH", algorithm}, {"WEFT_TRANSPORT", "shm"}, {"WEFT_NODE", rank < 2 ? "a" : "b"}});
    weftComm_t comm = nullptr;
    EXPECT_EQ(weftCommInitEnv(&comm, nullptr), weftInvalidArgument);
    EXPECT_NE(std::string(weftGetLastError(nullptr)).find("allreduce mine for 4 ranks"), std::string::npos)
        << weftGetLastError(nullptr);
  });
  ::unlink(algorithm.c_str());
}

// Files that differ, and one that is wrong, are said on all ranks.
TEST(LevelsByFile, Errors) {
  const File wrong("{\"weft_topology\": 2}");
  run_launched(2, [&](int rank) {
    const Environment there({{"WEFT_TOPOLOGY", rank == 0 ? wrong.path() : ""}});
    weftComm_t comm = nullptr;
    EXPECT_NE(weftCommInitEnv(&comm, nullptr), weftSuccess);
    if (rank == 0) {
      EXPECT_NE(std::string(weftGetLastError(nullptr)).find("weft_topology is 2; legal: 1"), std::string::npos)
          << weftGetLastError(nullptr);
    }
  });
}

}  // namespace
}  // namespace weft::testing
