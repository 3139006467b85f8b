// Bootstrap among threads of one process.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/crypto.hpp"

namespace weft {
namespace {

enum class Presence : uint8_t { here, left, lost };

struct Shared {
  explicit Shared(int size) : presence(size_t(size)), mine(size_t(size)), round(size_t(size)), events(size_t(size)) {}

  std::mutex mutex;
  std::condition_variable changed;
  uint64_t session = 0;
  std::vector<Presence> presence;
  std::vector<std::shared_ptr<const std::string>> mine;    // by rank, of its round
  std::vector<std::shared_ptr<const std::string>> before;  // all ranks' of the round that was completed last
  uint64_t completed = 0;
  std::vector<uint64_t> round;
  std::vector<std::deque<Control>> events;
};

class Local final : public Bootstrap {
 public:
  Local(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
  ~Local() override { go(Presence::lost); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->presence.size()); }
  uint64_t session() const override { return shared_->session; }
  int fd() const override { return -1; }
  void leave() override { go(Presence::left); }

  Result<std::vector<std::string>> all_gather(const std::string& mine, Deadline deadline, const Pause& pause) override {
    std::unique_lock lock(shared_->mutex);
    if (shared_->presence[size_t(rank_)] != Presence::here) {
      return error(weftInvalidUsage, "rank {} has left the communicator", rank_);
    }
    const uint64_t round = ++shared_->round[size_t(rank_)];
    shared_->mine[size_t(rank_)] = std::make_shared<const std::string>(mine);
    while (shared_->completed < round) {
      if (complete(round)) break;
      if (Status status = check(round, false); !status.ok()) return status;
      if (deadline.cancelled()) return aborted_in_setup(rank_);
      if (deadline.passed()) return check(round, true);
      const auto wait = [&] {
        shared_->changed.wait_for(lock, std::chrono::milliseconds(deadline.left_ms(1000)));
        lock.unlock();  // pause may take a lock that others hold while they want this one
      };
      pause ? pause(wait) : wait();
      lock.lock();
    }
    if (shared_->completed != round) {
      return error(weftTimeout, "rank {} came too late: the others are at a later round", rank_);
    }
    std::vector<std::string> all;
    for (const auto& bytes : shared_->before) all.push_back(*bytes);
    return all;
  }

  void send(const std::string& text) override {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->presence[size_t(rank_)] == Presence::here) tell({Control::Kind::alert, rank_, text});
  }

  std::optional<Control> poll() override {
    const std::lock_guard lock(shared_->mutex);
    auto& events = shared_->events[size_t(rank_)];
    if (events.empty() || shared_->presence[size_t(rank_)] != Presence::here) return std::nullopt;
    Control control = std::move(events.front());
    events.pop_front();
    return control;
  }

 private:
  // The result of a round stays until the next is complete, and that needs everybody's next contribution.
  bool complete(uint64_t round) {
    for (const uint64_t theirs : shared_->round) {
      if (theirs != round) return false;
    }
    shared_->before = shared_->mine;
    shared_->completed = round;
    shared_->changed.notify_all();
    return true;
  }

  // An error where a rank that has not come to the round is gone, or, with `late`, has not come in time.
  Status check(uint64_t round, bool late) const {
    std::string gone, awaited;
    for (size_t r = 0; r < shared_->round.size(); ++r) {
      if (shared_->round[r] >= round) continue;
      if (shared_->presence[r] == Presence::here) {
        awaited += fmt::format("{}rank {}", awaited.empty() ? "" : ", ", r);
      } else {
        gone += fmt::format("{}rank {} {}", gone.empty() ? "" : ", ", r,
                            shared_->presence[r] == Presence::left ? "left the communicator" : "is lost");
      }
    }
    if (!gone.empty()) return error(weftRemoteError, "while others set up, {}", gone);
    if (late) return error(weftTimeout, "set-up timed out: no word from {}", awaited);
    return {};
  }

  void tell(const Control& control) {
    for (size_t r = 0; r < shared_->events.size(); ++r) {
      if (int(r) != rank_) shared_->events[r].push_back(control);
    }
  }

  void go(Presence how) {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->presence[size_t(rank_)] != Presence::here) return;
    shared_->presence[size_t(rank_)] = how;
    shared_->events[size_t(rank_)].clear();
    tell({how == Presence::left ? Control::Kind::left : Control::Kind::lost, rank_, {}});
    shared_->changed.notify_all();
  }

  std::shared_ptr<Shared> shared_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Bootstrap>> local_bootstraps(int size) {
  auto shared = std::make_shared<Shared>(size);
  // Without randomness, 0 will do: nothing else in this process has that session.
  (void)random_bytes({reinterpret_cast<uint8_t*>(&shared->session), sizeof shared->session}).ok();
  std::vector<std::unique_ptr<Bootstrap>> out;
  for (int r = 0; r < size; ++r) out.push_back(std::make_unique<Local>(shared, r));
  return out;
}

}  // namespace weft
