// What communicators cost and leave: descriptors, threads, memory (B31, B33, B34, B83, B86).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/faults/job.hpp"

namespace weft::faults {
namespace {

// Sixteen ranks as threads of one process, all connected to all.
weftResult_t all_to_all_of_threads(Rank& rank, const char* transport) {
  constexpr int kRanks = 16;
  set_environment({{"WEFT_TRANSPORT", transport}});
  std::vector<weftComm_t> comms(kRanks, nullptr);
  if (rank.keep(weftCommInitAll(comms.data(), kRanks, nullptr)) != weftSuccess) return weftSystemError;
  std::vector<int> in(kRanks), out(kRanks * kRanks);
  weftGroupStart();
  for (size_t i = 0; i < kRanks; ++i) {
    weftAlltoAll(in.data(), out.data() + i * kRanks, 1, weftInt32, comms[i], nullptr);
  }
  rank.keep(weftGroupEnd());
  for (size_t i = 0; i < kRanks && rank.report.code != weftSuccess; ++i) {
    const std::string text = weftGetLastError(comms[i]);
    if (!text.empty()) std::strncat(rank.report.message, (" | " + text).c_str(), 200);
  }
  const auto code = static_cast<weftResult_t>(rank.report.code);
  for (weftComm_t comm : comms) weftCommDestroy(comm);
  return code;
}

class Descriptors : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(On, Descriptors, ::testing::Values("shm", "tcp"), [](const auto& info) { return info.param; });

TEST_P(Descriptors, B33_TheLimitIsNamed) {
  Job job({.size = 1, .join = false}, [](Rank& rank) {
    const rlimit limit{64, 64};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    rank.begin();
    all_to_all_of_threads(rank, GetParam());
  });
  ASSERT_TRUE(job.finish());
  // From the rank that ran out, or as told by it.
  EXPECT_TRUE(job[0].code == weftSystemError || job[0].code == weftRemoteError) << job[0].code;
  expect_error(job[0], static_cast<weftResult_t>(job[0].code), {"64", "open files", "ulimit -n"}, kInTime + 3);
}
TEST_P(Descriptors, B33_TheLimitIsRaised) {
  Job job({.size = 1, .join = false}, [](Rank& rank) {
    const rlimit limit{64, 8192};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    all_to_all_of_threads(rank, GetParam());
  });
  ASSERT_TRUE(job.finish());
  expect_success(job[0]);
}

// Sixteen processes: 64 are enough for each of them; with less, all learn what was lacking, and where.
TEST_P(Descriptors, B33_SixteenProcesses) {
  for (const rlim_t most : {24, 64, 8192}) {
    SCOPED_TRACE(most);
    JobOptions options{.size = 16, .environment = {{"WEFT_TRANSPORT", GetParam()}}};
    options.prepare = [most](int) {
      const rlimit limit{std::min(most, rlim_t{64}), most};
      ::setrlimit(RLIMIT_NOFILE, &limit);
    };
    options.join = false;
    Job job(options, [](Rank& rank) {
      std::vector<int> in(16, rank.rank), out(16, -1);
      if (rank.join() != weftSuccess) return;
      rank.begin();
      rank.keep(weftAlltoAll(in.data(), out.data(), 1, weftInt32, rank.comm, nullptr));
      rank.report.value[0] = out[15] == 15;
    });
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 16; ++rank) {
      if (most == 24) {
        EXPECT_TRUE(job[rank].code == weftSystemError || job[rank].code == weftRemoteError) << job[rank].code;
        expect_error(job[rank], static_cast<weftResult_t>(job[rank].code), {"24 open files", "ulimit -n"});
      } else {
        expect_success(job[rank]);
        EXPECT_TRUE(job[rank].value[0]);
      }
    }
  }
}

long threads_of_this_process() { return static_cast<long>(count_entries("/proc/self/task")); }
long maps_of_this_process() {
  const std::string maps = slurp("/proc/self/maps");
  return std::count(maps.begin(), maps.end(), '\n');
}

TEST(Lifetimes, B34_ManyCommunicatorsLeaveNothing) {
  for (const char* transport : {"shm", "tcp"}) {
    SCOPED_TRACE(transport);
    const int rounds = 500;
    Job job({.environment = {{"WEFT_TRANSPORT", transport}}, .seconds = 90}, [](Rank& rank) {
      weftStream_t stream = nullptr;
      int64_t before[4] = {};
      for (int round = 0; round < rounds; ++round) {
        weftComm_t child = nullptr, half = nullptr;
        weftStreamCreate(&stream);
        if (rank.keep(weftCommSplit(rank.comm, 0, rank.rank, &child, nullptr)) != weftSuccess) return;
        rank.report.value[0] += sum_is_right(child, rank.rank, rank.size, 100);
        rank.report.value[0] += sum_is_right(child, rank.rank, rank.size, 30000);
        float one = 1;
        weftAllReduce(&one, &one, 1, weftFloat32, weftSum, child, stream);
        weftStreamSynchronize(stream);
        weftCommSplit(child, rank.rank == 0 ? 0 : WEFT_SPLIT_NOCOLOR, 0, &half, nullptr);
        weftCommDestroy(half);
        weftCommDestroy(child);
        weftStreamDestroy(stream);
        const int64_t now[4] = {static_cast<int64_t>(count_entries("/proc/self/fd")), threads_of_this_process(),
                                maps_of_this_process(), resident_kb(::getpid())};
        if (round == 19) std::copy(std::begin(now), std::end(now), before);
        if (round == rounds - 1) {
          for (int i = 0; i < 4; ++i) rank.report.value[2 + i] = now[i] - before[i];
        }
      }
    });
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 2; ++rank) {
      expect_success(job[rank]);
      EXPECT_EQ(job[rank].value[0], 2 * rounds);
      EXPECT_LE(job[rank].value[2], 0) << "descriptors";
      EXPECT_LE(job[rank].value[3], 0) << "threads";
      EXPECT_LE(job[rank].value[4], 4) << "maps";
      EXPECT_LE(job[rank].value[5], 4096) << "resident kilobytes";
    }
  }
}

