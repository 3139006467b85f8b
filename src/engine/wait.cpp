// How the engine waits: what a pause costs, when it looks around, when it sleeps.
#include <sched.h>
#include <sys/eventfd.h>

#include "comm/comm.hpp"
#include "engine/engine.hpp"

namespace weft {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kYieldFor{1000};  // then it sleeps
constexpr milliseconds kTick{1};
// Two ticks further apart than this: not the peers stood still, but this process, or all of them with it.
constexpr milliseconds kStopped{500};

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

bool Engine::pause(Wait& wait, const SmallRun* small) {
  if (wait.spins_left_ > 0) {
    --wait.spins_left_;
    relax();
    return true;
  }
  if (small != nullptr && guests_.load() > 0) give_way();
  const auto now = Clock::now();
  if (!wait.begun_) {
    wait.begun_ = true;
    wait.since_ = wait.ticked_ = now;
  }
  if (!wait.idle_) {
    wait.idle_ = true;
    wait.idle_since_ = now;
  }
  if (comm_.failed()) return false;
  bool moved = comm_.progress_connections();
  // A small call has the engine to itself, but others may hand over operations that its peers wait for first.
  const bool alone = small != nullptr && inbox_size_.load() == 0 && active_.empty();
  moved |= alone ? comm_.progress_wires() : progress();
  if (now - wait.ticked_ >= kTick || comm_.abort_requested.load(std::memory_order_relaxed)) {
    wait.ticked_ = now;
    if (!tick(wait, small)) return false;
  }
  if (moved) {
    wait.idle_since_ = now;
    wait.sleep_ms_ = 1;
    return true;
  }
  if (now - wait.idle_since_ < kYieldFor) {
    ::sched_yield();
  } else {
    sleep(wait);
  }
  return true;
}

// A wake-up can be lost between a peer's look at our flag and our sleep (it looks without a fence): sleeps are short,
// so that costs at most one of them.
void Engine::sleep(Wait& wait) {
  const int longest =
      static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(wait.longest_sleep_ms_, comm_.timeout_ms.load() / 8)));
  sleeping_.store(true, std::memory_order_seq_cst);
  if (inbox_size_.load() == 0 && guests_.load() == 0 && !comm_.abort_requested.load() && comm_.arm_wires()) {
    comm_.poller().wait(std::min(wait.sleep_ms_, longest));
    comm_.disarm_wires();
    wait.sleep_ms_ = std::min(2 * wait.sleep_ms_, longest);
  }
  sleeping_.store(false);
  uint64_t rings;
  (void)!::read(bell_.get(), &rings, sizeof rings);
}

std::unique_lock<std::mutex> Engine::visit() {
  guests_.fetch_add(1);
  if (sleeping_.load()) wake();
  std::unique_lock lock(mutex_);
  guests_.fetch_sub(1);
  return lock;
}

// Of a small call, in the midst of it: others may move the engine on meanwhile, but not begin another one. It comes
// back as a guest: whoever waits in the engine by then may wait for what this call still has to send.
void Engine::give_way() {
  mutex_.unlock();
  while (guests_.load() > 0) ::sched_yield();
  visit().release();
}

void Engine::wake() {
  const uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

// About once a millisecond of waiting. False: the communicator has failed, and everything in flight was ended.
bool Engine::tick(Wait& wait, const SmallRun* small) {
  if (!wait.begun_) {
    wait.begun_ = true;
    wait.since_ = wait.ticked_ = Clock::now();
  }
  discount_stop(wait);
  if (comm_.abort_requested.load(std::memory_order_acquire)) {
    comm_.fail(error(weftAborted, "weftCommAbort was called on rank {}", comm_.rank()), true);
    return false;
  }
  comm_.tick_wires();
  note_moves();
  const Operation* longest = oldest();
  Doing now_doing;
  const Doing* what = nullptr;
  Clock::time_point since = wait.since_;
  if (small != nullptr) {
    now_doing = small->doing();
    what = &now_doing;
    comm_.recorder().waiting(small_ticket_, now_doing.waiting_for);
  } else if (longest != nullptr) {
    now_doing = doing(*longest);
    what = &now_doing;
    since = longest->since;
    if (longest->flow != nullptr) comm_.recorder().waiting(longest->ticket, now_doing.waiting_for);
  }
  bool known = false;
  const Status seen = comm_.watch().look(what, since, &known);
  if (!seen.ok()) {
    comm_.fail(seen, !known);
    return false;
  }
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - since);
  if (what != nullptr && waited.count() >= comm_.timeout_ms.load(std::memory_order_relaxed)) {
    comm_.fail(comm_.watch().timed_out(now_doing, waited), true);
    return false;
  }
  return true;
}

// A job that was stopped as a whole, or on a machine that was, goes on where it was: that time is nobody's delay. Nor
// is the time before the engine had anything to wait for.
void Engine::discount_stop(Wait& wait) {
  const auto now = Clock::now();
  const auto unseen = now - std::exchange(looked_, now);
  if (unseen < kStopped) return;
  wait.since_ = std::min(now, wait.since_ + unseen);
  for (const auto* list : {&active_, &own_sends_, &own_recvs_}) {
    for (const OperationPtr& operation : *list) operation->since = std::min(now, operation->since + unseen);
  }
}

bool Engine::try_progress() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || guests_.load() > 0) return false;
  bool moved = progress();
  const auto now = Clock::now();
  if (now - background_.ticked_ >= kTick && oldest() != nullptr) {
    background_.ticked_ = now;
    comm_.progress_connections();
    if (!comm_.failed()) tick(background_, nullptr);
    moved |= comm_.failed();
  }
  return moved;
}

Engine::Arm Engine::try_arm() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return Arm::taken;
  sleeping_.store(true);
  if (inbox_size_.load() == 0 && comm_.arm_wires()) {
    armed_ = true;
    return Arm::armed;
  }
  sleeping_.store(false);
  return Arm::busy;
}

// Whoever has taken the engine meanwhile may keep it for long, and wait for what the background thread does elsewhere.
void Engine::try_disarm() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && armed_) disarm();
}

void Engine::disarm() {
  armed_ = false;
  sleeping_.store(false);
  comm_.disarm_wires();
  uint64_t rings;
  (void)!::read(bell_.get(), &rings, sizeof rings);
}

}  // namespace weft
