// One host, and things that pretend to be several: containers, small limits, few cores (B23 to B36).
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/faults/job.hpp"

namespace weft::faults {
namespace {

// For a child process to call: true when it is in namespaces of its own.
bool unshared(int flags) { return ::unshare(flags) == 0; }
bool permitted(int flags) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(unshared(flags) ? 0 : 1);
  int status = 1;
  ::waitpid(pid, &status, 0);
  return status == 0;
}
#define NEEDS_UNSHARE(flags) \
  if (!permitted(flags)) GTEST_SKIP() << "namespaces of its own are not permitted here"

// The rest of this process's life is that of a child with process number 1 in a namespace.
void enter_pid_namespace() {
  if (!unshared(CLONE_NEWPID)) ::_exit(99);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    return;
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 98);
}

void deny(int system_call) {
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(system_call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, const_cast<sock_filter*>(filter)};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    ::_exit(99);
  }
}

// ---- containers

TEST(Containers, B26_ReadingAPeersMemoryIsForbidden) {
  const std::string log = fmt::format("{}weft-b26-{}", ::testing::TempDir(), ::getpid());
  {
    Job job({.environment = {{"WEFT_TRANSPORT", "shm"}, {"WEFT_DEBUG", "info"}, {"WEFT_DEBUG_FILE", log + ".%r"}},
             .prepare = [](int) { deny(SYS_process_vm_readv); }},
            exercise);
    ASSERT_TRUE(job.finish());
    expect_exercised(job, 2);
  }
  for (const char* rank : {".0", ".1"}) {
    const std::string text = slurp(log + rank);
    const size_t first = text.find("cannot be read in place");
    EXPECT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find("cannot be read in place", first + 1), std::string::npos) << "said once";
    ::unlink((log + rank).c_str());
  }
}

TEST(Containers, B26_ForbiddenAtOneRankOnly) {
  Job job({.size = 3,
           .environment = {{"WEFT_TRANSPORT", "shm"}},
           .prepare =
               [](int rank) {
                 if (rank == 1) deny(SYS_process_vm_readv);
               }},
          exercise);
  ASSERT_TRUE(job.finish());
  expect_exercised(job, 3);
}

TEST(Containers, B26_ProcessNamespacesOfTheirOwn) {
  NEEDS_UNSHARE(CLONE_NEWPID);
  // All have process number 1 and the same host name.
  Job job({.size = 3, .prepare = [](int) { enter_pid_namespace(); }}, exercise);
  ASSERT_TRUE(job.finish());
  expect_exercised(job, 3);
}

TEST(Containers, B26_DeathIsNoticedAcrossProcessNamespaces) {
  NEEDS_UNSHARE(CLONE_NEWPID);
  Job job({.size = 3,
           .prepare =
               [](int rank) {
                 if (rank != 0) enter_pid_namespace();
               }},
          [](Rank& rank) {
            weftBarrier(rank.comm, nullptr);
            weftResult_t code;
            all_reduce_is_right(rank.comm, rank.rank, rank.size, 1 << 20, &code);
            if (rank.rank == 2) ::_exit(0);
            rank.begin();
            all_reduce_is_right(rank.comm, rank.rank, rank.size, 1 << 20, &code);
            rank.keep(code);
          });
  ASSERT_TRUE(job.finish());
  for (const int rank : {0, 1}) expect_error(job[rank], weftRemoteError, {"rank 2", "operation 2"});
}

class SharedMemory : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Shm, SharedMemory, ::testing::Values("size=1m", "ro", "missing"),
                         [](const auto& info) { return std::string(info.param).substr(0, 4); });

// /dev/shm of a megabyte, read-only, or not there: never a SIGBUS. (Weft does not use it.)
TEST_P(SharedMemory, B27_B28_WhateverDevShmIsLike) {
  NEEDS_UNSHARE(CLONE_NEWNS);
  const std::string how = GetParam();
  Job job({.prepare =
               [how](int) {
                 bool good = unshared(CLONE_NEWNS) && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
                 if (how == "missing") {
                   good = good && ::mount("tmpfs", "/dev", "tmpfs", 0, "size=1m") == 0;
                 } else {
                   good = good && ::mount("tmpfs", "/dev/shm", "tmpfs", how == "ro" ? MS_RDONLY : 0,
                                          how == "ro" ? nullptr : how.c_str()) == 0;
                 }
                 if (!good) ::_exit(99);
               }},
          [how](Rank& rank) {
            exercise(rank);
            rank.report.value[1] = sum_is_right(rank.comm, rank.rank, rank.size, how == "ro" ? 1 << 20 : 16 << 20);
            void* shared = nullptr;
            rank.report.value[2] = weftMemAlloc(&shared, 8 << 20);
            if (shared != nullptr) std::memset(shared, 1, 8 << 20);
            weftMemFree(shared);
          });
  ASSERT_TRUE(job.finish());
  expect_exercised(job, 2);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(job[rank].value[1]);
    EXPECT_EQ(job[rank].value[2], weftSuccess);
  }
}

