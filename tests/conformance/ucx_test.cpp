// What is particular to ucx: how it behaves as a guest in a process, what it is told to use, and strangers.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>

#include "tests/conformance/suite.hpp"
#include "transports/ucx/wire.hpp"

extern char** environ;

namespace weft::testing {
namespace {

constexpr size_t kMiB = 1 << 20;
// The tests of manners run in a new process, which has this in its environment.
constexpr char kFresh[] = "CONFORMANCE_FRESH_PROCESS";

const TransportEntry& ucx_entry() {
  for (const TransportEntry& entry : transports()) {
    if (entry.name == "ucx") return entry;
  }
  std::abort();
}

class Ucx : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv(kFresh) != nullptr) return;  // it must not be loaded yet
    if (const std::string why = unusable(ucx_entry()); !why.empty()) GTEST_SKIP() << why;
  }
};

// Messages of all kinds both ways.
void exchange(Rank& rank, uint32_t sequence) {
  const size_t sizes[] = {0, 1, 100, 5000, 32768, 32769, 300001, 3 * kMiB};
  std::deque<Outgoing> out;
  std::deque<Incoming> in;
  for (uint32_t i = 0; i < std::size(sizes); ++i) {
    for (const uint64_t cuts : {0, 3}) {
      const MessageId id{sequence, 2 * i + (cuts > 0 ? 1 : 0), 1};
      rank.wire().recv(in.emplace_back(id, sizes[i], cuts).request);
      rank.wire().send(out.emplace_back(id, sizes[i], i, cuts).request);
    }
  }
  ASSERT_TRUE(rank.wait([&] {
    return std::all_of(in.begin(), in.end(), [](auto& each) { return each.request.done; }) &&
           std::all_of(out.begin(), out.end(), [](auto& each) { return each.request.done; });
  }));
  for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(in[i].memory.holds(i / 2)) << sizes[i / 2] << " bytes";
}

TEST_F(Ucx, UsesWhatItIsToldTo) {
  for (const char* tls : {"tcp", "posix", "sysv", "posix,cma", "sysv,cma", "posix,cma,tcp"}) {
    for (const Mode mode : {Mode::threads, Mode::processes}) {
      SCOPED_TRACE(tls);
      run_ranks(
          ucx_entry(), mode, 2, [](Rank& rank) { exchange(rank, 1); }, -1,
          [&](Config& config) { config.ucx_tls = tls; });
    }
  }
}

TEST_F(Ucx, SaysThatItHasNoSuchTransport) {
  Config config = *parse_config([](const std::string&) { return std::nullopt; });
  config.ucx_tls = "no-such-thing";
  TransportContext context;
  context.size = 2;
  context.config = &config;
  const auto made = ucx_entry().create(context);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("no-such-thing"), std::string::npos) << made.status().message();
}

TEST_F(Ucx, EveryMessageMayGoByRendezvous) {
  run_ranks(
      ucx_entry(), Mode::threads, 2, [](Rank& rank) { exchange(rank, 1); }, -1,
      [](Config& config) { config.ucx_rndv_bytes = 0; });
}

// One who runs ahead fills the receiver's window, and no more than that.
TEST_F(Ucx, SenderThatRunsAheadIsBounded) {
  constexpr uint32_t kMany = 3000;
  run_ranks(ucx_entry(), Mode::threads, 2, [](Rank& rank) {
    constexpr size_t kBytes = 8192;
    if (rank.rank() == 0) {
      std::deque<Outgoing> out;
      for (uint32_t i = 0; i < kMany; ++i) {
        rank.wire().send(out.emplace_back(MessageId{i, 0, 1}, kBytes, i).request);
        rank.progress();
      }
      const auto done = [&] { return std::count_if(out.begin(), out.end(), [](auto& e) { return e.request.done; }); };
      const auto until = Clock::now() + std::chrono::milliseconds(300);
      while (Clock::now() < until) rank.progress();
      EXPECT_LE(static_cast<size_t>(done()), ucx::kWindow / kBytes + 1);
      rank.board().word[0] = 1;
      ASSERT_TRUE(rank.wait([&] { return done() == kMany; }));
      ASSERT_TRUE(rank.barrier());
    } else {
      Incoming never({kMany, 0, 1}, 8);
      rank.wire().recv(never.request);  // keeps it looking
      ASSERT_TRUE(rank.wait([&] { return rank.board().word[0] == 1; }));
      for (uint32_t i = 0; i < kMany; ++i) {
        Incoming in(MessageId{i, 0, 1}, kBytes);
        rank.wire().recv(in.request);
        ASSERT_TRUE(rank.wait([&] { return in.request.done; }));
        ASSERT_TRUE(in.memory.holds(i)) << "message " << i;
      }
      ASSERT_TRUE(rank.barrier());
      rank.wire().cancel();
    }
  });
}

