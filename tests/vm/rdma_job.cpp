// A rank of a job in a guest with two rails, started by weft-run.
//
//   rdma-job faults COUNT SEED   all-reduces, while rank 0 takes rails away and gives them back; every sum is checked
//   rdma-job one                 the same, and one link goes for good
//   rdma-job last                the same, until the last rail goes: every rank gets the error
//   rdma-job abort               a buffer that is unmapped and mapped again right after weftCommAbort stays as it is,
//                                though a peer was stopped in the midst of writing to it
//   rdma-job remap               buffers that are unmapped and mapped again at the same place between calls
//   rdma-job rails               a large all-reduce; prints the bytes of each rail
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "weft/weft.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

weftComm_t comm = nullptr;
int rank = -1, size = 0;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "rank %d: %s\n", rank, why.c_str());
  std::exit(1);
}

void check(weftResult_t code, const char* what) {
  if (code != weftSuccess) give_up(std::string(what) + ": " + weftGetLastError(comm));
}

void command(const std::string& text) {
  if (std::system(text.c_str()) != 0) give_up("failed: " + text);
}

nlohmann::json dump() {
  std::string text(1 << 20, '\0');
  size_t length = text.size();
  check(weftCommDump(comm, weftDumpJson, text.data(), &length), "weftCommDump");
  return nlohmann::json::parse(text.c_str());
}

// Over all rails of this rank.
int connections() {
  int sum = 0;
  const nlohmann::json all = dump();
  for (const auto& rail : all["rails"]) sum += rail["connections"].get<int>();
  return sum;
}

double percentile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(part * static_cast<double>(values.size())))];
}

double since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Takes one of two rails away and gives it back, again and again, at random times.
class Faults {
 public:
  Faults(int count, unsigned seed) : random_(seed), thread_([this, count] { run(count); }) {}
  ~Faults() { thread_.join(); }
  std::atomic<bool> over{false};
  std::atomic<int> connections{0};  // of all ranks, at the last all-reduce

  // An all-reduce is done.
  void progressed() {
    std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (down_ != Clock::time_point{}) {
      longest_ = std::max(longest_, std::chrono::duration<double, std::milli>(now - std::max(last_, down_)).count());
    }
    last_ = now;
  }
  void report() {
    std::printf("faults %zu (links %d, deletions %d, flaps %d)\n", stalls_.size(), kinds_[0], kinds_[1], kinds_[2]);
    std::printf("longest wait for an all-reduce around a fault: p50 %.1f ms, p99 %.1f ms\n", percentile(stalls_, 0.5),
                percentile(stalls_, 0.99));
    std::printf("until all ranks were connected over the rail after it came back: p50 %.1f ms, p99 %.1f ms\n",
                percentile(returns_, 0.5), percentile(returns_, 0.99));
  }

 private:
  void pause(unsigned most_ms) { std::this_thread::sleep_for(milliseconds(random_() % most_ms)); }

  void run(int count) {
    const int all = 2 * size * (size - 1);  // two rails
    for (const auto begin = Clock::now(); connections != all; std::this_thread::sleep_for(milliseconds(1))) {
      if (since(begin) > 20000) give_up("there are " + std::to_string(connections) + " connections");
    }
    for (int i = 0; i < count; ++i) {
      pause(100);
      {
        std::lock_guard lock(mutex_);
        down_ = last_ = Clock::now();
        longest_ = 0;
      }
      const Clock::time_point back = fault();
      while (connections != all) {
        if (since(back) > 20000)
          give_up("a rail does not come back: " + std::to_string(connections) + " of " + std::to_string(all) +
                  " connections");
        std::this_thread::sleep_for(milliseconds(1));
      }
      returns_.push_back(since(back));
      pause(50);
      std::lock_guard lock(mutex_);
      longest_ =
          std::max(longest_, std::chrono::duration<double, std::milli>(Clock::now() - std::max(last_, down_)).count());
      stalls_.push_back(longest_);
      down_ = {};
    }
    over = true;
  }

