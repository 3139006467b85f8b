#include "tests/conformance/ranks.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <thread>

namespace weft::testing {
namespace {

Secret secret() {
  Secret secret{};
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(17 * i + 3);
  return secret;
}

Config standard_config() {
  Result<Config> config = parse_config([](const std::string&) { return std::nullopt; });
  if (!config.ok()) ADD_FAILURE() << config.status().message();
  config->socket_ifname = "=lo";
  return *config;
}

}  // namespace

Rank::Rank(const TransportEntry& entry, const Config& config, int rank, int size, Board& board, Mode mode)
    : config_(config), mode_(mode), board_(board), wires_(static_cast<size_t>(size)) {
  Result<Poller> poller = Poller::create();
  if (!poller.ok()) {
    ADD_FAILURE() << poller.status().message();
    return;
  }
  poller_ = std::make_unique<Poller>(std::move(*poller));
  context_.rank = rank;
  context_.size = size;
  // Another group in every test: what a test leaves behind is nobody's.
  context_.group = board.word[7];
  context_.secret = secret();
  context_.config = &config_;
  context_.poller = poller_.get();
  Result<std::unique_ptr<Transport>> transport = entry.create(context_);
  if (!transport.ok()) {
    ADD_FAILURE() << transport.status().message();
    return;
  }
  transport_ = std::move(*transport);
  const std::string address = transport_->address();
  Board::Address& mine = board.addresses[rank];
  if (address.size() > sizeof mine.text) {
    ADD_FAILURE() << "an address of " << address.size() << " bytes";
    return;
  }
  std::memcpy(mine.text, address.data(), address.size());
  mine.bytes = static_cast<uint32_t>(address.size());
}

Rank::~Rank() {
  for (auto& wire : wires_) {
    if (wire) wire->close();
  }
  wires_.clear();
}

Wire& Rank::wire(int peer) {
  auto& wire = wires_[static_cast<size_t>(peer)];
  if (!wire) {
    const Board::Address& address = board_.addresses[peer];
    wire = transport_->connect(peer, std::string(address.text, address.bytes),
                               Deadline::after(std::chrono::seconds(kPatience)));
  }
  return *wire;
}

bool Rank::progress() {
  bool moved = transport_->progress();
  for (auto& wire : wires_) {
    if (wire) moved |= wire->progress();
  }
  return moved;
}

bool Rank::wait(const std::function<bool()>& done, bool errors_allowed) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(kPatience));
  auto tick_at = Clock::now();
  for (int idle = 0; !done();) {
    if (progress()) {
      idle = 0;
      continue;
    }
    for (auto& wire : wires_) {
      if (!errors_allowed && wire && wire->error().kind != WireError::Kind::none) {
        ADD_FAILURE() << "rank " << rank() << ": wire to " << wire->peer() << ": " << wire->error().text;
        return false;
      }
    }
    if (++idle % 64 != 0) continue;
    std::this_thread::yield();
    if (const auto now = Clock::now(); now >= tick_at) {
      tick_at = now + std::chrono::milliseconds(1);
      for (auto& wire : wires_) {
        if (wire) wire->tick();
      }
    }
    if (!deadline.passed()) continue;
    ADD_FAILURE() << "rank " << rank() << ": waited too long";
    return false;
  }
  return true;
}

bool Rank::wait_asleep(const std::function<bool()>& done, int* wakeups) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(kPatience));
  while (!done()) {
    if (progress()) continue;
    if (done()) break;
    bool sleep = true;
    for (auto& wire : wires_) {
      if (wire && !wire->arm()) sleep = false;
    }
    if (sleep && !done()) {
      poller_->wait(1000);
      if (wakeups != nullptr) ++*wakeups;
    }
    for (auto& wire : wires_) {
      if (wire) wire->disarm();
    }
    if (!deadline.passed()) continue;
    ADD_FAILURE() << "rank " << rank() << ": slept too long";
    return false;
  }
  return true;
}

bool Rank::barrier() {
  ++barriers_;
  ++board_.arrived;
  const uint32_t all = barriers_ * static_cast<uint32_t>(size());
  return wait([&] { return board_.arrived >= all || board_.failures > 0; }, true);
}

std::string unusable(const TransportEntry& entry) {
  const Config config = standard_config();
  Result<Poller> poller = Poller::create();
  if (!poller.ok()) return poller.status().message();
  TransportContext context;
  context.size = 2;
  context.secret = secret();
  context.config = &config;
  context.poller = &*poller;
  return entry.create(context).status().message();
}

