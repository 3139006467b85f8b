// A communicator: its ranks, topology, wires and engine. Two communicators share nothing that one can block for the
// other.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bind/call.hpp"
#include "bootstrap/bootstrap.hpp"
#include "bootstrap/listener.hpp"
#include "comm/watch.hpp"
#include "engine/engine.hpp"
#include "topology/topology_file.hpp"
#include "trace/counters.hpp"
#include "trace/status_file.hpp"
#include "trace/trace.hpp"
#include "transports/transport.hpp"
#include "tuner/tuner.hpp"

namespace weft {

class Comm {
 public:
  // Collective: the ranks of `bootstrap` exchange what they need to know of each other.
  static Result<std::unique_ptr<Comm>> create(std::unique_ptr<Bootstrap> bootstrap, const JobId& id, Config config,
                                              std::string label, Deadline deadline);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  uint64_t group() const { return id_.group; }
  const Secret& secret() const { return id_.secret; }
  const Config& config() const { return config_; }
  const std::string& label() const { return label_; }
  const Topology& topology() const { return topology_; }
  const Tuner& tuner() const { return *tuner_; }
  Poller& poller() { return poller_; }
  Bootstrap& bootstrap() { return *bootstrap_; }
  Engine& engine() { return *engine_; }
  Watch& watch() { return *watch_; }
  FlightRecorder& recorder() { return *recorder_; }
  bool forked() const;  // we are a child of the process that made it

  // The wire to a peer, made at its first use. Null when there is no way; the reason is the status.
  Wire* wire(int peer);
  std::string_view transport_to(int peer) const;
  const std::vector<std::unique_ptr<Wire>>& wires() const { return wires_; }
  // The peers that read this rank's shared memory where it lies.
  std::vector<int> mapping_peers() const;
  // Whether transports that register memory are in use, and what is done of that before messages are.
  bool registers() const { return !registering_.empty(); }
  void prepare(const Piece& memory);
  Status pin(const Piece& memory);
  void unpin(const Piece& memory);
  // Moves all wires that are in use, and connections under way; true when anything moved.
  bool progress_wires();
  bool progress_connections();
  void tick_wires();
  bool arm_wires();  // false: something is there already
  void disarm_wires();

  // The first failure stays; all later calls return it. With tell, the other ranks are told. Engine lock held.
  void fail(Status status, bool tell);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // After failed().
  Status status() const;

  std::atomic<int64_t> timeout_ms{0};
  std::atomic<bool> abort_requested{false};
  // Operations on streams that are not done yet, and others that have a sequence number but were not handed to the
  // engine yet. While there are any, no small call may run ahead with the engine to itself: one before it in the order
  // could not move, and its peers may wait for just that one.
  std::atomic<int> queued{0};

  // Where the members of a communicator made from this one can meet, listening since before anything could fail; by
  // rank, empty where that rank could not listen.
  const std::vector<std::string>& spare_addresses() const { return spare_addresses_; }
  std::shared_ptr<Listener> spare_listener() const { return spare_; }
  uint32_t next_child() { return children_++; }

  // Any thread, at any time: it waits for nobody.
  CommCounters counters() const;
  void set_phase(CommPhase phase) {
    if (status_file_ != nullptr) status_file_->set_phase(phase);
  }
  // Waits for nobody: says goodbye on wires and control plane.
  void leave();

 private:
  Comm(std::unique_ptr<Bootstrap> bootstrap, const JobId& id, Config config, std::string label, Poller poller);
  Status set_up(Deadline deadline);
  Status make_transports();
  Status exchange(Deadline deadline, const std::string& agreed);
  Status find_nodes(Deadline deadline);
  void label(const TopologyFile& file);
  void make_hierarchy();
  std::vector<int> ring_order() const;
  Status choose_transports();
  Status make_tuner(const std::vector<ProgramPtr>& own, const TunePtr& tune);

  struct Member {  // what a rank says of itself
    std::string host, machine, process, agreed, spare, site, rack, node, place;
    auto fields() { return std::to_array({&host, &machine, &process, &agreed, &spare, &site, &rack, &node, &place}); }
    std::vector<std::pair<std::string, std::string>> addresses;  // transport, address
  };
  static std::string pack(Member& member);
  static Result<Member> unpack(const std::string& text);
  const std::string* address_of(int peer, std::string_view transport) const;

  std::unique_ptr<Bootstrap> bootstrap_;
  JobId id_;
  Config config_;
  std::string label_;
  int rank_, size_;
  uint32_t forks_;  // as it was when this was made
  Poller poller_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<Member> members_;
  std::vector<int> transport_of_;  // by peer: index into transports_, -1 none
  std::vector<Transport*> registering_;
  Topology topology_;
  std::optional<Tuner> tuner_;
  std::shared_ptr<Listener> spare_;
  std::vector<std::string> spare_addresses_;
  uint32_t children_ = 0;

  std::unique_ptr<StatusFile> status_file_;
  std::unique_ptr<FlightRecorder> recorder_;
  TraceUser trace_;
  std::vector<std::unique_ptr<Wire>> wires_;  // by peer
  // The wires that were made, in the order of their making: the first used_ of used_wires_. Others may read them while
  // one is added.
  std::span<Wire* const> used() const { return {used_wires_.data(), used_.load(std::memory_order_acquire)}; }
  std::vector<Wire*> used_wires_;
  std::atomic<size_t> used_{0};
  int unconnected_ = 0;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Engine> engine_;
  bool left_ = false;

  std::atomic<bool> failed_{false};
  mutable std::mutex status_mutex_;
  Status status_;
};

}  // namespace weft
