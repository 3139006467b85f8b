// Communicators from beginning to end: memory, windows, counters, configuration, algorithms of one's own.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "ranks.hpp"

namespace weft::testing {
namespace {

void expect_sum(weftComm_t comm, int rank, int ranks, size_t count) {
  std::vector<int> in(count), out(count);
  for (size_t i = 0; i < count; ++i) in[i] = static_cast<int>(i) * 3 + rank;
  WEFT_ASSERT_OK(weftAllReduce(in.data(), out.data(), count, weftInt32, weftSum, comm, nullptr), comm);
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(out[i], ranks * static_cast<int>(i) * 3 + ranks * (ranks - 1) / 2) << i;
  }
}

// Memory that the peers map, freed and allocated again: what they read is what lies there now.
TEST(SharedMemory, FreedAndAllocatedAgain) {
  for (const char* cma : {"1", "0"}) {
    run_processes(3,
                  [](int rank, weftComm_t comm) {
                    for (int round = 0; round < 40; ++round) {
                      const size_t count = 30000 + static_cast<size_t>(round % 5) * 10000;
                      void *a = nullptr, *b = nullptr;
                      WEFT_ASSERT_OK(weftMemAlloc(&a, count * sizeof(int)), nullptr);
                      WEFT_ASSERT_OK(weftMemAlloc(&b, 3 * count * sizeof(int)), nullptr);
                      int *in = static_cast<int*>(a), *out = static_cast<int*>(b);
                      std::fill(in, in + count, round * 10 + rank);
                      WEFT_ASSERT_OK(weftAllReduce(in, out, count, weftInt32, weftSum, comm, nullptr), comm);
                      for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], 30 * round + 3) << "round " << round;
                      // From the middle of a region, and out of private memory into a region.
                      std::vector<int> own(count, rank - round);
                      WEFT_ASSERT_OK(
                          weftAllGather(round % 2 == 0 ? in : own.data(), out, count, weftInt32, comm, nullptr), comm);
                      for (size_t i = 0; i < 3 * count; ++i) {
                        const int from = static_cast<int>(i / count);
                        ASSERT_EQ(out[i], round % 2 == 0 ? round * 10 + from : from - round);
                      }
                      WEFT_ASSERT_OK(weftMemFree(a), nullptr);
                      WEFT_ASSERT_OK(weftMemFree(b), nullptr);
                    }
                  },
                  {{"WEFT_TRANSPORT", "shm"}, {"WEFT_SHM_CMA", cma}});
  }
}

TEST(SharedMemory, WrongUse) {
  void* memory = nullptr;
  EXPECT_EQ(weftMemAlloc(&memory, 0), weftInvalidArgument);
  EXPECT_EQ(weftMemAlloc(nullptr, 10), weftInvalidArgument);
  EXPECT_EQ(weftMemAlloc(&memory, SIZE_MAX), weftInvalidArgument);
  int local = 0;
  EXPECT_EQ(weftMemFree(&local), weftInvalidArgument);
  EXPECT_EQ(weftMemFree(nullptr), weftSuccess);
}

// Large messages where the peer's memory cannot be read: through the ring, also a small one, in parts.
TEST(SharedMemory, ThroughTheRing) {
  for (const char* ring : {"64K", "512K"}) {
    run_processes(
        3,
        [](int rank, weftComm_t comm) {
          for (const size_t count : {size_t{1}, size_t{3000}, size_t{16384}, size_t{250007}, size_t{1} << 20}) {
            expect_sum(comm, rank, 3, count);
            std::vector<int> data(count, rank == 2 ? 7 : 0);
            WEFT_ASSERT_OK(weftBcast(data.data(), count, weftInt32, 2, comm, nullptr), comm);
            ASSERT_EQ(data, std::vector<int>(count, 7));
          }
        },
        {{"WEFT_TRANSPORT", "shm"}, {"WEFT_SHM_CMA", "0"}, {"WEFT_SHM_RING", ring}});
  }
}

