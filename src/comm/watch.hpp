// The watch: what this rank knows of the others' troubles, from the control plane and the wires, and what it concludes.
//
// A rank that has waited a while says so to all others ("stalled": operation, signature, the peer it waits for). From
// these words everybody can tell a mismatch (same sequence number, other signature) from an absence, and, at the
// timeout, name the rank that is really to blame: following "waits for" from oneself to the first rank that said
// nothing, or is behind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "status/deadline.hpp"
#include "status/status.hpp"
#include "transports/transport.hpp"

namespace weft {

class Comm;

// The operation that a rank is in, as its messages to others show it.
struct Doing {
  uint32_t sequence = 0;  // as in MessageId
  uint32_t signature = 0;
  int waiting_for = -1;
  std::string text;  // "allreduce of 1000 float, sum"
  // Of a point-to-point call: both its directions are numbered by themselves.
  int peer = -1;
  bool sends = false;
};

class Watch {
 public:
  explicit Watch(Comm& comm);

  // Looks at the control plane and at the wires; an error ends the communicator. `doing`: what this rank waits in, if
  // it does, since `since`. *known: the other ranks know of it already. Called about once a millisecond of waiting.
  Status look(const Doing* doing, Clock::time_point since, bool* known);
  // A message came that belongs to no call of this rank; look() ends the communicator within a second.
  bool puzzled() const { return stray_; }
  // What a timeout of `doing` after `waited` says.
  Status timed_out(const Doing& doing, std::chrono::milliseconds waited);
  // Tells the others that this communicator ended here.
  void tell_failure(const Status& status);

 private:
  struct Word {  // the last thing a rank said
    Doing doing;
    Clock::time_point at;
  };
  Status take_control(const Doing* doing, bool* known);
  Status take_alert(int from, const std::string& text, const Doing* doing, bool* known);
  Status compare(int from, const Doing& theirs, const Doing* doing);
  Status wire_trouble(const Doing* doing);
  Status stray_messages();
  Status missed(const Doing& doing);
  void say(const Doing& doing);
  std::string name(uint32_t sequence) const;

  Comm& comm_;
  std::vector<std::optional<Word>> words_;
  std::vector<bool> lost_, left_;
  Clock::time_point said_at_{};  // when we last said what we do
  uint32_t said_sequence_ = 0;
  int said_waiting_ = -1;
  Clock::time_point trouble_since_{};  // a wire is closed or mismatched, and we wait for the reason
  bool trouble_ = false;
  Clock::time_point stray_since_{};  // a message of an operation that is over here
  bool stray_ = false;
  int missed_ = -1;  // who was waited for in vain, and since when that is known
  Clock::time_point missed_since_{};
  std::vector<MessageId> early_;
};

}  // namespace weft