// One wire is cancelled in the midst of large messages both ways, while its rank goes on with another: nothing is
// written any more. `peer_stops`: the peer makes no progress from some time before.
void cancel_one_of_two(Rank& rank, bool peer_stops) {
  std::atomic<uint64_t>&begun = rank.board().word[0], &over = rank.board().word[1];
  std::deque<Outgoing> out;
  std::deque<Incoming> in;
  if (rank.rank() == 2) {
    rank.wire(0);
    rank.wait([&] { return over == 1; }, true);
    return rank.wire(0).cancel();
  }
  Wire& wire = rank.wire(1 - rank.rank());
  for (uint32_t i = 0; i < 16; ++i) {
    wire.recv(in.emplace_back(MessageId{1, i, 1}, 4 * kMiB).request);
    wire.send(out.emplace_back(MessageId{1, i, 1}, 4 * kMiB, i).request);
  }
  ASSERT_TRUE(rank.wait([&] { return in[0].request.done; }));
  ++begun;
  ASSERT_TRUE(rank.wait([&] { return begun == 2; }));
  if (rank.rank() == 1) {
    rank.wait([&] { return peer_stops || over == 1; }, true);
    while (over == 0) std::this_thread::yield();
    return wire.cancel();
  }
  if (peer_stops) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Incoming never({2, 0, 1}, 8);
  rank.wire(2).recv(never.request);
  wire.cancel();
  for (auto& each : in) each.memory.fill(55);
  const auto until = Clock::now() + std::chrono::milliseconds(200);
  while (Clock::now() < until) rank.progress();
  for (auto& each : in) EXPECT_TRUE(each.memory.holds(55));
  over = 1;
  rank.wire(2).cancel();
}

TEST_F(Ucx, CancelledMemoryIsLeftAlone) {
  for (const char* tls : {"tcp", "posix", "posix,cma"}) {
    for (const bool peer_stops : {false, true}) {
      SCOPED_TRACE(tls);
      run_ranks(
          ucx_entry(), Mode::threads, 3, [&](Rank& rank) { cancel_one_of_two(rank, peer_stops); }, -1,
          [&](Config& config) { config.ucx_tls = tls; });
    }
  }
}

// What the worker's address alone gives: messages in the name of a rank, without its token.
TEST_F(Ucx, StrangersMessagesAreDropped) {
  run_ranks(ucx_entry(), Mode::threads, 2, [](Rank& rank) {
    exchange(rank, 1);
    ASSERT_TRUE(rank.barrier());
    Incoming in({5, 0, 1}, 8), large({5, 1, 1}, kMiB);
    in.memory.fill(99);
    rank.wire().recv(in.request);
    rank.wire().recv(large.request);
    if (rank.rank() == 0) {
      Config config = *parse_config([](const std::string&) { return std::nullopt; });
      TransportContext stranger;
      stranger.size = 2;
      stranger.config = &config;
      const auto worker = ucx::Worker::create(stranger);
      ASSERT_TRUE(worker.ok()) << worker.status().message();
      const Board::Address& address = rank.board().addresses[1];
      uint32_t skip;
      std::memcpy(&skip, address.text, sizeof skip);
      skip += sizeof skip;
      auto endpoint = worker.value()->endpoint(1, std::string(address.text + skip, address.bytes - skip));
      ASSERT_TRUE(endpoint.ok()) << endpoint.status().message();
      std::deque<ucx::Header> headers;
      std::vector<char> data(kMiB);
      std::vector<void*> requests;
      const ucx::Library& ucp = worker.value()->ucp();
      for (const int from : {0, -1, 1, 2, 1000}) {
        for (const size_t bytes : {size_t{8}, kMiB}) {
          for (const size_t header_bytes : {sizeof(ucx::Header), size_t{3}}) {
            headers.push_back({.token = 1, .from = from, .sequence = 5, .index = bytes == 8 ? 0u : 1u, .signature = 1});
            ucp_request_param_t param{};
            param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
            param.flags = bytes == 8 ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
            void* request = ucp.ucp_am_send_nbx((*endpoint)->handle, ucx::kMessage, &headers.back(), header_bytes,
                                                data.data(), bytes, &param);
            if (UCS_PTR_IS_PTR(request)) requests.push_back(request);
          }
        }
      }
      ASSERT_TRUE(rank.wait([&] {
        worker.value()->progress();
        return std::none_of(requests.begin(), requests.end(),
                            [&](void* request) { return ucp.ucp_request_check_status(request) == UCS_INPROGRESS; });
      }));
      for (void* request : requests) ucp.ucp_request_free(request);
      ASSERT_TRUE(rank.barrier());
    } else {
      ASSERT_TRUE(rank.barrier());
      const auto until = Clock::now() + std::chrono::milliseconds(50);
      while (Clock::now() < until) rank.progress();
      EXPECT_TRUE(in.memory.holds(99));
      EXPECT_FALSE(large.request.done);
    }
    EXPECT_FALSE(rank.wire().has_early());
    ASSERT_TRUE(rank.barrier());
    Outgoing out({5, 0, 1}, 8, 7), large_out({5, 1, 1}, kMiB, 8);
    rank.wire().send(out.request);
    rank.wire().send(large_out.request);
    ASSERT_TRUE(
        rank.wait([&] { return in.request.done && large.request.done && out.request.done && large_out.request.done; }));
    EXPECT_TRUE(in.memory.holds(7));
    EXPECT_TRUE(large.memory.holds(8));
  });
}