// The first message on a wire may be a large reduction, sent while the two ends still find out how to reach each other.
TEST(SharedMemory, LargeMessagesFromTheFirstOn) {
  run_processes(3,
                [](int rank, weftComm_t comm) {
                  for (int i = 0; i < 12; ++i) {
                    weftComm_t fresh = nullptr;
                    WEFT_ASSERT_OK(weftCommSplit(comm, 0, 0, &fresh, nullptr), comm);
                    if (rank == i % 3) ::usleep(3000);
                    expect_sum(fresh, rank, 3, 400000);
                    WEFT_ASSERT_OK(weftCommDestroy(fresh), nullptr);
                  }
                },
                {{"WEFT_TRANSPORT", "shm"}, {"WEFT_TILE", "256K"}, {"WEFT_SHM_RING", "64K"}});
}

// A rank that has sent its part and left is not missed by those that look later.
TEST(Leaving, LastMessagesOutliveTheirSender) {
  for (const char* transport : {"loop", "shm", "tcp"}) {
    for (const size_t count : {size_t{4}, size_t{1500}}) {
      run_threads(3,
                  [count](int rank, weftComm_t comm) {
                    std::vector<int> data(count, rank == 0 ? 5 : 0);
                    if (rank != 0) ::usleep(100000);
                    WEFT_ASSERT_OK(weftBcast(data.data(), count, weftInt32, 0, comm, nullptr), comm);
                    EXPECT_EQ(data, std::vector<int>(count, 5));
                  },
                  {{"WEFT_TRANSPORT", transport}, {"WEFT_ALGO", "broadcast:flat"}});
    }
  }
}

TEST(Windows, RegisterUseAndDeregister) {
  for (const Mode mode : {Mode::threads, Mode::processes}) {
    run_ranks(mode, 3, [](int rank, weftComm_t comm) {
      constexpr size_t kCount = 100000;
      void* memory = nullptr;
      WEFT_ASSERT_OK(weftMemAlloc(&memory, 2 * kCount * sizeof(int)), nullptr);
      weftWindow_t window = nullptr;
      WEFT_ASSERT_OK(weftCommWindowRegister(comm, memory, 2 * kCount * sizeof(int), &window, WEFT_WIN_DEFAULT), comm);
      int* in = static_cast<int*>(memory);
      for (int round = 0; round < 5; ++round) {
        std::fill(in, in + kCount, rank + round);
        WEFT_ASSERT_OK(weftAllReduce(in, in + kCount, kCount, weftInt32, weftSum, comm, nullptr), comm);
        for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(in[kCount + i], 3 + 3 * round);
      }
      WEFT_EXPECT_OK(weftCommWindowDeregister(comm, window), comm);
      WEFT_EXPECT_OK(weftMemFree(memory), nullptr);
    });
  }
}

