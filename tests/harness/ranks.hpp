// Ranks for tests of the public interface: threads of this process (weftCommInitAll) or forked processes
// (weftCommInitEnv), under a watchdog; and buffers between guard pages.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "full.hpp"
#include "weft/weft.h"

namespace weft::testing {

// Variables of the environment, for as long as this lives; the configuration is read anew at both ends. WEFT_TIMEOUT
// and WEFT_INIT_TIMEOUT are short unless given.
using Variables = std::vector<std::pair<std::string, std::string>>;
class Environment {
 public:
  explicit Environment(const Variables& variables);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void set(const std::string& name, const std::string& value);
  std::vector<std::pair<std::string, std::string>> before_;
  std::vector<std::string> unset_;
};

using RankBody = std::function<void(int rank, weftComm_t comm)>;
// Runs body at every rank, with gtest's assertions inside, and destroys the communicators. A hang ends the program.
void run_threads(int ranks, const RankBody& body, const Variables& variables = {});
// What fails in a child is reported here, with its rank. Ranks in `killed` are expected to die by a signal.
void run_processes(int ranks, const RankBody& body, const Variables& variables = {}, const std::set<int>& killed = {});
// The same where the body makes its own communicator: the variables of a launcher are set.
void run_launched(int ranks, const std::function<void(int rank)>& body, const Variables& variables = {},
                  const std::set<int>& killed = {});

// Threads or processes, by a flag: most tests run as both.
enum class Mode { threads, processes };
void run_ranks(Mode mode, int ranks, const RankBody& body, const Variables& variables = {});

// The longest that one of the above may take, in seconds; longer in a sanitizer build.
int patience();

// One random seed for this run of the tests: WEFT_TEST_SEED, or one that is printed.
uint64_t test_seed();

// `bytes` bytes that end `shift` bytes before an inaccessible page (or begin that much after one), in memory that is
// otherwise painted.
class GuardedBuffer {
 public:
  enum class Against { begin, end };
  explicit GuardedBuffer(size_t bytes, size_t shift = 0, Against against = Against::end);
  ~GuardedBuffer();
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Whether no byte around the data was written.
  ::testing::AssertionResult whole() const;

  static constexpr std::byte kPaint{0xc3};

 private:
  std::byte* map_ = nullptr;
  size_t mapped_ = 0, bytes_ = 0;
  std::byte* data_ = nullptr;
};

// "" for weftSuccess, else the code and the last error.
std::string why(weftResult_t result, weftComm_t comm);

#define WEFT_EXPECT_OK(call, comm) EXPECT_EQ(::weft::testing::why((call), (comm)), "") << #call
#define WEFT_ASSERT_OK(call, comm) ASSERT_EQ(::weft::testing::why((call), (comm)), "") << #call

}  // namespace weft::testing
