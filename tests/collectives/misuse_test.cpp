// Wrong use of every call: an error that names the thing, its value and what is legal, and nothing else happens.
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <functional>

#include "ranks.hpp"

namespace weft::testing {
namespace {

// The code, and words of the sentence.
void refused(weftResult_t result, weftComm_t comm, std::initializer_list<const char*> words,
             weftResult_t code = weftInvalidArgument) {
  const std::string text = weftGetLastError(comm);
  EXPECT_EQ(result, code) << text;
  for (const char* word : words)
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
}

weftUniqueId some_id() {
  weftUniqueId id{};
  WEFT_EXPECT_OK(weftGetUniqueId(&id), nullptr);
  return id;
}

TEST(Misuse, OfInitialisation) {
  const Environment environment(Variables{});
  weftComm_t comm = nullptr, comms[2] = {};
  const weftUniqueId id = some_id();
  refused(weftGetVersion(nullptr), nullptr, {"version"});
  refused(weftGetUniqueId(nullptr), nullptr, {"uniqueId"});
  refused(weftCommInitRank(nullptr, 1, id, 0), nullptr, {"comm"});
  for (const int ranks : {0, -1, INT_MIN, INT_MAX}) {
    refused(weftCommInitRank(&comm, ranks, id, 0), nullptr, {"nranks=", std::to_string(ranks).c_str(), "legal: 1 to"});
  }
  refused(weftCommInitRank(&comm, 2, id, 2), nullptr, {"rank=2", "legal: 0 to 1"});
  refused(weftCommInitRank(&comm, 2, id, -1), nullptr, {"rank=-1", "legal: 0 to 1"});
  weftUniqueId nonsense;
  for (char& byte : nonsense.internal) byte = 'x';
  refused(weftCommInitRank(&comm, 2, nonsense, 0), nullptr, {"unique id"});
  refused(weftCommInitAll(nullptr, 2, nullptr), nullptr, {"comms"});
  for (const int ranks : {0, -3, 4097}) refused(weftCommInitAll(comms, ranks, nullptr), nullptr, {"ndev=", "legal: 1"});
  refused(weftCommInitEnv(nullptr, nullptr), nullptr, {"comm"});
  EXPECT_EQ(comm, nullptr);
}

TEST(Misuse, OfTheConfiguration) {
  const Environment environment(Variables{});
  const weftUniqueId id = some_id();
  weftComm_t comm = nullptr;
  const auto wrong = [&](auto set, std::initializer_list<const char*> words) {
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    set(config);
    refused(weftCommInitRankConfig(&comm, 1, id, 0, &config), nullptr, words);
    refused(weftCommInitEnv(&comm, &config), nullptr, words);
    EXPECT_EQ(comm, nullptr);
  };
  wrong([](auto& config) { config.magic = 1; }, {"WEFT_CONFIG_INITIALIZER", "magic"});
  wrong([](auto& config) { config.size = 3; }, {"WEFT_CONFIG_INITIALIZER", "size 3"});
  wrong([](auto& config) { config.blocking = 7; }, {"blocking=7", "legal: 0, 1"});
  wrong([](auto& config) { config.timeoutMs = 5; }, {"timeoutMs=5", "legal: 100"});
  wrong([](auto& config) { config.initTimeoutMs = -3; }, {"initTimeoutMs=-3", "legal: 100"});
  wrong([](auto& config) { config.accumulate = 9; }, {"accumulate=9", "legal"});
  wrong([](auto& config) { config.transport = "pigeon"; }, {"pigeon", "legal: loop, shm, verbs, tcp, ucx"});
  wrong([](auto& config) { config.algo = "rnig"; }, {"rnig", "legal", "ring"});

  // An older caller's structure ends early, and what lies behind it is not read: not at the end of a group either.
  for (const bool group : {false, true}) {
    weftConfig_t older = WEFT_CONFIG_INITIALIZER;
    older.size = offsetof(weftConfig_t, transport);
    older.transport = older.algo = reinterpret_cast<const char*>(uintptr_t{0x10});
    if (group) {
      WEFT_ASSERT_OK(weftGroupStart(), nullptr);
    }
    WEFT_ASSERT_OK(weftCommInitRankConfig(&comm, 1, id, 0, &older), nullptr);
    if (group) {
      older.magic = 0;  // it is the caller's again
      WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
    }
    WEFT_EXPECT_OK(weftBarrier(comm, nullptr), comm);
    WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr);
  }
}

TEST(Misuse, OfHandles) {
  run_threads(2, [](int, weftComm_t comm) {
    weftStream_t stream = nullptr;
    WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
    const auto no_comm = reinterpret_cast<weftComm_t>(stream);
    const auto no_stream = reinterpret_cast<weftStream_t>(comm);
    int number = 0;
    size_t length = 0;
    weftComm_t made = nullptr;
    weftRedOp_t op = weftSum;
    weftResult_t state = weftSuccess;
    weftStats_t stats{.size = sizeof stats};
    float x = 0, y = 0;
    for (weftComm_t wrong : {weftComm_t{nullptr}, no_comm}) {
      const char* word = wrong == nullptr ? "comm is NULL" : "comm is not a communicator";
      refused(weftCommCount(wrong, &number), nullptr, {word});
      refused(weftCommUserRank(wrong, &number), nullptr, {word});
      refused(weftCommGetAsyncError(wrong, &state), nullptr, {word});
      refused(weftCommAbort(wrong), nullptr, {word});
      refused(weftCommFinalize(wrong), nullptr, {word});
      refused(weftCommSetTimeout(wrong, 1000), nullptr, {word});
      refused(weftCommGetStats(wrong, &stats), nullptr, {word});
      refused(weftCommDump(wrong, weftDumpJson, nullptr, &length), nullptr, {word});
      refused(weftCommSplit(wrong, 0, 0, &made, nullptr), nullptr, {word});
      refused(weftCommShrink(wrong, nullptr, 0, &made, nullptr, 0), nullptr, {word});
      refused(weftRedOpCreatePreMulSum(&op, &x, weftFloat32, weftScalarDevice, wrong), nullptr, {word});
      refused(weftRedOpDestroy(weftSum, wrong), nullptr, {word});
      refused(weftAllReduce(&x, &y, 1, weftFloat32, weftSum, wrong, nullptr), nullptr, {word});
      refused(weftAllGatherv(&x, 1, &y, nullptr, nullptr, weftFloat32, wrong, nullptr), nullptr, {word});
      refused(weftGather(&x, &y, 1, weftFloat32, 0, wrong, nullptr), nullptr, {word});
      refused(weftSend(&x, 1, weftFloat32, 0, wrong, nullptr), nullptr, {word});
      refused(weftBarrier(wrong, nullptr), nullptr, {word});
    }
    refused(weftCommDestroy(no_comm), nullptr, {"comm is not a communicator"});
    EXPECT_EQ(weftCommDestroy(nullptr), weftSuccess);
    refused(weftCommCount(comm, nullptr), comm, {"count is NULL"});
    refused(weftCommUserRank(comm, nullptr), comm, {"rank is NULL"});
    refused(weftCommGetAsyncError(comm, nullptr), comm, {"asyncError is NULL"});
    refused(weftBarrier(comm, no_stream), comm, {"stream is not a weftStream_t"});
    refused(weftStreamSynchronize(no_stream), nullptr, {"stream is not a weftStream_t"});
    refused(weftStreamQuery(no_stream), nullptr, {"stream is not a weftStream_t"});
    refused(weftStreamDestroy(no_stream), nullptr, {"stream is not a weftStream_t"});
    refused(weftStreamCreate(nullptr), nullptr, {"stream is NULL"});
    refused(weftStreamSynchronize(nullptr), nullptr, {"stream is NULL"});
    refused(weftStreamQuery(nullptr), nullptr, {"stream is NULL"});
    EXPECT_EQ(weftStreamDestroy(nullptr), weftSuccess);
    WEFT_EXPECT_OK(weftBarrier(comm, stream), comm);
    WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
  });
}

TEST(Misuse, OfCommunicators) {
  run_threads(3, [](int rank, weftComm_t comm) {
    weftComm_t made = comm;
    int list[] = {(rank + 1) % 3, 3, -1, rank};
    refused(weftCommSplit(comm, 0, 0, nullptr, nullptr), comm, {"newcomm is NULL"});
    refused(weftCommSplit(comm, -2, 0, &made, nullptr), comm, {"color=-2", "legal: 0 or more"});
    EXPECT_EQ(made, nullptr);
    refused(weftCommShrink(comm, list, 1, nullptr, nullptr, 0), comm, {"newcomm is NULL"});
    refused(weftCommShrink(comm, nullptr, 1, &made, nullptr, 0), comm, {"excludeRanksList is NULL"});
    refused(weftCommShrink(comm, list, -1, &made, nullptr, 0), comm, {"excludeRanksCount=-1", "legal: 0 to 3"});
    refused(weftCommShrink(comm, list, 4, &made, nullptr, 0), comm, {"excludeRanksCount=4", "legal: 0 to 3"});
    refused(weftCommShrink(comm, list, 2, &made, nullptr, 0), comm, {"excludeRanksList[1]=3", "legal: 0 to 2"});
    refused(weftCommShrink(comm, list + 2, 1, &made, nullptr, 0), comm, {"excludeRanksList[0]=-1", "legal: 0 to 2"});
    refused(weftCommShrink(comm, list + 3, 1, &made, nullptr, 0), comm, {"own"});
    refused(weftCommShrink(comm, list, 1, &made, nullptr, 6), comm, {"shrinkFlags=0x6", "legal"});
    for (const int64_t timeout : {int64_t{99}, int64_t{-1}, (int64_t{1} << 31) + 1}) {
      refused(weftCommSetTimeout(comm, timeout), comm, {"timeoutMs=", std::to_string(timeout).c_str(), "legal: 100"});
    }
    float scalar = 1;
    weftRedOp_t op = weftSum;
    const auto type = static_cast<weftDataType_t>(weftNumTypes);
    refused(weftRedOpCreatePreMulSum(nullptr, &scalar, weftFloat32, weftScalarDevice, comm), comm, {"op"});
    refused(weftRedOpCreatePreMulSum(&op, nullptr, weftFloat32, weftScalarDevice, comm), comm, {"scalar"});
    refused(weftRedOpCreatePreMulSum(&op, &scalar, type, weftScalarDevice, comm), comm,
            {"datatype=", "legal: 0 to 11"});
    refused(weftRedOpDestroy(weftAvg, comm), comm, {"op=4"});
    weftStats_t stats{};
    refused(weftCommGetStats(comm, &stats), comm, {"size"});
    refused(weftCommGetStats(comm, nullptr), comm, {"stats"});
    size_t length = 4;
    char text[4];
    refused(weftCommDump(comm, weftDumpJson, text, nullptr), comm, {"length"});
    if (!sanitized()) {  // values that C++ has no room for in these enumerations
      refused(weftRedOpCreatePreMulSum(&op, &scalar, weftFloat32, static_cast<weftScalarResidence_t>(2), comm), comm,
              {"residence=2", "legal: 0, 1"});
      refused(weftCommDump(comm, static_cast<weftDumpFormat_t>(2), text, &length), comm, {"format=2", "legal: 0, 1"});
    }
    refused(weftCommDump(comm, weftDumpJson, text, &length), comm, {"bytes"});
    EXPECT_GT(length, 4U);
    WEFT_EXPECT_OK(weftBarrier(comm, nullptr), comm);
  });
}

// Counts whose bytes, or whose blocks together, are beyond what an address can be.
TEST(Misuse, HugeCounts) {
  run_threads(4, [](int rank, weftComm_t comm) {
    double x[4] = {}, y[4] = {};
    const size_t none[4] = {};
    for (const size_t huge : {SIZE_MAX, SIZE_MAX / 8 + 1, SIZE_MAX / 16, (size_t{1} << 57) + 1}) {
      const std::string number = std::to_string(huge);
      const auto named = [&](weftResult_t result) { refused(result, comm, {number.c_str(), "legal"}); };
      named(weftAllReduce(x, y, huge, weftFloat64, weftSum, comm, nullptr));
      named(weftReduce(x, y, huge, weftFloat64, weftSum, 0, comm, nullptr));
      named(weftBroadcast(x, y, huge, weftFloat64, 0, comm, nullptr));
      named(weftBcast(x, huge, weftFloat64, 0, comm, nullptr));
      named(weftAllGather(x, y, huge, weftFloat64, comm, nullptr));
      named(weftReduceScatter(x, y, huge, weftFloat64, weftSum, comm, nullptr));
      named(weftAlltoAll(x, y, huge, weftFloat64, comm, nullptr));
      named(weftGather(x, y, huge, weftFloat64, rank, comm, nullptr));
      named(weftScatter(x, y, huge, weftFloat64, rank, comm, nullptr));
      named(weftSend(x, huge, weftFloat64, (rank + 1) % 4, comm, nullptr));
      named(weftRecv(x, huge, weftFloat64, (rank + 1) % 4, comm, nullptr));
      for (size_t at = 0; at < 4; ++at) {
        size_t counts[4] = {}, displs[4] = {};
        counts[at] = huge;
        const size_t own = counts[rank];
        named(weftAllGatherv(x, own, y, counts, displs, weftFloat64, comm, nullptr));
        named(weftReduceScatterv(x, counts, displs, y, own, weftFloat64, weftSum, comm, nullptr));
        named(weftAlltoAllv(x, counts, displs, y, none, displs, weftFloat64, comm, nullptr));
        named(weftAlltoAllv(x, none, displs, y, counts, displs, weftFloat64, comm, nullptr));
        named(weftGatherv(x, own, y, counts, displs, weftFloat64, rank, comm, nullptr));
        named(weftScatterv(x, counts, displs, y, own, weftFloat64, rank, comm, nullptr));
        counts[at] = 1;
        displs[at] = huge;
        named(weftAllGatherv(x, at == static_cast<size_t>(rank), y, counts, displs, weftFloat64, comm, nullptr));
      }
    }
    WEFT_EXPECT_OK(weftBarrier(comm, nullptr), comm);
  });
}

TEST(Misuse, OfRootsPeersAndArrays) {
  run_threads(2, [](int rank, weftComm_t comm) {
    float x[4] = {}, y[4] = {};
    const size_t counts[] = {2, 2}, displs[] = {0, 2};
    for (const int wrong : {-1, 2, INT_MIN, INT_MAX}) {
      const std::string root = "root=" + std::to_string(wrong), peer = "peer=" + std::to_string(wrong);
      const auto named = [&](weftResult_t result) { refused(result, comm, {root.c_str(), "legal: 0 to 1"}); };
      named(weftReduce(x, y, 2, weftFloat32, weftSum, wrong, comm, nullptr));
      named(weftBroadcast(x, y, 2, weftFloat32, wrong, comm, nullptr));
      named(weftBcast(x, 2, weftFloat32, wrong, comm, nullptr));
      named(weftGather(x, y, 2, weftFloat32, wrong, comm, nullptr));
      named(weftScatter(x, y, 2, weftFloat32, wrong, comm, nullptr));
      named(weftGatherv(x, 2, y, counts, displs, weftFloat32, wrong, comm, nullptr));
      named(weftScatterv(x, counts, displs, y, 2, weftFloat32, wrong, comm, nullptr));
      refused(weftSend(x, 2, weftFloat32, wrong, comm, nullptr), comm, {peer.c_str(), "legal: 0 to 1"});
      refused(weftRecv(x, 2, weftFloat32, wrong, comm, nullptr), comm, {peer.c_str(), "legal: 0 to 1"});
    }
    weftStream_t stream = nullptr;
    WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
    for (weftStream_t on : {weftStream_t{nullptr}, stream}) {
      refused(weftSend(x, 2, weftFloat32, rank, comm, on), comm, {"itself", "group"}, weftInvalidUsage);
      refused(weftRecv(x, 2, weftFloat32, rank, comm, on), comm, {"itself", "group"}, weftInvalidUsage);
    }
    WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
    refused(weftAllGatherv(x, 2, y, nullptr, displs, weftFloat32, comm, nullptr), comm, {"recvcounts is NULL"});
    refused(weftAllGatherv(x, 2, y, counts, nullptr, weftFloat32, comm, nullptr), comm, {"displacements", "NULL"});
    refused(weftAllGatherv(x, 3, y, counts, displs, weftFloat32, comm, nullptr), comm, {"sendcount=3", "2"});
    refused(weftReduceScatterv(x, nullptr, displs, y, 2, weftFloat32, weftSum, comm, nullptr), comm, {"sendcounts"});
    refused(weftAlltoAllv(x, nullptr, displs, y, counts, displs, weftFloat32, comm, nullptr), comm, {"sendcounts"});
    refused(weftAlltoAllv(x, counts, displs, y, nullptr, displs, weftFloat32, comm, nullptr), comm, {"recvcounts"});
    refused(weftGatherv(x, 2, y, nullptr, nullptr, weftFloat32, rank, comm, nullptr), comm, {"recvcounts"});
    refused(weftScatterv(x, nullptr, nullptr, y, 2, weftFloat32, rank, comm, nullptr), comm, {"sendcounts"});
    WEFT_EXPECT_OK(weftBarrier(comm, nullptr), comm);
  });
}

// A shape that has run before takes a shorter way; wrong arguments are refused there, too.
TEST(Misuse, OfAShapeThatIsKnown) {
  run_threads(2, [](int, weftComm_t comm) {
    float x[8] = {}, y[8] = {};
    const auto reduce = [&](const float* in, float* out, weftRedOp_t op = weftSum) {
      return weftAllReduce(in, out, 4, weftFloat32, op, comm, nullptr);
    };
    const auto gather = [&](const float* in, float* out) {
      return weftAllGather(in, out, 4, weftFloat32, comm, nullptr);
    };
    for (int i = 0; i < 3; ++i) {
      WEFT_EXPECT_OK(reduce(x, y), comm);
      WEFT_EXPECT_OK(reduce(x, x), comm);
      WEFT_EXPECT_OK(gather(x, y), comm);
      WEFT_EXPECT_OK(weftBcast(x, 4, weftFloat32, 1, comm, nullptr), comm);
      refused(reduce(nullptr, y), comm, {"sendbuff is NULL"});
      refused(reduce(x, nullptr), comm, {"recvbuff is NULL"});
      refused(reduce(x, x + 1), comm, {"overlap"});
      refused(reduce(x, y, static_cast<weftRedOp_t>(5)), comm, {"op=5"});
      refused(gather(x + 3, x), comm, {"overlap"});
      refused(gather(nullptr, x), comm, {"sendbuff is NULL"});
      refused(weftBcast(nullptr, 4, weftFloat32, 1, comm, nullptr), comm, {"NULL"});
      refused(weftBcast(x, 4, weftFloat32, 2, comm, nullptr), comm, {"root=2"});
    }
  });
}

// ---- Groups

TEST(MisuseOfGroups, WhatTheyHoldCannotGo) {
  run_threads(2, [](int rank, weftComm_t comm) {
    weftComm_t other = nullptr;
    weftStream_t stream = nullptr;
    int sum = 0;
    WEFT_ASSERT_OK(weftCommSplit(comm, 0, 0, &other, nullptr), comm);
    WEFT_ASSERT_OK(weftStreamCreate(&stream), nullptr);
    for (const auto& release : std::initializer_list<std::function<weftResult_t()>>{
             [&] { return weftCommDestroy(other); }, [&] { return weftCommFinalize(other); },
             [&] { return weftStreamDestroy(stream); }}) {
      WEFT_ASSERT_OK(weftGroupStart(), nullptr);
      WEFT_EXPECT_OK(weftAllReduce(&rank, &sum, 1, weftInt32, weftSum, other, stream), other);
      refused(release(), nullptr, {"group"}, weftInvalidUsage);
      EXPECT_EQ(weftGroupEnd(), weftInvalidUsage) << "nothing is issued";
    }
    WEFT_ASSERT_OK(weftGroupStart(), nullptr);
    WEFT_EXPECT_OK(weftAllReduce(&rank, &sum, 1, weftInt32, weftSum, comm, stream), comm);
    WEFT_EXPECT_OK(weftCommDestroy(other), nullptr);  // it has no calls in this group
    WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
    WEFT_EXPECT_OK(weftStreamDestroy(stream), nullptr);
    EXPECT_EQ(sum, 1);
  });
}

TEST(MisuseOfGroups, Nesting) {
  run_threads(2, [](int rank, weftComm_t comm) {
    int sum = 0;
    refused(weftGroupEnd(), nullptr, {"weftGroupEnd without weftGroupStart"}, weftInvalidUsage);
    for (const bool wrong : {true, false}) {
      sum = 0;
      for (int depth = 0; depth < 3; ++depth) WEFT_ASSERT_OK(weftGroupStart(), nullptr);
      WEFT_EXPECT_OK(weftAllReduce(&rank, &sum, 1, weftInt32, weftSum, comm, nullptr), comm);
      if (wrong) {
        refused(weftBcast(&sum, 1, weftInt32, 9, comm, nullptr), comm, {"root=9"});
      }
      WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
      WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
      EXPECT_EQ(sum, 0) << "the outermost end issues";
      const weftResult_t end = weftGroupEnd();
      if (wrong) {
        refused(end, nullptr, {"root=9"});
      } else {
        WEFT_EXPECT_OK(end, nullptr);
      }
      EXPECT_EQ(sum, wrong ? 0 : 1);
    }
    refused(weftGroupEnd(), nullptr, {"weftGroupEnd without weftGroupStart"}, weftInvalidUsage);
  });
}

// One thread makes all ranks in a group, splits all of them in another, and ends them. The handles are there at once.
TEST(GroupsOfOneThread, InitialisationAndSplit) {
  const Environment environment(Variables{});
  constexpr int kRanks = 3;
  const weftUniqueId id = some_id();
  weftComm_t comms[kRanks] = {}, parts[kRanks] = {}, again[kRanks] = {};
  const auto grouped = [](auto each) {
    WEFT_ASSERT_OK(weftGroupStart(), nullptr);
    for (int rank = 0; rank < kRanks; ++rank) each(rank);
    WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
  };
  grouped([&](int rank) {
    weftComm_t made = nullptr;  // gone by the end of the group
    WEFT_EXPECT_OK(weftCommInitRank(&made, kRanks, id, rank), nullptr);
    ASSERT_NE(made, nullptr);
    comms[rank] = made;
  });
  grouped([&](int rank) {
    WEFT_EXPECT_OK(weftCommSplit(comms[rank], rank / 2, -rank, &parts[rank], nullptr), comms[rank]);
    WEFT_EXPECT_OK(weftCommSplit(comms[rank], rank == 1 ? WEFT_SPLIT_NOCOLOR : 5, 0, &again[rank], nullptr),
                   comms[rank]);
    EXPECT_EQ(again[rank] == nullptr, rank == 1);
  });
  int sums[kRanks] = {}, values[kRanks] = {1, 10, 100};
  grouped([&](int rank) {
    WEFT_EXPECT_OK(weftAllReduce(&values[rank], &sums[rank], 1, weftInt32, weftSum, parts[rank], nullptr), parts[rank]);
  });
  EXPECT_EQ(std::vector<int>(sums, sums + kRanks), (std::vector<int>{11, 11, 100}));
  grouped([&](int rank) {
    sums[rank] = 0;
    if (rank == 1) return;
    WEFT_EXPECT_OK(weftAllReduce(&values[rank], &sums[rank], 1, weftInt32, weftSum, again[rank], nullptr), again[rank]);
  });
  EXPECT_EQ(std::vector<int>(sums, sums + kRanks), (std::vector<int>{101, 0, 101}));
  int number = -1;
  WEFT_EXPECT_OK(weftCommUserRank(parts[0], &number), parts[0]);
  EXPECT_EQ(number, 1) << "ordered by key";
  for (const auto& list : {comms, parts, again}) {
    for (int rank = 0; rank < kRanks; ++rank) WEFT_EXPECT_OK(weftCommDestroy(list[rank]), nullptr);
  }
}

// What a group was to make is left failed where the group fails: its owner releases it.
TEST(GroupsOfOneThread, InitialisationThatFails) {
  const Environment environment(Variables{{"WEFT_INIT_TIMEOUT", "1"}});
  for (const bool early : {true, false}) {
    const weftUniqueId id = some_id();
    weftComm_t good = nullptr, bad = nullptr;
    WEFT_ASSERT_OK(weftGroupStart(), nullptr);
    WEFT_EXPECT_OK(weftCommInitRank(&good, 2, id, 0), nullptr);
    if (early) {
      refused(weftCommInitRank(&bad, 2, id, 2), nullptr, {"rank=2"});
      EXPECT_EQ(bad, nullptr);
    }
    refused(weftCommDestroy(good), nullptr, {"group"}, weftInvalidUsage);
    EXPECT_NE(weftGroupEnd(), weftSuccess);
    ASSERT_NE(good, nullptr);
    weftResult_t state = weftSuccess;
    WEFT_EXPECT_OK(weftCommGetAsyncError(good, &state), good);
    EXPECT_EQ(state, weftInvalidUsage);
    refused(weftBarrier(good, nullptr), good, {"group"}, weftInvalidUsage);
    WEFT_EXPECT_OK(weftCommDestroy(good), nullptr);
  }
  weftComm_t late = nullptr;
  WEFT_ASSERT_OK(weftGroupStart(), nullptr);
  WEFT_EXPECT_OK(weftCommInitRank(&late, 2, some_id(), 0), nullptr);
  refused(weftGroupEnd(), nullptr, {"rank 1"}, weftTimeout);
  refused(weftBarrier(late, nullptr), late, {"rank 1"}, weftTimeout);
  WEFT_EXPECT_OK(weftCommDestroy(late), nullptr);
}

}  // namespace
}  // namespace weft::testing
