// The engine: the only progress loop of a communicator, and the only owner of what is in flight on it. It runs in the
// caller's thread while that waits; operations of streams are moved on by whoever holds the lock, be it a caller that
// waits for something else or the background thread.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bind/call.hpp"
#include "comm/watch.hpp"
#include "engine/flow.hpp"
#include "engine/small.hpp"
#include "status/deadline.hpp"
#include "trace/recorder.hpp"
#include "tuner/tuner.hpp"

namespace weft {

class Comm;

// One operation on the general path, from its creation to its end.
class Operation {
 public:
  Call call;
  MessageId id;
  std::atomic<bool> done{false};
  Status result;  // valid once done

 private:
  friend class Engine;
  std::unique_ptr<Flow> flow;
  Choice choice;
  Clock::time_point since{};  // its start, or the last time that anything of it was seen to move
  bool moved = false;
  uint64_t ticket = 0, begun_ticks = 0;
  // Where the plan reads and writes: the user's buffers, or work memory in which the input was widened or scaled.
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  weftDataType_t type = weftUint8;  // of those
  std::unique_ptr<Scratch> work;
};
using OperationPtr = std::shared_ptr<Operation>;

// How a waiter spends its time: it polls, then yields its core, then sleeps.
class Wait {
 public:
  explicit Wait(int64_t spins, int longest_sleep_ms = 50)
      : spins_(spins), spins_left_(spins), longest_sleep_ms_(longest_sleep_ms) {}
  // Something moved: begin anew.
  void moved() {
    spins_left_ = spins_;
    idle_ = false;
    sleep_ms_ = 1;
  }

 private:
  friend class Engine;
  int64_t spins_, spins_left_;
  bool idle_ = false, begun_ = false;
  int sleep_ms_ = 1, longest_sleep_ms_;
  Clock::time_point idle_since_{}, since_{}, ticked_{};
};

// A small call that runs, for those who ask what takes so long.
struct SmallRun {
  const CallHead& call;
  const SmallRecord& record;
  uint32_t sequence;
  const SmallOp* op;
  Doing doing() const;
};

class Engine {
 public:
  explicit Engine(Comm& comm);
  ~Engine();

  // Blocks until the call is done. Any thread.
  Status run(Call& call);
  // The same for a call of a shape that has run before and is small; false: it is for run(), with all checks.
  bool run_known(const CallHead& call, Status* status);

  // Gives a call its sequence number: they go by the order of these calls, on every rank the same.
  OperationPtr create(Call call);
  // Hands it over; it is started by whoever makes progress next.
  void submit(const OperationPtr& operation);
  // Blocks until all are done; each communicator is moved on by this thread, none waits for another.
  static Status wait_all(const std::vector<std::pair<Comm*, OperationPtr>>& operations);

  // For the background thread: one round if nobody else is at it; true when anything moved.
  bool try_progress();
  // Before it sleeps on the poller: there may be something to do, or somebody else at it. Once it is armed, it must be
  // followed by try_disarm(); one who takes the engine in between disarms it, too.
  enum class Arm { armed, busy, taken };
  Arm try_arm();
  void try_disarm();
  // Wakes whoever sleeps in this engine.
  void wake();

  // What this rank called as a collective that is over, as far back as is remembered. Lock held.
  std::optional<Doing> past(uint32_t sequence) const;
  // The same of a point-to-point call, as the flight recorder has it.
  std::optional<Doing> past_pair(uint32_t sequence, int peer, bool sends) const;

  // The lock, for one who needs the engine for a moment: whoever waits in it gives way at its next pause, so that this
  // does not wait for the end of a call.
  std::unique_lock<std::mutex> visit();
  uint64_t operations() const { return operations_.load(std::memory_order_relaxed); }
  uint64_t failures() const { return failures_.load(std::memory_order_relaxed); }
  // Ends everything in flight; lock held.
  void end_all(const Status& status);

 private:
  bool idle() const;
  bool try_small(const Call& call, Status* status);
  const SmallRecord* small_record(const Call& call);
  std::unique_ptr<SmallRecord> make_small(const Call& call, std::optional<ptrdiff_t> distance);
  bool run_small(const SmallRecord& record, const CallHead& call, Status* status);
  bool run_ops(const SmallRecord& record, const CallHead& call, uint32_t sequence);
  bool small_recv(const SmallOp& op, const MessageId& id, std::byte* dst, const std::byte* acc, Wait& wait,
                  const SmallRun& now);
  bool explain_early(Wait& wait, const SmallRun& now);
  void send_view(const SmallOp& op, const MessageId& id, std::byte* src, size_t place);
  bool small_send(const SmallOp& op, const MessageId& id, const std::byte* src, Wait& wait, const SmallRun& now);

  bool take_inbox();
  void start(const OperationPtr& operation);
  Status prepare(Operation& operation);
  Status launch(Operation& operation);
  Status launch_point_to_point(Operation& operation);
  void match_own(const OperationPtr& operation);
  void finish(Operation& operation, Status result);
  void complete_output(Operation& operation);
  bool progress();
  bool tick(Wait& wait, const SmallRun* small);
  Result<PlanEntry> plan(const Choice& choice, Collective collective, int root, bool in_place);
  PlanEntry point_to_point_plan(int peer, bool is_send);
  OpShape shape(const Call& call, std::string_view algorithm, int peer);

  // One pause of a waiter that found nothing. False: the communicator has failed.
  bool pause(Wait& wait, const SmallRun* small);
  void sleep(Wait& wait);
  void discount_stop(Wait& wait);
  void give_way();
  void disarm();
  Doing doing(const Operation& operation) const;
  // The operation that has waited longest, as the others see this rank.
  const Operation* oldest() const;
  // Takes note of which operations have moved since the last look: only those that do not are waiting.
  void note_moves();

  Comm& comm_;
  std::mutex mutex_;
  std::atomic<int> guests_{0};  // in visit(): nobody else takes the lock anew
  bool in_small_ = false;       // a small call runs, though it may have given way for the moment
  std::mutex inbox_mutex_;      // of inbox_ and the point-to-point sequence numbers
  std::vector<OperationPtr> inbox_;
  std::atomic<size_t> inbox_size_{0};
  std::vector<OperationPtr> active_;
  std::vector<OperationPtr> own_sends_, own_recvs_;  // point to point with oneself
  std::vector<std::unique_ptr<Flow>> idle_flows_;
  // The next collective's sequence number in the low bits; above them, in units of kUnstarted, how many operations have
  // a number and are not started. A small call takes its number only when there are none: while it runs nothing is
  // started, and the others may need what came before it.
  static constexpr uint64_t kUnstarted = uint64_t{1} << 40;
  std::atomic<uint64_t> turns_{0};
  std::vector<uint32_t> send_sequence_, recv_sequence_;  // by peer
  std::unordered_map<uint64_t, PlanEntry> plans_;
  SmallCache small_;
  Scratch small_scratch_;
  std::array<SmallView, SmallRecord::kMostViewed> small_views_;
  Fd bell_;
  std::atomic<bool> sleeping_{false};
  bool armed_ = false;          // by try_arm
  Clock::time_point looked_{};  // when somebody last looked whether anybody is late
  int64_t spins_;
  Wait background_{0};
  struct Past {
    uint32_t sequence = UINT32_MAX, signature = 0;
  };
  std::array<Past, RecorderMemory::kSlots> past_;  // by sequence, of collectives that ended well
  uint64_t small_ticket_ = 0;                      // the recorder's, of the small call that runs
  std::atomic<uint64_t> operations_{0}, failures_{0};
};

}  // namespace weft
