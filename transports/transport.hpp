// Transports: how messages cross from one rank to another. The engine knows wires and messages, a transport knows
// nothing of plans. Adding one is a folder beside this file and a line in registry.cpp.
//
// A message is one (op, tile) of a plan on the wire to one peer. Both ends compute its MessageId and its length, so a
// receive is always for one particular message; a wire may deliver in any order, and matches by id.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/handshake.hpp"
#include "config/config.hpp"
#include "kernels/reduce.hpp"
#include "status/deadline.hpp"
#include "status/status.hpp"
#include "transports/poller.hpp"

namespace weft {

struct SharedRegion;

struct MessageId {
  // Position of the message among those of its operation on this wire and direction. The top bit tells the sequence
  // numbers of point-to-point calls (counted per pair of ranks and direction) from those of collectives.
  static constexpr uint32_t kPointToPoint = 1u << 31;
  uint32_t sequence = 0;
  uint32_t index = 0;
  uint32_t signature = 0;  // hash of the call; both ends' are equal, or the calls do not match

  uint64_t key() const { return uint64_t{sequence} << 32 | index; }
};

struct Piece {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

// What is sent: pieces one after the other.
struct Source {
  const Piece* pieces = nullptr;
  uint32_t count = 0;
  size_t bytes = 0;
};

class Wire;

// A result that is also the next message on some wire. Where that message's receiver has offered the memory in which it
// waits, the result is written there, too, and `done` is set: the message then goes as SendRequest::placed.
struct Forward {
  Wire* wire = nullptr;  // null: there is no such message
  MessageId id;
  bool done = false;
};

// Where a message lands: written to dst, or, with reduce, dst = acc combined with what comes in. acc has the shape of
// dst and may be dst itself.
struct Sink {
  const Piece* dst = nullptr;
  uint32_t count = 0;
  size_t bytes = 0;
  const Piece* acc = nullptr;
  ReduceFn reduce = nullptr;
  uint32_t element = 1;          // bytes of one element; a transport that hands over parts cuts at multiples of it
  bool stream = false;           // what is only copied goes past the caches
  Forward* forward = nullptr;    // with reduce
  ReduceFn streaming = nullptr;  // `reduce` for results that are written to two places, if those go past the caches
  std::byte* also = nullptr;     // the wire's: where the forwarded message lands, while it may be written

  // Takes bytes [offset, offset + size) of the message, whatever pieces they fall into. Both are multiples of element.
  void consume(size_t offset, const std::byte* data, size_t size) const;
};

// Requests belong to the engine and stay where they are until done. `next` and `scratch` are the wire's while it holds
// the request.
struct SendRequest {
  MessageId id;
  Source source;
  bool placed = false;    // the data is already where the receiver offered to take it
  bool in_place = false;  // the receiver should read it where it lies, if it can, however small it is
  bool done = false;      // the source may be overwritten
  SendRequest* next = nullptr;
  uint64_t scratch[3] = {};
};
struct RecvRequest {
  MessageId id;
  Sink sink;
  bool done = false;  // the sink is complete
  RecvRequest* next = nullptr;
  uint64_t scratch[3] = {};
};

// Written by one thread at a time, read by any at any time. Counting costs what it costs in a plain number.
class Counter {
 public:
  operator uint64_t() const { return value_.load(std::memory_order_relaxed); }
  void operator+=(uint64_t more) { value_.store(*this + more, std::memory_order_relaxed); }
  void operator++() { *this += 1; }

 private:
  std::atomic<uint64_t> value_{0};
};

// Counters of one wire, since it was made.
struct WireStats {
  Counter bytes_sent, bytes_received, messages_sent, messages_received;
  Counter messages_placed;  // of those received, the ones that the sender wrote where they belong
};

// What went wrong on a wire.
struct WireError {
  enum class Kind : uint8_t {
    none,
    closed,    // the peer's end is gone: it died, or left
    mismatch,  // a message has the signature of another call: ours is `ours`, the peer's is `theirs`
    length,    // a message has another length than the receive posted for it
    broken,    // anything else; `text` says what
  };
  Kind kind = Kind::none;
  MessageId ours, theirs;
  std::string text;
};

class RingWire;  // shm and loop: see transports/ring_wire.hpp

// All messages between this rank and one peer. Used by one thread at a time. Nothing here blocks.
class Wire {
 public:
  explicit Wire(int peer) : peer_(peer) {}
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // Takes a request. It may be done on return, or becomes done in a later progress(). Requests of one operation come in
  // index order; those of several operations interleave, and none waits for another operation's. A wire that is not
  // connected yet keeps them until it is.
  virtual void send(SendRequest& request) = 0;
  virtual void recv(RecvRequest& request) = 0;
  // Says that the message, whose receive may come later, can be written to `where` by the sender, if that is memory
  // which the sender maps. `after`: only by one who reads our message with that index on this wire, which lies in the
  // same place, and writes each part once it has read it. Only a hint: the message may come in any way.
  static constexpr uint32_t kAnyTime = UINT32_MAX;
  virtual void offer(const MessageId& /*id*/, const Piece& /*where*/, uint32_t /*after*/ = kAnyTime) {}
  // Where the peer has offered to take the message, or nullptr. The memory may be written until close_target(), which
  // must follow. `reading`: index of the message of the peer's, of the same sequence number, that is read meanwhile.
  virtual std::byte* open_target(const MessageId& /*id*/, size_t /*bytes*/, uint32_t /*reading*/) { return nullptr; }
  virtual void close_target() {}
  // Moves what can be moved; true when anything did. Calls for a wire without requests are cheap.
  virtual bool progress() = 0;
  // Before a sleep in Poller::wait: asks the peer to wake us. False when something is there already, do not sleep.
  virtual bool arm() { return true; }
  virtual void disarm() {}
  // Called about once a millisecond of waiting: looks whether the peer is still there, where that costs a system call.
  virtual void tick() {}
  // Messages that came before their receive and wait for it; adds their ids.
  virtual bool has_early() const { return false; }
  virtual void early(std::vector<MessageId>* /*ids*/) const {}
  // Shows the peer memory that messages will come from, so that none of them has to bring the mapping. False: it was
  // not sent yet; ask again.
  virtual bool show(const std::shared_ptr<const SharedRegion>& /*region*/) { return true; }
  // Whether the region of the peer's with this id, which it shows, has come.
  virtual bool has_come(uint32_t /*region*/) { return true; }
  // Forgets all requests: called before an abort or a timeout returns to the user. After it no memory that a request
  // named is read or written any more, by us or by the peer. The wire is of no use afterwards.
  virtual void cancel() = 0;
  // Says goodbye in order, so that the peer does not take our leaving for a death. Data already sent still arrives.
  virtual void close() = 0;