TEST(Windows, HandlesAreChecked) {
  run_threads(2, [](int, weftComm_t comm) {
    int memory[16] = {};
    weftComm_t other = nullptr;
    WEFT_ASSERT_OK(weftCommSplit(comm, 0, 0, &other, nullptr), comm);
    weftWindow_t window = nullptr, second = nullptr;
    void* handle = nullptr;
    WEFT_ASSERT_OK(weftCommWindowRegister(comm, memory, sizeof memory, &window, WEFT_WIN_DEFAULT), comm);
    WEFT_ASSERT_OK(weftCommRegister(comm, memory, sizeof memory, &handle), comm);
    EXPECT_EQ(weftCommWindowDeregister(other, window), weftInvalidArgument);
    EXPECT_EQ(weftCommDeregister(other, handle), weftInvalidArgument);
    EXPECT_EQ(weftCommDeregister(comm, window), weftInvalidArgument);
    EXPECT_EQ(weftCommWindowDeregister(comm, static_cast<weftWindow_t>(handle)), weftInvalidArgument);
    EXPECT_EQ(weftCommWindowDeregister(comm, nullptr), weftInvalidArgument);
    EXPECT_EQ(weftCommDeregister(comm, nullptr), weftInvalidArgument);
    EXPECT_EQ(weftCommDeregister(comm, memory), weftInvalidArgument);
    WEFT_EXPECT_OK(weftCommWindowDeregister(comm, window), comm);
    WEFT_EXPECT_OK(weftCommDeregister(comm, handle), comm);
    // A new one is not taken for the old one.
    WEFT_ASSERT_OK(weftCommWindowRegister(comm, memory, sizeof memory, &second, WEFT_WIN_DEFAULT), comm);
    EXPECT_EQ(weftCommWindowDeregister(comm, window), weftInvalidArgument);
    EXPECT_EQ(weftCommDeregister(comm, handle), weftInvalidArgument);
    WEFT_EXPECT_OK(weftCommWindowDeregister(comm, second), comm);
    EXPECT_EQ(weftCommWindowRegister(comm, nullptr, 8, &window, WEFT_WIN_DEFAULT), weftInvalidArgument);
    EXPECT_EQ(weftCommWindowRegister(comm, memory, 0, &window, WEFT_WIN_DEFAULT), weftInvalidArgument);
    EXPECT_EQ(weftCommWindowRegister(comm, memory, 8, nullptr, WEFT_WIN_DEFAULT), weftInvalidArgument);
    EXPECT_EQ(weftCommWindowRegister(comm, memory, 8, &window, 77), weftInvalidArgument);
    EXPECT_EQ(weftCommRegister(comm, memory, 8, nullptr), weftInvalidArgument);
    WEFT_EXPECT_OK(weftCommDestroy(other), nullptr);
  });
}

// Maps of weftMemAlloc's memory in this process.
size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find("/memfd:weft (deleted)") != std::string::npos;
  return found;
}

// After the registration everything is mapped, and no call maps more; where the memory was freed, the peers let go.
TEST(Windows, MappingsAreExchangedAtTheRegistration) {
  for (const char* cma : {"1", "0"}) {
    run_processes(4,
                  [](int rank, weftComm_t comm) {
                    constexpr size_t kCount = 50000;
                    ASSERT_EQ(mappings(), 0U);
                    void* before = nullptr;
                    int at_the_same_place = 0;
                    for (int round = 0; round < 6; ++round) {
                      void* memory = nullptr;
                      WEFT_ASSERT_OK(weftMemAlloc(&memory, 5 * kCount * sizeof(int)), nullptr);
                      at_the_same_place += memory == before ? 1 : 0;
                      before = memory;
                      int *in = static_cast<int*>(memory), *out = in + kCount;
                      std::fill(in, in + kCount, 10 * round + rank);
                      weftWindow_t window = nullptr;
                      WEFT_ASSERT_OK(
                          weftCommWindowRegister(comm, memory, 5 * kCount * sizeof(int), &window, WEFT_WIN_DEFAULT),
                          comm);
                      const size_t mapped = mappings();
                      EXPECT_GE(mapped, 4U);  // with what the peers have not let go of yet
                      WEFT_ASSERT_OK(weftAllGather(in, out, kCount, weftInt32, comm, nullptr), comm);
                      for (size_t i = 0; i < 4 * kCount; ++i)
                        ASSERT_EQ(out[i], 10 * round + static_cast<int>(i / kCount));
                      WEFT_ASSERT_OK(weftAllReduce(in, out, kCount, weftInt32, weftSum, comm, nullptr), comm);
                      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], 40 * round + 6);
                      EXPECT_LE(mappings(), mapped);
                      WEFT_EXPECT_OK(weftCommWindowDeregister(comm, window), comm);
                      WEFT_ASSERT_OK(weftBarrier(comm, nullptr), comm);
                      WEFT_ASSERT_OK(weftMemFree(memory), nullptr);
                    }
                    EXPECT_GT(at_the_same_place, 0) << "the case that this is about did not occur";
                    // While they wait for something, ranks tell each other what was freed.
                    int most = 1;
                    for (int tries = 0; most > 0 && tries < 1000; ++tries) {
                      if (rank == tries % 4) ::usleep(20000);
                      const int mine = static_cast<int>(mappings());
                      WEFT_ASSERT_OK(weftAllReduce(&mine, &most, 1, weftInt32, weftMax, comm, nullptr), comm);
                    }
                    EXPECT_EQ(most, 0);
                  },
                  {{"WEFT_TRANSPORT", "shm"}, {"WEFT_SHM_CMA", cma}});
  }
}