// ---- Manners

// Runs this test alone in a new process.
void run_fresh(const char* test) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string filter = std::string("--gtest_filter=Ucx.") + test;
    ::setenv(kFresh, "1", 1);
    ::execl("/proc/self/exe", "conformance-tests", filter.c_str(), "--gtest_brief=1", nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

std::vector<void*> signal_handlers() {
  std::vector<void*> handlers;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    handlers.push_back(reinterpret_cast<void*>(action.sa_handler));
  }
  return handlers;
}

std::vector<std::string> environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

// The code of functions that UCX may patch where there are devices that memory is registered with.
std::vector<uint8_t> code() {
  std::vector<uint8_t> bytes;
  if (::access("/sys/class/infiniband", F_OK) == 0 || ::access("/proc/driver/nvidia", F_OK) == 0) return bytes;
  for (const char* name : {"mmap", "munmap", "mremap", "madvise"}) {
    const auto* at = static_cast<const uint8_t*>(::dlsym(RTLD_NEXT, name));
    bytes.insert(bytes.end(), at, at + 16);
  }
  return bytes;
}

TEST_F(Ucx, LeavesNoTraceInTheProcess) {
  if (std::getenv(kFresh) == nullptr) return run_fresh("LeavesNoTraceInTheProcess");
  const auto functions = code();
  const auto handlers = signal_handlers();
  const auto entries = environment();
  char** const array = environ;
  std::fflush(nullptr);
  FILE* output = std::tmpfile();
  const Fd before_out(::dup(1)), before_err(::dup(2));
  ::dup2(::fileno(output), 1);
  ::dup2(::fileno(output), 2);
  for (const char* tls : {"", "tcp", "no-such-thing"}) {
    Config config = *parse_config([](const std::string&) { return std::nullopt; });
    config.ucx_tls = tls;
    TransportContext context;
    context.size = 2;
    context.config = &config;
    EXPECT_EQ(ucx_entry().create(context).ok(), std::string(tls) != "no-such-thing");
  }
  run_ranks(ucx_entry(), Mode::threads, 2, [](Rank& rank) {
    exchange(rank, 1);
    rank.barrier();
    if (rank.rank() == 0) rank.wire().cancel();  // the other one loses its peer
  });
  EXPECT_EQ(signal_handlers(), handlers);
  EXPECT_EQ(code(), functions);
  EXPECT_EQ(environment(), entries);
  EXPECT_EQ(environ, array);
  std::fflush(nullptr);
  ::dup2(before_out.get(), 1);
  ::dup2(before_err.get(), 2);
  const long printed = ::lseek(::fileno(output), 0, SEEK_END);
  std::string text(static_cast<size_t>(printed), '\0');
  EXPECT_EQ(::pread(::fileno(output), text.data(), text.size(), 0), printed);
  EXPECT_EQ(text, "");
  std::fclose(output);
}

// What the user asks of UCX is not overruled.
TEST_F(Ucx, KeepsTheUsersVariables) {
  if (std::getenv(kFresh) == nullptr) return run_fresh("KeepsTheUsersVariables");
  ::setenv("UCX_HANDLE_ERRORS", "bt", 1);
  const auto handlers = signal_handlers();
  ASSERT_EQ(unusable(ucx_entry()), "");
  EXPECT_NE(signal_handlers(), handlers);
  EXPECT_STREQ(std::getenv("UCX_HANDLE_ERRORS"), "bt");
}

// Children that end or become another program leave the parent's transport as it is; Weft says that it cannot be used
// in a child.
TEST_F(Ucx, ChildrenDoNoHarm) {
  if (std::getenv(kFresh) == nullptr) return run_fresh("ChildrenDoNoHarm");
  run_ranks(ucx_entry(), Mode::threads, 2, [](Rank& rank) {
    exchange(rank, 1);
    ASSERT_TRUE(rank.barrier());
    for (int way = 0; way < 4 && rank.rank() == 0; ++way) {
      std::fflush(nullptr);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        ::alarm(20);
        if (way == 0) ::_exit(0);
#ifndef __SANITIZE_ADDRESS__  // it would take the other threads' memory for lost
        if (way == 1) std::exit(0);
#endif
        if (way == 2) ::execl("/bin/true", "true", nullptr);
        const std::string why = unusable(ucx_entry());
        ::_exit(why.find("forked") != std::string::npos ? 0 : 1);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "way " << way << ", status " << status;
    }
    ASSERT_TRUE(rank.barrier());
    exchange(rank, 2);
  });
}

}  // namespace
}  // namespace weft::testing