  // The moment at which the rail was given back.
  Clock::time_point fault() {
    const std::string number = std::to_string(random_() % 2);
    const unsigned kind = random_() % 3;
    ++kinds_[kind];
    switch (kind) {
      case 0:
        command("ip link set a" + number + " down");
        pause(150);
        command("ip link set a" + number + " up");
        break;
      case 1:
        command("rdma link delete rxe" + number);
        pause(150);
        command("rdma link add rxe" + number + " type rxe netdev a" + number);
        break;
      default:
        for (int i = 0; i < 3; ++i) {
          command("ip link set a" + number + " down");
          pause(15);
          command("ip link set a" + number + " up");
          pause(15);
        }
    }
    return Clock::now();
  }

  std::mt19937 random_;
  std::mutex mutex_;
  Clock::time_point last_{}, down_{};
  double longest_ = 0;
  std::vector<double> stalls_, returns_;
  int kinds_[3] = {};
  std::thread thread_;
};

// All-reduces of changing sizes until rank 0 says that it is enough, by an element behind the others; one more counts
// connections. What every rank puts in
// depends on rank, round and place; the sums are known.
weftResult_t sums(Faults* faults, const std::atomic<bool>* over = nullptr) {
  std::mt19937 random(17);
  std::vector<int32_t> in, out;
  for (int round = 0;; ++round) {
    const size_t count = 1 + random() % 200000;
    in.resize(count + 2);
    out.assign(count + 2, -1);
    for (size_t i = 0; i < count; ++i) in[i] = (rank + 1) * (round % 1000 + static_cast<int>(i % 7919));
    in[count] = over != nullptr && *over ? 1 : 0;
    in[count + 1] = connections();
    const weftResult_t code = weftAllReduce(in.data(), out.data(), count + 2, weftInt32, weftSum, comm, nullptr);
    if (code != weftSuccess) return code;
    const int ranks = size * (size + 1) / 2;
    for (size_t i = 0; i < count; ++i) {
      if (out[i] != ranks * (round % 1000 + static_cast<int>(i % 7919))) {
        give_up("round " + std::to_string(round) + ", element " + std::to_string(i) + " of " + std::to_string(count) +
                " is wrong");
      }
    }
    if (faults != nullptr) {
      faults->connections = out[count + 1];
      faults->progressed();
    }
    if (out[count] != 0) return weftSuccess;
  }
}

// Every rank is connected with every other one from here on.
void meet_all() {
  std::vector<int32_t> out(static_cast<size_t>(size), rank), in(static_cast<size_t>(size));
  check(weftGroupStart(), "weftGroupStart");
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    check(weftSend(&out[static_cast<size_t>(peer)], 1, weftInt32, peer, comm, nullptr), "weftSend");
    check(weftRecv(&in[static_cast<size_t>(peer)], 1, weftInt32, peer, comm, nullptr), "weftRecv");
  }
  check(weftGroupEnd(), "weftGroupEnd");
}

void faults(int count, unsigned seed) {
  meet_all();
  if (rank == 0) {
    Faults faults(count, seed);
    check(sums(&faults, &faults.over), "weftAllReduce");
    faults.report();
  } else {
    check(sums(nullptr), "weftAllReduce");
  }
}

void one() {
  meet_all();
  std::atomic<bool> over{false};
  std::thread thief;
  if (rank == 0) {
    thief = std::thread([&over] {
      std::this_thread::sleep_for(milliseconds(300));
      command("ip link set a1 down");
      std::this_thread::sleep_for(milliseconds(1500));
      over = true;
    });
  }
  check(sums(nullptr, &over), "weftAllReduce");
  if (thief.joinable()) thief.join();
  std::printf("rank %d: right, with %d connections\n", rank, connections());
}

void last() {
  std::thread thief;
  if (rank == 0) {
    thief = std::thread([] {
      std::this_thread::sleep_for(milliseconds(300));
      command("ip link set a0 down");
      std::this_thread::sleep_for(milliseconds(100));
      command("ip link set a1 down");
    });
  }
  const auto begin = Clock::now();
  const weftResult_t code = sums(nullptr);
  if (thief.joinable()) thief.join();
  if (code != weftRemoteError && code != weftSystemError) give_up("no error of a lost rail");
  std::printf("rank %d: after %.0f ms: %s\n", rank, since(begin), weftGetLastError(comm));
}

std::byte* map(size_t bytes, void* at) {
  void* base =
      ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  if (base == MAP_FAILED) give_up("mmap");
  return static_cast<std::byte*>(base);
}