// Private memory, on all ranks or on some, is a window too.
TEST(Windows, OfAnyMemory) {
  for (const char* cma : {"1", "0"}) {
    run_processes(3,
                  [](int rank, weftComm_t comm) {
                    constexpr size_t kCount = 30000;
                    void* shared = nullptr;
                    WEFT_ASSERT_OK(weftMemAlloc(&shared, kCount * sizeof(int)), nullptr);
                    std::vector<int> own(kCount);
                    for (int round = 0; round < 3; ++round) {
                      int* memory = round > 0 && rank % 2 == round - 1 ? static_cast<int*>(shared) : own.data();
                      weftWindow_t window = nullptr;
                      WEFT_ASSERT_OK(
                          weftCommWindowRegister(comm, memory, kCount * sizeof(int), &window, WEFT_WIN_DEFAULT), comm);
                      std::fill(memory, memory + kCount, rank + round);
                      WEFT_ASSERT_OK(weftAllReduce(memory, memory, kCount, weftInt32, weftSum, comm, nullptr), comm);
                      for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(memory[i], 3 + 3 * round);
                      WEFT_EXPECT_OK(weftCommWindowDeregister(comm, window), comm);
                    }
                    WEFT_ASSERT_OK(weftMemFree(shared), nullptr);
                  },
                  {{"WEFT_TRANSPORT", "shm"}, {"WEFT_SHM_CMA", cma}});
  }
}

