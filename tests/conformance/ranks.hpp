// Ranks for the conformance suite: threads of this process or forked processes, each with a transport and wires to the
// others, and one page of shared memory by which they exchange addresses and meet.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transports/transport.hpp"

namespace weft::testing {

enum class Mode { threads, processes };

constexpr int kMostRanks = 4;
// Longest wait of a test for anything; a bound for hangs.
constexpr int kPatience = 30;  // seconds

// What the ranks of a test share.
struct Board {
  struct Address {
    std::atomic<uint32_t> bytes{0};
    char text[2000];
  };
  Address addresses[kMostRanks];
  std::atomic<uint32_t> arrived{0};  // at barriers, all of them together
  std::atomic<uint32_t> failures{0};
  std::atomic<uint64_t> word[8];  // for a test's own use
};

class Rank {
 public:
  Rank(const TransportEntry& entry, const Config& config, int rank, int size, Board& board, Mode mode);
  ~Rank();

  int rank() const { return context_.rank; }
  int size() const { return context_.size; }
  // Of two ranks, the other.
  int other() const { return 1 - context_.rank; }
  Mode mode() const { return mode_; }
  Board& board() { return board_; }
  Poller& poller() { return *poller_; }
  Transport& transport() { return *transport_; }
  Wire& wire(int peer);
  Wire& wire() { return wire(other()); }
  void drop_wire(int peer) { wires_[peer].reset(); }

  bool progress();
  // Makes progress until `done`, busily; false (and a failure) when that takes too long or a wire has an error.
  bool wait(const std::function<bool()>& done, bool errors_allowed = false);
  // The same, asleep whenever there is nothing to do; counts how often it woke.
  bool wait_asleep(const std::function<bool()>& done, int* wakeups = nullptr);
  // Meets the other ranks, making progress meanwhile.
  bool barrier();

 private:
  TransportContext context_;
  Config config_;
  Mode mode_;
  Board& board_;
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Wire>> wires_;
  uint32_t barriers_ = 0;
};

// Why a transport cannot be used here; empty when it can.
std::string unusable(const TransportEntry& entry);

using Body = std::function<void(Rank&)>;
// Runs body at every rank. A rank that is killed on purpose says so in `killed`.
void run_ranks(const TransportEntry& entry, Mode mode, int size, const Body& body, int killed = -1,
               const std::function<void(Config&)>& configure = {});

// Memory with guard bytes at both ends, at an odd address where asked for.
class Guarded {
 public:
  explicit Guarded(size_t bytes, size_t shift = 0);
  std::byte* data() { return storage_.data() + kGuard + shift_; }
  size_t size() const { return bytes_; }
  void fill(uint64_t seed);
  // Whether the contents are those of fill(seed) and the guards are whole.
  ::testing::AssertionResult holds(uint64_t seed);
  ::testing::AssertionResult guards_whole() const;

 private:
  static constexpr size_t kGuard = 128;
  size_t bytes_, shift_;
  std::vector<std::byte> storage_;
};
std::byte pattern(uint64_t seed, size_t i);

// Cuts memory into pieces of uneven sizes, among them empty ones; cuts at multiples of `unit`. Seed 0: one piece.
std::vector<Piece> cut(std::byte* data, size_t bytes, uint64_t seed, size_t unit = 1);

// A message with its memory.
struct Outgoing {
  Outgoing(MessageId id, size_t bytes, uint64_t seed, uint64_t cuts = 0);
  Guarded memory;
  std::vector<Piece> pieces;
  SendRequest request;
};
struct Incoming {
  Incoming(MessageId id, size_t bytes, uint64_t cuts = 0);
  Guarded memory;
  std::vector<Piece> pieces;
  RecvRequest request;
};

}  // namespace weft::testing
