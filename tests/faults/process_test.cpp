// Threads, forks, signals and standard output (B75 to B77, B81).
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <set>
#include <thread>

#include "tests/faults/job.hpp"

namespace weft::faults {
namespace {

class OnTransport : public ::testing::TestWithParam<const char*> {
 protected:
  JobOptions on_transport(int size = 2) const {
    return {.size = size, .environment = {{"WEFT_TRANSPORT", GetParam()}}};
  }
};
class Threads : public OnTransport {};
class Fork : public OnTransport {};
class Signals : public OnTransport {};
#define WEFT_ON(Suite) \
  INSTANTIATE_TEST_SUITE_P(On, Suite, ::testing::Values("shm", "tcp"), [](const auto& info) { return info.param; })
WEFT_ON(Threads);
WEFT_ON(Fork);
WEFT_ON(Signals);

// Calls of two threads on one communicator are serialised; where all are alike, their order does not matter.
TEST_P(Threads, B75_OneCommunicatorFromTwoThreads) {
  for (const size_t count : {size_t{8}, size_t{300000}}) {
    Job job(on_transport(), [count](Rank& rank) {
      const int rounds = count < 100 ? 300 : 15;
      std::atomic<int> right{0};
      const auto loop = [&] {
        for (int round = 0; round < rounds; ++round) right += sum_is_right(rank.comm, rank.rank, rank.size, count);
      };
      std::thread one(loop), two(loop);
      one.join();
      two.join();
      rank.report.value[0] = right == 2 * rounds;
      rank.keep(weftBarrier(rank.comm, nullptr));
    });
    ASSERT_TRUE(job.finish());
    for (int rank = 0; rank < 2; ++rank) {
      expect_success(job[rank]);
      EXPECT_TRUE(job[rank].value[0]);
    }
  }
}

// Whether a call blocks is a rank's own affair: one enqueues what the other waits for, and goes on to a small call.
TEST_P(Threads, SmallCallsDoNotOvertakeWhatIsQueued) {
  Job job(on_transport(), [](Rank& rank) {
    weftStream_t stream = nullptr;
    if (rank.rank == 0) weftStreamCreate(&stream);
    int right = 0;
    for (int round = 0; round < 200; ++round) {
      float first[16], second[8];
      std::fill(std::begin(first), std::end(first), 1.f);
      std::fill(std::begin(second), std::end(second), 2.f);
      weftAllReduce(first, first, 16, weftFloat32, weftSum, rank.comm, stream);
      weftAllReduce(second, second, 8, weftFloat32, weftSum, rank.comm, nullptr);
      if (stream != nullptr) weftStreamSynchronize(stream);
      right += first[15] == 2 && second[7] == 4;
    }
    rank.report.value[0] = right;
    rank.keep(weftBarrier(rank.comm, nullptr));
    if (stream != nullptr) weftStreamDestroy(stream);
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], 200);
  }
}

// Two communicators from two threads, issued in opposite orders on the two ranks (B74 in small).
TEST_P(Threads, B74_TwoCommunicatorsInOppositeOrders) {
  Job job(on_transport(), [](Rank& rank) {
    weftComm_t other = nullptr;
    rank.keep(weftCommSplit(rank.comm, 0, 0, &other, nullptr));
    std::atomic<int> right{0};
    for (int round = 0; round < 100; ++round) {
      const size_t count = round % 2 == 0 ? 256 : 500000;
      std::thread mine([&] { right += sum_is_right(rank.comm, rank.rank, rank.size, count); });
      std::thread its([&] { right += sum_is_right(other, rank.rank, rank.size, count); });
      mine.join();
      its.join();
    }
    rank.report.value[0] = right;
    weftCommDestroy(other);
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(job[rank].value[0], 200) << job[rank].message;
}

TEST_P(Threads, B76_RegisteringWhileAnotherThreadCommunicates) {
  Job job(on_transport(), [](Rank& rank) {
    std::atomic<bool> stop{false};
    std::thread registers([&] {
      std::vector<char> memory(1 << 16);
      while (!stop) {
        void* handle = nullptr;
        void* shared = nullptr;
        if (weftCommRegister(rank.comm, memory.data(), memory.size(), &handle) == weftSuccess) {
          weftCommDeregister(rank.comm, handle);
        }
        if (weftMemAlloc(&shared, 1 << 16) == weftSuccess) weftMemFree(shared);
      }
    });
    std::vector<float> in(1 << 14, static_cast<float>(rank.rank)), out(2 << 14);
    for (int round = 0; round < 200; ++round) {
      rank.keep(weftAllGather(in.data(), out.data(), in.size(), weftFloat32, rank.comm, nullptr));
      rank.report.value[0] += out[0] == 0 && out.back() == 1;
    }
    stop = true;
    registers.join();
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], 200);
  }
}

// ---- fork

int run_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A child's calls are refused, and neither they, nor its destroying what it inherited, nor its end do the parent harm.
TEST_P(Fork, B77_AChildMayNotUseItsParentsCommunicator) {
  Job job(on_transport(), [](Rank& rank) {
    weftStream_t stream = nullptr;
    weftStreamCreate(&stream);
    std::vector<float> data(1 << 18, 1);
    weftAllReduce(data.data(), data.data(), data.size(), weftFloat32, weftSum, rank.comm, stream);
    weftStreamSynchronize(stream);
    weftBarrier(rank.comm, nullptr);
    if (rank.rank == 0) {
      rank.report.value[0] = run_child([&] {
        ::alarm(10);
        float one = 1;
        weftComm_t child = nullptr;
        if (weftAllReduce(&one, &one, 1, weftFloat32, weftSum, rank.comm, nullptr) != weftInvalidUsage) return 1;
        if (std::strstr(weftGetLastError(rank.comm), "fork") == nullptr) return 2;
        if (weftCommSplit(rank.comm, 0, 0, &child, nullptr) != weftInvalidUsage) return 3;
        if (weftAllReduce(&one, &one, 1, weftFloat32, weftSum, rank.comm, stream) != weftInvalidUsage) return 4;
        if (weftStreamSynchronize(stream) != weftInvalidUsage) return 5;
        if (weftCommAbort(rank.comm) != weftInvalidUsage) return 6;
        if (weftStreamDestroy(stream) != weftSuccess || weftCommDestroy(rank.comm) != weftSuccess) return 7;
        // What it makes itself is its own.
        set_environment({{"WEFT_RANK", ""}, {"WEFT_WORLD_SIZE", ""}, {"WEFT_ROOT", ""}});
        weftUniqueId id;
        weftStream_t own = nullptr;
        if (weftGetUniqueId(&id) != weftSuccess || weftCommInitRank(&child, 1, id, 0) != weftSuccess) return 8;
        if (weftStreamCreate(&own) != weftSuccess) return 9;
        if (weftAllReduce(&one, &one, 1, weftFloat32, weftSum, child, own) != weftSuccess) return 10;
        if (weftStreamSynchronize(own) != weftSuccess || weftStreamDestroy(own) != weftSuccess) return 11;
        return weftCommDestroy(child) == weftSuccess ? 0 : 12;
      });
    }
    rank.report.value[1] = sum_is_right(rank.comm, rank.rank, rank.size, 100);
    rank.report.value[2] = sum_is_right(rank.comm, rank.rank, rank.size, 1 << 20);
    // A rank that leaves in order, although a child lives on that inherited its connections.
    if (rank.rank == 0 && ::fork() == 0) {
      sleep_ms(3000);
      ::_exit(0);
    }
    weftStreamDestroy(stream);
    rank.begin();
    rank.leave();
    rank.report.value[3] = static_cast<int64_t>(1000 * rank.elapsed());
    rank.report.code = 0;
  });
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(job[0].value[0], 0) << "where the child went wrong";
  for (int rank = 0; rank < 2; ++rank) {
    expect_success(job[rank]);
    EXPECT_TRUE(job[rank].value[1] && job[rank].value[2]) << rank;
    EXPECT_LT(job[rank].value[3], 2000);
  }
}

// The death of a rank is noticed although a child of it holds copies of its connections.
TEST_P(Fork, B77_DeathOfARankWithAChildThatLivesOn) {
  Job job(on_transport(3), [](Rank& rank) {
    weftBarrier(rank.comm, nullptr);
    weftResult_t code;
    all_reduce_is_right(rank.comm, rank.rank, rank.size, 1 << 18, &code);
    if (rank.rank == 2) {
      if (::fork() == 0) {
        sleep_ms(8000);
        ::_exit(0);
      }
      ::kill(::getpid(), SIGKILL);
    }
    rank.begin();
    all_reduce_is_right(rank.comm, rank.rank, rank.size, 1 << 18, &code);
    rank.keep(code);
  });
  ASSERT_TRUE(job.finish());
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(job[rank].code == weftRemoteError || job[rank].code == weftTimeout) << job[rank].message;
    expect_error(job[rank], static_cast<weftResult_t>(job[rank].code), {"rank 2"});
  }
}

TEST_P(Fork, B77_NothingIsInheritedAcrossExec) {
  Job job(on_transport(), [](Rank& rank) {
    weftResult_t code;
    weftStream_t stream = nullptr;
    void* memory = nullptr;
    weftStreamCreate(&stream);
    weftMemAlloc(&memory, 1 << 20);
    weftAllReduce(memory, memory, 1 << 18, weftFloat32, weftSum, rank.comm, stream);
    weftStreamSynchronize(stream);
    all_reduce_is_right(rank.comm, rank.rank, rank.size, 1 << 18, &code);
    // Descriptors that a program would inherit: those without close-on-exec that were not there before us (0 to 2, and
    // what the test's own starter left open).
    for (int fd = 3; fd < 256; ++fd) {
      const int flags = ::fcntl(fd, F_GETFD);
      char target[256] = {};
      if (flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
      if (::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), target, sizeof target - 1) < 0) continue;
      const std::string name(target);
      if (name.starts_with("socket:") || name.starts_with("anon_inode:") || name.starts_with("/memfd:weft")) {
        std::strncat(rank.report.message, name.c_str(), 255);
        ++rank.report.value[0];
      }
    }
    weftStreamDestroy(stream);
    weftMemFree(memory);
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(job[rank].value[0], 0) << job[rank].message;
}

// ---- signals

// A handler every millisecond, without SA_RESTART: every system call may come back with EINTR.
void begin_storm() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGALRM, &action, nullptr);
  const itimerval every{{0, 1000}, {0, 1000}};
  ::setitimer(ITIMER_REAL, &every, nullptr);
}