TEST(Windows, SizesMustAgree) {
  for (const Mode mode : {Mode::threads, Mode::processes}) {
    run_ranks(mode, 3, [](int rank, weftComm_t comm) {
      std::vector<char> memory(8192);
      weftWindow_t window = nullptr;
      EXPECT_EQ(weftCommWindowRegister(comm, memory.data(), rank == 1 ? 4096 : 8192, &window, WEFT_WIN_DEFAULT),
                weftInvalidUsage);
      const std::string text = weftGetLastError(comm);
      EXPECT_NE(text.find("4096"), std::string::npos) << text;
      EXPECT_NE(text.find("8192"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      EXPECT_EQ(window, nullptr);
      expect_sum(comm, rank, 3, 100);
      WEFT_EXPECT_OK(weftCommWindowRegister(comm, memory.data(), 8192, &window, WEFT_WIN_DEFAULT), comm);
    });
  }
}

// Another collective is no match, nor is an all-gather that looks like the one that a registration makes.
TEST(Windows, EveryRankMustRegister) {
  for (const bool alike : {false, true}) {
    run_threads(2, [alike](int rank, weftComm_t comm) {
      uint64_t in[3] = {}, out[6] = {};
      weftWindow_t window = nullptr;
      const weftResult_t result = rank == 0 ? weftCommWindowRegister(comm, in, sizeof in, &window, WEFT_WIN_DEFAULT)
                                  : alike   ? weftAllGather(in, out, 3, weftUint64, comm, nullptr)
                                            : weftBarrier(comm, nullptr);
      EXPECT_EQ(result, weftInvalidUsage);
      const std::string text = weftGetLastError(comm);
      EXPECT_NE(text.find("window registration"), std::string::npos) << text;
      EXPECT_NE(text.find(alike ? "allgather" : "barrier"), std::string::npos) << text;
    });
  }
}

// One thread registers for all its ranks in a group, two windows each; and where the communicators do not block.
TEST(Windows, InAGroup) {
  const Environment environment({});
  weftComm_t comms[3] = {};
  WEFT_ASSERT_OK(weftCommInitAll(comms, 3, nullptr), nullptr);
  void* memory[6] = {};
  weftWindow_t windows[6] = {};
  for (void*& region : memory) WEFT_ASSERT_OK(weftMemAlloc(&region, 4096), nullptr);
  WEFT_ASSERT_OK(weftGroupStart(), nullptr);
  for (int i = 0; i < 6; ++i) {
    static_cast<int*>(memory[i])[0] = i;
    WEFT_ASSERT_OK(weftCommWindowRegister(comms[i % 3], memory[i], 4096, &windows[i], WEFT_WIN_DEFAULT), nullptr);
  }
  for (int i = 0; i < 3; ++i) {
    WEFT_ASSERT_OK(weftAllReduce(memory[i], memory[i + 3], 1, weftInt32, weftSum, comms[i], nullptr), nullptr);
  }
  EXPECT_EQ(windows[0], nullptr);
  WEFT_ASSERT_OK(weftGroupEnd(), nullptr);
  for (int i = 0; i < 6; ++i) WEFT_EXPECT_OK(weftCommWindowDeregister(comms[i % 3], windows[i]), comms[i % 3]);
  for (int i = 3; i < 6; ++i) EXPECT_EQ(static_cast<int*>(memory[i])[0], 3);
  for (void* region : memory) WEFT_EXPECT_OK(weftMemFree(region), nullptr);
  for (weftComm_t comm : comms) WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr);
}

TEST(Windows, OfANonBlockingCommunicator) {
  run_threads(2, [](int rank, weftComm_t comm) {
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    config.blocking = 0;
    weftComm_t part = nullptr;
    EXPECT_EQ(weftCommSplit(comm, 0, 0, &part, &config), weftInProgress);
    weftResult_t state = weftInProgress;
    while (weftCommGetAsyncError(part, &state) == weftSuccess && state == weftInProgress) std::this_thread::yield();
    ASSERT_EQ(state, weftSuccess) << weftGetLastError(part);
    int sum = 0;
    EXPECT_EQ(weftAllReduce(&rank, &sum, 1, weftInt32, weftSum, part, nullptr), weftInProgress);
    weftWindow_t window = nullptr;
    WEFT_EXPECT_OK(weftCommWindowRegister(part, &sum, sizeof sum, &window, WEFT_WIN_DEFAULT), part);
    WEFT_EXPECT_OK(weftCommWindowDeregister(part, window), part);
    WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
    EXPECT_EQ(sum, 1);
  });
}

TEST(Counters, StatsAndDump) {
  run_threads(2,
              [](int rank, weftComm_t comm) {
                constexpr size_t kBytes = 1000000;
                std::vector<char> data(kBytes);
                weftStats_t before{.size = sizeof before}, after{.size = sizeof after};
                WEFT_ASSERT_OK(weftCommGetStats(comm, &before), comm);
                WEFT_ASSERT_OK(weftBcast(data.data(), kBytes, weftInt8, 0, comm, nullptr), comm);
                WEFT_ASSERT_OK(weftCommGetStats(comm, &after), comm);
                EXPECT_EQ(after.operations - before.operations, 1U);
                EXPECT_EQ(after.bytesSent - before.bytesSent, rank == 0 ? kBytes : 0);
                EXPECT_EQ(after.bytesReceived - before.bytesReceived, rank == 0 ? 0 : kBytes);
                weftStats_t wrong{};
                EXPECT_EQ(weftCommGetStats(comm, &wrong), weftInvalidArgument);

                for (const weftDumpFormat_t format : {weftDumpJson, weftDumpPrometheus}) {
                  size_t length = 0;
                  EXPECT_EQ(weftCommDump(comm, format, nullptr, &length), weftInvalidArgument);
                  std::string text(length, '\0');
                  WEFT_ASSERT_OK(weftCommDump(comm, format, text.data(), &length), comm);
                  ASSERT_EQ(length, text.size());
                  text.pop_back();
                  if (format == weftDumpPrometheus) {
                    EXPECT_NE(text.find("weft_operations_total{"), std::string::npos);
                    continue;
                  }
                  const auto json = nlohmann::json::parse(text);
                  EXPECT_EQ(json["rank"], rank);
                  EXPECT_EQ(json["wires"].size(), 1U);
                  EXPECT_EQ(json["wires"][0]["transport"], "loop");
                  EXPECT_EQ(json["recorder"].back()["collective"], "broadcast") << text;
                }
              },
              {{"WEFT_TRANSPORT", "loop"}});
}

nlohmann::json dump_of(weftComm_t comm) {
  std::string text(1 << 20, '\0');
  size_t length = text.size();
  EXPECT_EQ(why(weftCommDump(comm, weftDumpJson, text.data(), &length), comm), "");
  text.resize(length - 1);
  return nlohmann::json::parse(text);
}

// What a communicator is at can be asked from another thread while a call waits in it: the peer comes only once that
// was answered.
TEST(Counters, AreReadWhileACallWaits) {
  for (const char* transport : {"loop", "shm", "tcp"}) {
    for (const size_t count : {size_t{4}, size_t{300000}}) {
      std::atomic<bool> answered{false};
      run_threads(2,
                  [&answered, count](int rank, weftComm_t comm) {
                    if (rank == 1) {
                      while (!answered.load()) ::usleep(1000);
                      expect_sum(comm, rank, 2, count);
                      return;
                    }
                    std::thread watcher([&answered, comm] {
                      nlohmann::json last;
                      do {
                        ::usleep(1000);
                        const auto dump = dump_of(comm);
                        last = dump["recorder"].empty() ? nlohmann::json() : dump["recorder"].back();
                      } while (last.is_null() || last["state"] != "running");
                      EXPECT_EQ(last["collective"], "allreduce");
                      weftStats_t stats{.size = sizeof stats};
                      WEFT_EXPECT_OK(weftCommGetStats(comm, &stats), comm);
                      EXPECT_EQ(stats.operations, 0U);
                      answered.store(true);
                    });
                    expect_sum(comm, rank, 2, count);
                    watcher.join();
                  },
                  {{"WEFT_TRANSPORT", transport}});
    }
  }
}

// Wires are made and counted while somebody reads.
TEST(Counters, AreReadWhileWiresAreMade) {
  for (const char* transport : {"loop", "shm", "tcp"}) {
    run_threads(4,
                [](int rank, weftComm_t comm) {
                  std::atomic<bool> over{false};
                  std::thread watcher([&over, comm] {
                    uint64_t before = 0;
                    do {
                      const auto dump = dump_of(comm);
                      uint64_t messages = 0;
                      for (const auto& wire : dump["wires"]) messages += wire["messages_sent"].get<uint64_t>();
                      EXPECT_GE(messages, before);
                      before = messages;
                    } while (!over.load());
                  });
                  for (int distance = 1; distance < 4; ++distance) {
                    for (int round = 0; round < 20; ++round) {
                      int from = -1;
                      WEFT_EXPECT_OK(weftGroupStart(), comm);
                      WEFT_EXPECT_OK(weftSend(&rank, 1, weftInt32, (rank + distance) % 4, comm, nullptr), comm);
                      WEFT_EXPECT_OK(weftRecv(&from, 1, weftInt32, (rank + 4 - distance) % 4, comm, nullptr), comm);
                      WEFT_EXPECT_OK(weftGroupEnd(), comm);
                      EXPECT_EQ(from, (rank + 4 - distance) % 4);
                    }
                  }
                  over.store(true);
                  watcher.join();
                  EXPECT_EQ(dump_of(comm)["wires"].size(), 3U);
                },
                {{"WEFT_TRANSPORT", transport}});
  }
}

// ---- Algorithms of one's own

class OwnAlgorithm : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / fmt::format("weft-algo-{}", ::getpid());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = directory_ / name;
    std::ofstream(path) << text;
    return path;
  }
  std::filesystem::path directory_;
};