TEST(Containers, B27_NoRoomForSharedMemoryIsAnError) {
  Job job({.size = 1}, [](Rank& rank) {
    const rlimit limit{1 << 20, 1 << 20};
    ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    void* shared = nullptr;
    rank.keep(weftMemAlloc(&shared, 64 << 20));
    rank.report.value[0] = shared == nullptr;
  });
  ASSERT_TRUE(job.finish());
  expect_error(job[0], weftSystemError, {"67108864 bytes"});
  EXPECT_TRUE(job[0].value[0]);
}

// ---- cores

int last_core() {
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof set, &set);
  int core = CPU_SETSIZE - 1;
  while (core > 0 && !CPU_ISSET(core, &set)) --core;
  return core;
}
void stay_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

TEST(Cores, B35_HelperThreadsStayInsideTheMask) {
  Job job({.prepare = [](int) { stay_on(last_core()); }}, [](Rank& rank) {
    weftStream_t stream = nullptr;
    weftStreamCreate(&stream);
    std::vector<float> data(1 << 18);
    weftAllReduce(data.data(), data.data(), data.size(), weftFloat32, weftSum, rank.comm, stream);
    std::string list;
    if (FILE* pipe = ::popen("grep -h Cpus_allowed_list /proc/$PPID/task/*/status | sort -u | cut -f2", "r")) {
      char text[64] = {};
      while (std::fgets(text, sizeof text, pipe) != nullptr) list += text;
      ::pclose(pipe);
    }
    std::strncpy(rank.report.message, list.c_str(), 100);
    rank.keep(weftStreamSynchronize(stream));
    weftStreamDestroy(stream);
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(job[rank].code, weftSuccess);
    EXPECT_EQ(job[rank].message, fmt::format("{}\n", last_core()));
  }
}

// A container's quota of processor time counts as so many cores.
TEST(Cores, B35_AQuotaIsCounted) {
  NEEDS_UNSHARE(CLONE_NEWNS);
  const std::string log = fmt::format("{}weft-b35-{}", ::testing::TempDir(), ::getpid());
  Job job({.size = 3,
           .environment = {{"WEFT_DEBUG", "info"}, {"WEFT_DEBUG_FILE", log}},
           .prepare =
               [](int) {
                 if (!unshared(CLONE_NEWNS) || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
                     ::mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "size=1m") != 0) {
                   ::_exit(99);
                 }
                 std::ofstream("/sys/fs/cgroup/cpu.max") << "100000 100000\n";
               }},
          exercise);
  ASSERT_TRUE(job.finish());
  expect_exercised(job, 3);
  EXPECT_NE(slurp(log).find("3 ranks share 1 core of this machine"), std::string::npos) << slurp(log);
  ::unlink(log.c_str());
}

TEST(Cores, B36_EightRanksOnOneCore) {
  constexpr int kRounds = 1000;
  for (const char* transport : {"shm", "tcp"}) {
    SCOPED_TRACE(transport);
    Job job({.size = 8,
             .environment = {{"WEFT_TRANSPORT", transport}, {"WEFT_TIMEOUT", "20"}},
             .prepare = [](int) { stay_on(last_core()); },
             .seconds = 40},
            [](Rank& rank) {
              double in = 1, out = 0;
              for (int round = 0; round < kRounds; ++round) {
                if (rank.keep(weftAllReduce(&in, &out, 1, weftFloat64, weftSum, rank.comm, nullptr)) != weftSuccess) {
                  return;
                }
                rank.report.value[0] += out == 8;
              }
            });
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 8; ++rank) {
      expect_success(job[rank]);
      EXPECT_EQ(job[rank].value[0], kRounds);
    }
  }
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

// Three seconds for a late peer, blocked in a call or behind a stream.
TEST(Cores, B36_AnIdleWaitBurnsNoCore) {
  struct Case {
    const char* transport;
    bool on_stream;
    size_t count;
  };
  for (const auto& [transport, on_stream, count] :
       {Case{"shm", false, 8}, {"shm", true, 1 << 20}, {"tcp", false, 1 << 20}, {"tcp", true, 8}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", transport, on_stream ? "stream" : "blocking", count));
    Job job({.environment = {{"WEFT_TRANSPORT", transport}, {"WEFT_TIMEOUT", "20"}}},
            [on_stream = on_stream, count = count](Rank& rank) {
              weftStream_t stream = nullptr;
              if (on_stream) weftStreamCreate(&stream);
              std::vector<float> data(count);
              const auto reduce = [&] {
                rank.keep(weftAllReduce(data.data(), data.data(), count, weftFloat32, weftMax, rank.comm, stream));
                if (stream != nullptr) rank.keep(weftStreamSynchronize(stream));
              };
              reduce();
              if (rank.rank == 1) sleep_ms(3000);
              const double before = cpu_seconds();
              reduce();
              rank.report.value[0] = static_cast<int64_t>(1000 * (cpu_seconds() - before));
              if (stream != nullptr) weftStreamDestroy(stream);
            });
    ASSERT_TRUE(job.finish());
    expect_success(job[0]);
    EXPECT_LT(job[0].value[0], 300) << "milliseconds of processor time in 3000 of waiting";
  }
}

}  // namespace
}  // namespace weft::faults