TEST_P(Signals, EintrStormsDuringEverything) {
  JobOptions options = on_transport(3);
  options.join = false;
  Job job(options, [](Rank& rank) {
    begin_storm();
    if (rank.join() != weftSuccess) return;
    int right = 0;
    weftStream_t stream = nullptr;
    weftStreamCreate(&stream);
    for (int round = 0; round < 30; ++round) {
      if (round % 10 == 0 && rank.rank == 1) sleep_ms(100);  // the others come to sleep
      right += sum_is_right(rank.comm, rank.rank, rank.size, 10);
      right += sum_is_right(rank.comm, rank.rank, rank.size, 300000);
      std::vector<int> data(50000, 1);
      weftAllReduce(data.data(), data.data(), data.size(), weftInt32, weftSum, rank.comm, stream);
      weftStreamSynchronize(stream);
      right += data.back() == rank.size;
    }
    weftComm_t child = nullptr;
    rank.keep(weftCommSplit(rank.comm, 0, 0, &child, nullptr));
    right += sum_is_right(child, rank.rank, rank.size, 10);
    weftCommDestroy(child);
    weftStreamDestroy(stream);
    rank.report.value[0] = right;
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 3; ++rank) {
    expect_success(job[rank]);
    EXPECT_EQ(job[rank].value[0], 91);
  }
}

// The library leaves the process's signals alone.
TEST_P(Signals, DispositionsAndMasksAreUntouched) {
  // As this process inherited them: a shell starts background jobs with some ignored.
  std::array<struct sigaction, 32> before{};
  for (int number = 1; number < 32; ++number) ::sigaction(number, nullptr, &before[static_cast<size_t>(number)]);
  Job job(on_transport(), [before](Rank& rank) {
    weftResult_t code;
    all_reduce_is_right(rank.comm, rank.rank, rank.size, 1 << 18, &code);
    for (int number = 1; number < 32; ++number) {
      struct sigaction action {};
      if (::sigaction(number, nullptr, &action) == 0 &&
          action.sa_handler != before[static_cast<size_t>(number)].sa_handler) {
        rank.report.value[0] = number;
      }
    }
    sigset_t mask;
    ::sigprocmask(SIG_BLOCK, nullptr, &mask);
    rank.report.value[1] = ::sigisemptyset(&mask);
  });
  ASSERT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(job[rank].value[0], 0);
    EXPECT_EQ(job[rank].value[1], 1);
  }
}