constexpr const char* kStar = R"(# All to rank 0, and back.
allreduce star
for k in 1..P step {
  if r == k  send 0 out[0]
  if r == 0  recv reduce k out[0]
}
step {
  if r == 0 { for k in 1..P send k out[0] }
  else recv 0 out[0]
}
)";

TEST_F(OwnAlgorithm, RunsFromEndToEnd) {
  write("star.algo", kStar);
  for (const Mode mode : {Mode::threads, Mode::processes}) {
    run_ranks(mode, 5,
              [](int rank, weftComm_t comm) {
                for (const size_t count : {size_t{1}, size_t{77777}}) expect_sum(comm, rank, 5, count);
                size_t length = 1 << 20;
                std::string text(length, '\0');
                WEFT_ASSERT_OK(weftCommDump(comm, weftDumpJson, text.data(), &length), comm);
                EXPECT_NE(text.find("\"star\""), std::string::npos) << text.c_str();
              },
              {{"WEFT_ALGO_PATH", directory_}, {"WEFT_ALGO", "allreduce:star"}});
  }
}

TEST_F(OwnAlgorithm, IsRefusedWithLineAndReason) {
  const auto refused = [](const std::string& path, const char* algo, const std::vector<std::string>& words) {
    const Environment environment({{"WEFT_ALGO_PATH", path}, {"WEFT_ALGO", algo}});
    weftComm_t comms[2] = {};
    EXPECT_EQ(weftCommInitAll(comms, 2, nullptr), weftInvalidArgument);
    const std::string text = weftGetLastError(nullptr);
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  // Nobody sends the result back.
  refused(write("half.algo",
                "allreduce half\nfor k in 1..P step {\n  if r == k send 0 out[0]\n"
                "  if r == 0 recv reduce k out[0]\n}\n"),
          "allreduce:half", {"half.algo"});
  refused(write("typo.algo", "allreduce typo\nstep {\n  sned 0 out[0]\n}\n"), "allreduce:typo", {"typo.algo:3"});
  refused(write("ring.algo", "allreduce ring\ncopy out[0] from in[0]\n"), "allreduce:ring", {"ring"});
  refused(write("star.algo", kStar), "allreduce:satr", {"satr", "star"});
}

// What the ranks run must be the same text.
TEST_F(OwnAlgorithm, RanksThatDiffer) {
  const std::string stars[] = {kStar, "\n" + std::string(kStar)};
  for (int i = 0; i < 2; ++i) {
    std::filesystem::create_directories(directory_ / std::to_string(i));
    write(std::to_string(i) + "/star.algo", stars[i]);
  }
  run_launched(2, [this](int rank) {
    const Environment environment(
        {{"WEFT_ALGO_PATH", directory_ / std::to_string(rank)}, {"WEFT_ALGO", "allreduce:star"}});
    weftComm_t comm = nullptr;
    EXPECT_EQ(weftCommInitEnv(&comm, nullptr), weftInvalidUsage);
    const std::string text = weftGetLastError(nullptr);
    EXPECT_NE(text.find("allreduce star"), std::string::npos) << text;
  });
}

// And so must what they choose by.
TEST_F(OwnAlgorithm, MeasurementsThatDiffer) {
  for (const bool same : {true, false}) {
    for (int i = 0; i < 2; ++i) {
      std::filesystem::create_directories(directory_ / std::to_string(i));
      write(std::to_string(i) + "/my.tune",
            fmt::format("weft-tune 1\nkind shm\nalpha {}\nmessage 0\nbeta 1\ngamma 0\n", same ? 1 : 1 + i));
    }
    run_launched(2, [&](int rank) {
      const Environment environment({{"WEFT_TUNE_FILE", directory_ / std::to_string(rank) / "my.tune"}});
      weftComm_t comm = nullptr;
      EXPECT_EQ(weftCommInitEnv(&comm, nullptr), same ? weftSuccess : weftInvalidUsage) << weftGetLastError(nullptr);
      if (same) {
        expect_sum(comm, rank, 2, 1000);
        WEFT_EXPECT_OK(weftCommDestroy(comm), nullptr);
      } else {
        const std::string text = weftGetLastError(nullptr);
        EXPECT_NE(text.find("WEFT_TUNE_FILE"), std::string::npos) << text;
      }
    });
  }
}

// Ranks that differ in what must be the same are told so.
TEST(Configuration, RanksThatDiffer) {
  run_launched(2, [](int rank) {
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    config.algo = rank == 0 ? "allreduce:ring" : "allreduce:flat";
    weftComm_t comm = nullptr;
    EXPECT_EQ(weftCommInitEnv(&comm, &config), weftInvalidUsage);
    EXPECT_NE(std::string(weftGetLastError(nullptr)).find("flat"), std::string::npos) << weftGetLastError(nullptr);
  });
}

TEST(Configuration, OfOneCommunicator) {
  run_processes(2, [](int rank, weftComm_t comm) {
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    config.transport = "tcp";
    config.algo = "ring";
    config.commName = "narrow road";
    weftComm_t other = nullptr;
    WEFT_ASSERT_OK(weftCommSplit(comm, 0, 0, &other, &config), comm);
    expect_sum(other, rank, 2, 1000);
    size_t length = 1 << 20;
    std::string text(length, '\0');
    WEFT_ASSERT_OK(weftCommDump(other, weftDumpJson, text.data(), &length), other);
    EXPECT_NE(text.find("narrow road"), std::string::npos);
    EXPECT_NE(text.find("\"tcp\""), std::string::npos);
    EXPECT_NE(text.find("\"ring\""), std::string::npos);
    WEFT_EXPECT_OK(weftCommDestroy(other), nullptr);
    config.algo = "rnig";
    EXPECT_EQ(weftCommSplit(comm, 0, 0, &other, &config), weftInvalidArgument);
    config.algo = nullptr;
    config.blocking = 7;
    EXPECT_EQ(weftCommSplit(comm, 0, 0, &other, &config), weftInvalidArgument);
    config.magic = 0;
    EXPECT_EQ(weftCommSplit(comm, 0, 0, &other, &config), weftInvalidArgument);
    expect_sum(comm, rank, 2, 10);
  });
}

// Split off what does not block.
TEST(Configuration, NonBlockingSplit) {
  run_threads(3, [](int rank, weftComm_t comm) {
    weftConfig_t config = WEFT_CONFIG_INITIALIZER;
    config.blocking = 0;
    weftComm_t part = nullptr;
    EXPECT_EQ(weftCommSplit(comm, 0, 0, &part, &config), weftInProgress);
    weftResult_t state = weftInProgress;
    const auto wait = [&] {
      do {
        ASSERT_EQ(weftCommGetAsyncError(part, &state), weftSuccess);
        std::this_thread::yield();
      } while (state == weftInProgress);
      ASSERT_EQ(state, weftSuccess) << weftGetLastError(part);
    };
    wait();
    int sum = 0;
    EXPECT_EQ(weftAllReduce(&rank, &sum, 1, weftInt32, weftSum, part, nullptr), weftInProgress);
    wait();
    EXPECT_EQ(sum, 3);
    WEFT_EXPECT_OK(weftCommDestroy(part), nullptr);
  });
}

}  // namespace
}  // namespace weft::testing