void run_ranks(const TransportEntry& entry, Mode mode, int size, const Body& body, int killed,
               const std::function<void(Config&)>& configure) {
  static std::atomic<uint64_t> groups{1};
  void* shared = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Board* board = new (shared) Board();
  board->word[7] = static_cast<uint64_t>(::getpid()) << 32 | groups++;
  Config config = standard_config();
  if (configure) configure(config);

  const auto run = [&](int rank) {
    Rank self(entry, config, rank, size, *board, mode);
    if (!::testing::Test::HasFatalFailure()) {
      self.barrier();  // all addresses are there
      body(self);
    }
    if (::testing::Test::HasFailure()) ++board->failures;
    if (killed < 0) self.barrier();  // nobody leaves while another still needs it
  };
  if (mode == Mode::threads) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(run, rank);
    for (auto& thread : threads) thread.join();
  } else {
    std::fflush(nullptr);
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        ::alarm(3 * kPatience);
        run(rank);
        std::fflush(nullptr);
        ::_exit(::testing::Test::HasFailure() ? 1 : 0);
      }
      children.push_back(child);
    }
    for (int rank = 0; rank < size; ++rank) {
      int status = 0;
      ::waitpid(children[static_cast<size_t>(rank)], &status, 0);
      if (rank == killed) {
        EXPECT_TRUE(WIFSIGNALED(status));
      } else {
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ", status " << status;
      }
    }
  }
  ::munmap(shared, sizeof(Board));
}

Guarded::Guarded(size_t bytes, size_t shift)
    : bytes_(bytes), shift_(shift), storage_(bytes + shift + 2 * kGuard, std::byte{0xa5}) {}

std::byte pattern(uint64_t seed, size_t i) { return static_cast<std::byte>(seed * 131 + i * 7 + (i >> 8) * 13); }

// Of whole ranges, without the sanitizers' look at every byte: that of memcpy and memcmp is enough.
__attribute__((no_sanitize("address", "thread", "undefined"))) static void make_pattern(uint64_t seed, size_t first,
                                                                                        std::span<std::byte> block) {
  for (size_t i = 0; i < block.size(); ++i) block[i] = pattern(seed, first + i);
}

void Guarded::fill(uint64_t seed) {
  std::array<std::byte, 4096> block;
  for (size_t at = 0; at < bytes_; at += block.size()) {
    make_pattern(seed, at, block);
    std::memcpy(data() + at, block.data(), std::min(block.size(), bytes_ - at));
  }
}

::testing::AssertionResult Guarded::guards_whole() const {
  const size_t before = kGuard + shift_, end = before + bytes_;
  for (size_t i = 0; i < storage_.size(); i = i + 1 == before ? end : i + 1) {
    if (storage_[i] != std::byte{0xa5}) {
      return ::testing::AssertionFailure() << "guard byte " << i << " of a buffer of " << bytes_ << " was written";
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult Guarded::holds(uint64_t seed) {
  std::array<std::byte, 4096> block;
  for (size_t at = 0; at < bytes_; at += block.size()) {
    make_pattern(seed, at, block);
    const size_t part = std::min(block.size(), bytes_ - at);
    if (std::memcmp(data() + at, block.data(), part) == 0) continue;
    const auto wrong = std::mismatch(block.begin(), block.end(), data() + at).first - block.begin();
    return ::testing::AssertionFailure() << "byte " << at + static_cast<size_t>(wrong) << " of " << bytes_
                                         << " is wrong";
  }
  return guards_whole();
}

std::vector<Piece> cut(std::byte* data, size_t bytes, uint64_t seed, size_t unit) {
  if (seed == 0) return {{data, bytes}};
  std::mt19937_64 random(seed);
  std::vector<size_t> ends;
  const size_t count = 1 + random() % 7;
  for (size_t i = 0; i + 1 < count; ++i) ends.push_back(random() % (bytes / unit + 1) * unit);
  if (count > 3) ends[1] = ends[0];  // an empty piece
  ends.push_back(bytes);
  std::sort(ends.begin(), ends.end());
  std::vector<Piece> pieces;
  size_t at = 0;
  for (const size_t end : ends) {
    pieces.push_back({data + at, end - at});
    at = end;
  }
  return pieces;
}

Outgoing::Outgoing(MessageId id, size_t bytes, uint64_t seed, uint64_t cuts) : memory(bytes, seed % 13) {
  memory.fill(seed);
  pieces = cut(memory.data(), bytes, cuts);
  request.id = id;
  request.source = {pieces.data(), static_cast<uint32_t>(pieces.size()), bytes};
}

Incoming::Incoming(MessageId id, size_t bytes, uint64_t cuts) : memory(bytes, (id.key() + 5) % 11) {
  pieces = cut(memory.data(), bytes, cuts);
  request.id = id;
  request.sink.dst = pieces.data();
  request.sink.count = static_cast<uint32_t>(pieces.size());
  request.sink.bytes = bytes;
}

}  // namespace weft::testing