// ---- standard output

TEST(Output, B81_StandardOutputIsTheProgramsAlone) {
  for (const char* level : {"none", "debug"}) {
    for (const bool to_file : {false, true}) {
      SCOPED_TRACE(fmt::format("WEFT_DEBUG={} {}", level, to_file ? "to a file" : ""));
      const std::string base = fmt::format("{}weft-b81-{}", ::testing::TempDir(), ::getpid());
      JobOptions options{.environment = {{"WEFT_DEBUG", level}, {"WEFT_DEBUG_FILE", to_file ? base + ".log" : ""}}};
      options.prepare = [&](int) {
        ::dup2(::open((base + ".out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDOUT_FILENO);
        ::dup2(::open((base + ".err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
      };
      {
        Job job(options, [](Rank& rank) {
          rank.report.value[0] = sum_is_right(rank.comm, rank.rank, rank.size, 100000);
          const char line[] = "{\"loss\": 1}\n";
          rank.report.value[1] = ::write(STDOUT_FILENO, line, sizeof line - 1);
        });
        ASSERT_TRUE(job.finish());
        EXPECT_TRUE(job[0].value[0] && job[1].value[0]);
      }
      EXPECT_EQ(slurp(base + ".out"), "{\"loss\": 1}\n{\"loss\": 1}\n");
      const bool silent = std::string(level) == "none";
      EXPECT_EQ(slurp(base + ".err").empty(), silent || to_file);
      EXPECT_EQ(slurp(base + ".log").empty(), silent || !to_file);
      for (const char* suffix : {".out", ".err", ".log"}) ::unlink((base + suffix).c_str());
    }
  }
}

}  // namespace
}  // namespace weft::faults