void abort_and_reuse() {
  constexpr size_t kBytes = 32 << 20;
  std::vector<int32_t> pids(static_cast<size_t>(size)), mine{static_cast<int32_t>(::getpid())};
  check(weftAllGather(mine.data(), pids.data(), 1, weftInt32, comm, nullptr), "weftAllGather");
  std::byte* buffer = map(kBytes, nullptr);
  std::memset(buffer, rank + 1, kBytes);
  weftStream_t stream;
  check(weftStreamCreate(&stream), "weftStreamCreate");
  weftStats_t before{}, now{};
  before.size = now.size = sizeof(weftStats_t);
  check(weftCommGetStats(comm, &before), "weftCommGetStats");
  check(weftAllReduce(buffer, buffer, kBytes / 4, weftInt32, weftSum, comm, stream), "weftAllReduce");
  if (rank != 0) {
    (void)weftStreamSynchronize(stream);
    return;
  }
  const auto begin = Clock::now();
  do {
    check(weftCommGetStats(comm, &now), "weftCommGetStats");
    if (since(begin) > 20000) give_up("nothing moves");
  } while (now.bytesReceived - before.bytesReceived < kBytes / 8);
  for (int other = 1; other < size; ++other) ::kill(pids[static_cast<size_t>(other)], SIGSTOP);
  check(weftCommAbort(comm), "weftCommAbort");
  const weftResult_t code = weftStreamSynchronize(stream);
  const double took = since(begin);
  ::munmap(buffer, kBytes);
  if (map(kBytes, buffer) != buffer) give_up("mapped elsewhere");
  std::memset(buffer, 0x5a, kBytes);
  for (int other = 1; other < size; ++other) ::kill(pids[static_cast<size_t>(other)], SIGCONT);
  std::this_thread::sleep_for(milliseconds(1500));
  for (size_t i = 0; i < kBytes; ++i) {
    if (buffer[i] != std::byte{0x5a}) give_up("byte " + std::to_string(i) + " was written after weftCommAbort");
  }
  if (code != weftAborted) give_up("the operation did not end with weftAborted");
  std::printf("aborted after %.0f ms, and nothing was written\n", took);
}

void remap() {
  constexpr size_t kBytes = 256 << 10;
  std::byte* in = map(kBytes, nullptr);
  std::byte* out = map(kBytes, nullptr);
  for (int round = 0; round < 200; ++round) {
    for (size_t i = 0; i < kBytes / 4; ++i) reinterpret_cast<int32_t*>(in)[i] = rank + round + static_cast<int>(i);
    check(weftAllReduce(in, out, kBytes / 4, weftInt32, weftSum, comm, nullptr), "weftAllReduce");
    for (size_t i = 0; i < kBytes / 4; ++i) {
      const int expected = size * (size - 1) / 2 + size * (round + static_cast<int>(i));
      if (reinterpret_cast<int32_t*>(out)[i] != expected) give_up("round " + std::to_string(round) + " is wrong");
    }
    for (std::byte* buffer : {in, out}) {
      ::munmap(buffer, kBytes);
      map(kBytes, buffer);
    }
  }
  std::printf("rank %d: right\n", rank);
}

void rails() {
  std::vector<int32_t> data(8 << 20, rank);
  for (int round = 0; round < 3; ++round) {
    check(weftAllReduce(data.data(), data.data(), data.size(), weftInt32, weftSum, comm, nullptr), "weftAllReduce");
  }
  if (rank == 0) std::printf("%s\n", dump()["rails"].dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (weftCommInitEnv(&comm, nullptr) != weftSuccess) give_up(weftGetLastError(nullptr));
  check(weftCommUserRank(comm, &rank), "weftCommUserRank");
  check(weftCommCount(comm, &size), "weftCommCount");
  if (what == "faults" && argc == 4) {
    faults(std::atoi(argv[2]), static_cast<unsigned>(std::atoi(argv[3])));
  } else if (what == "one") {
    one();
  } else if (what == "last") {
    last();
  } else if (what == "abort") {
    abort_and_reuse();
  } else if (what == "remap") {
    remap();
  } else if (what == "rails") {
    rails();
  } else {
    give_up("usage: rdma-job faults COUNT SEED | one | last | abort | remap | rails");
  }
  std::fflush(stdout);
  weftCommDestroy(comm);
  return 0;
}