  int peer() const { return peer_; }
  virtual std::string_view transport() const = 0;
  const WireError& error() const { return error_; }
  // Any thread, as are peer() and transport().
  const WireStats& stats() const { return stats_; }
  // A message up to this size is done at the sender without the receiver's help, but for flow control.
  virtual size_t eager_bytes() const = 0;
  // This wire as one over rings, whose compiled small calls go without requests; else nullptr.
  virtual RingWire* ring_wire() { return nullptr; }
  virtual bool connected() const = 0;

 protected:
  WireError error_;  // the first one stays
  WireStats stats_;

 private:
  int peer_;
};

// What a transport says of itself; input of the tuner.
struct Capability {
  double latency_us = 0;     // of a small message, one way
  double bandwidth_gbs = 0;  // of one wire, GB/s
  size_t eager_bytes = 0;    // a message up to this size is done at the sender without the receiver's help
  bool same_host_only = false;
  bool same_process_only = false;
  bool maps_memory = false;  // what weftMemAlloc gave the sender is read where it lies
  bool registers = false;    // prepare() and pin() have an effect
};

// What went over one of several devices, since the communicator was made.
struct RailCounters {
  std::string name;
  bool up = true;
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t failures = 0;     // times that it went down
  uint64_t connections = 0;  // to peers, that are up
};

// One communicator's view of the process, for its transports. Outlives them.
struct TransportContext {
  int rank = 0;
  int size = 1;
  uint64_t group = 0;
  Secret secret{};
  const Config* config = nullptr;
  Poller* poller = nullptr;
};

// One transport of one communicator.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  virtual Capability capability() const = 0;
  // Plain bytes by which other ranks reach this one; exchanged by bootstrap.
  virtual std::string address() const = 0;
  // Whether `address` can be reached from here, judged by trying where it is not certain. May take milliseconds; called
  // for a neighbour at set-up. The reason of a no goes to the log.
  virtual bool reaches(int peer, const std::string& address) = 0;
  // The wire to a peer; never blocks. Of two ranks the higher one dials and the lower one accepts, each at its first
  // use; a dial that gets no answer by `deadline` is the wire's error.
  virtual std::unique_ptr<Wire> connect(int peer, const std::string& address, Deadline deadline) = 0;
  // Accepts and carries on handshakes; true when anything moved.
  virtual bool progress() = 0;
  // Its devices, where it uses several at once. Any thread.
  virtual std::vector<RailCounters> rails() const { return {}; }
  // Messages will come from or go to this memory: what has to be registered is registered in one piece, and found again
  // the next time. Called for every operation.
  virtual void prepare(const Piece& /*memory*/) {}
  // Registers memory until unpin(). An error says what is in the way.
  virtual Status pin(const Piece& /*memory*/) { return {}; }
  virtual void unpin(const Piece& /*memory*/) {}
};

// A device that a transport found, for weft-info.
struct DeviceReport {
  std::string name;
  bool used = false;
  std::string reason;  // why, or why not
  std::vector<std::pair<std::string, std::string>> facts;
};

struct TransportEntry {
  std::string_view name;
  // Preference order is table order. An error means not usable here and says why; the others are used.
  Result<std::unique_ptr<Transport>> (*create)(const TransportContext& context) = nullptr;
  std::vector<DeviceReport> (*devices)(const Config& config) = nullptr;
  bool optional = false;    // that it is not usable is worth a warning only where it was asked for by name
  bool on_request = false;  // used only where WEFT_TRANSPORT names it
};
std::span<const TransportEntry> transports();

}  // namespace weft