TEST(Lifetimes, B31_TwoJobsAtOnce) {
  JobOptions options{.size = 3};
  const auto body = [](Rank& rank) {
    for (int round = 0; round < 20; ++round) {
      rank.report.value[0] += sum_is_right(rank.comm, rank.rank, rank.size, round % 2 == 0 ? 10 : 200000);
    }
    rank.keep(weftBarrier(rank.comm, nullptr));
  };
  Job one(options, body), two(options, body);
  ASSERT_TRUE(one.finish() && two.finish());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(one[rank].value[0], 20) << one[rank].message;
    EXPECT_EQ(two[rank].value[0], 20) << two[rank].message;
  }
}

TEST(Memory, B83_TheSameAddressWithNewBytes) {
  Job job({.environment = {{"WEFT_TRANSPORT", "shm"}}}, [](Rank& rank) {
    const size_t bytes = 256 << 10;
    std::vector<std::byte> got(bytes);
    void* wanted = nullptr;
    int same = 0, right = 0;
    for (int round = 0; round < 1000; ++round) {
      const auto value = static_cast<std::byte>(round % 251 + 1);
      const bool shared = round % 2 == 1;
      if (rank.rank == 0) {
        void* memory = nullptr;
        if (shared) {
          weftMemAlloc(&memory, bytes);
        } else {
          memory = ::mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          same += memory == wanted;
          wanted = memory;
        }
        std::memset(memory, static_cast<int>(value), bytes);
        rank.keep(weftSend(memory, bytes, weftUint8, 1, rank.comm, nullptr));
        if (shared) {
          weftMemFree(memory);
        } else {
          ::munmap(memory, bytes);
        }
      } else {
        rank.keep(weftRecv(got.data(), bytes, weftUint8, 0, rank.comm, nullptr));
        right += got.front() == value && got.back() == value && got[bytes / 2] == value;
      }
    }
    rank.report.value[0] = rank.rank == 0 ? same : right;
  });
  ASSERT_TRUE(job.finish());
  expect_success(job[0]);
  expect_success(job[1]);
  EXPECT_GT(job[0].value[0], 100) << "addresses were used again";
  EXPECT_EQ(job[1].value[0], 1000);
}

// The stated bounds, in resident memory of a rank: an idle communicator takes less than a quarter of a megabyte, at the
// rank that relays for the others half of one, and less than three quarters once it has run small collectives.
TEST(Memory, B86_ThirtyTwoIdleCommunicatorsOnEightRanks) {
  constexpr int kCommunicators = 32;
  Job job({.size = 8, .seconds = 50}, [](Rank& rank) {
    weftBarrier(rank.comm, nullptr);
    sum_is_right(rank.comm, rank.rank, rank.size, 1000);
    rank.meet(0);
    const long before = resident_kb(::getpid());
    std::vector<weftComm_t> comms(kCommunicators);
    for (weftComm_t& comm : comms) {
      if (rank.keep(weftCommSplit(rank.comm, 0, rank.rank, &comm, nullptr)) != weftSuccess) return;
    }
    const long idle = resident_kb(::getpid());
    for (weftComm_t comm : comms) rank.report.value[0] += sum_is_right(comm, rank.rank, rank.size, 100);
    const long used = resident_kb(::getpid());
    std::vector<int> in(8 * 16), out(8 * 16);
    rank.keep(weftAlltoAll(in.data(), out.data(), 16, weftInt32, comms[0], nullptr));
    rank.report.value[1] = (idle - before) / kCommunicators;
    rank.report.value[2] = (used - before) / kCommunicators;
    rank.report.value[3] = resident_kb(::getpid()) - used;
    for (weftComm_t comm : comms) weftCommDestroy(comm);
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 8; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], kCommunicators);
    EXPECT_LT(job[rank].value[1], rank == 0 ? 512 : 256) << "kilobytes of an idle communicator";
    EXPECT_LT(job[rank].value[2], 768) << "kilobytes of one that was used";
    EXPECT_LT(job[rank].value[3], 8 * 256) << "kilobytes that the first all-to-all added";
  }
  ::testing::Test::RecordProperty("idle_kb", static_cast<int>(job[1].value[1]));
  ::testing::Test::RecordProperty("used_kb", static_cast<int>(job[1].value[2]));
}

}  // namespace
}  // namespace weft::faults
