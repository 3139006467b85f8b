// The star once all ranks have joined: rounds of all_gather through the root, and the control plane.
#pragma once

#include <sys/types.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/frame.hpp"
#include "status/fd.hpp"

namespace weft {

class Star final : public Bootstrap {
 public:
  struct Options {
    int rank = 0, size = 1, root = 0;
    uint64_t session = 0;
    std::vector<std::string> names;  // "rank 1 (host a, pid 7)" by rank, where known
  };
  // links: by rank. The root has all but its own, a member the root's only.
  static Result<std::unique_ptr<Bootstrap>> create(Options options, std::vector<std::unique_ptr<FrameSocket>> links);
  ~Star() override = default;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  int root() const override { return options_.root; }
  uint64_t session() const override { return options_.session; }
  Result<std::vector<std::string>> all_gather(const std::string& mine, Deadline deadline, const Pause& pause) override;
  void send(const std::string& text) override;
  std::optional<Control> poll() override;
  int fd() const override { return epoll_.get(); }
  void leave() override;

 private:
  enum class Presence : uint8_t { here, left, lost };
  using Gathered = Result<std::vector<std::string>>;

  Star(Options options, std::vector<std::unique_ptr<FrameSocket>> links);
  bool is_root() const { return options_.rank == options_.root; }
  Status watch();
  void pump(int timeout_ms);
  void wait(int timeout_ms, const Pause& pause);
  void read_link(int peer);
  void handle(int peer, Frame frame);
  void handle_as_root(int peer, const Frame& frame);
  void handle_as_member(const Frame& frame);
  void gone(int peer, Presence how);
  void drop_link(int peer);
  void push(Control control);
  void queue(int peer, const SharedBytes& frame);
  void relay(int except, const SharedBytes& frame);
  void want_writes(int peer, bool on);
  Gathered gather_as_root(const std::string& mine, Deadline deadline, const Pause& pause);
  Gathered gather_as_member(const std::string& mine, Deadline deadline, const Pause& pause);
  Status flush_all(Deadline deadline);
  Status missing(const std::vector<int>& ranks, Presence how) const;
  std::string name(int peer) const;
  void linger();

  Options options_;
  std::vector<std::unique_ptr<FrameSocket>> links_;
  std::vector<bool> writing_;  // EPOLLOUT is asked for
  std::vector<Presence> presence_;
  Fd epoll_, doorbell_;  // the doorbell rings while events_ holds something
  std::deque<Control> events_;
  uint32_t round_ = 0;
  std::vector<std::map<uint32_t, std::string>> contributions_;  // root: by rank, then round
  std::map<uint32_t, Gathered> results_;                        // member: the root's word, by round
  bool left_ = false;
  pid_t pid_;
};

}  // namespace weft
