// Bootstrap: how the ranks of a communicator find each other, exchange bytes while they set up, and tell each other
// about failures afterwards (the control plane). A star: n messages at its root per round. The root is the rank whose
// process owns the listener that the id names: rank 0 as a rule, but any rank of the communicator will do, so that
// every process may call weftGetUniqueId.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/handshake.hpp"
#include "config/config.hpp"
#include "status/deadline.hpp"
#include "status/status.hpp"

namespace weft {

// What a weftUniqueId holds: where the root listens, a random group number and the secret. Good for one communicator:
// once all ranks have joined nobody listens there any more.
struct JobId {
  Secret secret{};
  uint64_t group = 0;
  std::string address;     // "1.2.3.4:567", "[::1]:567", "node7:567"
  bool listening = false;  // somebody listened there before the id was handed out: refused means used up, not too early

  weftUniqueId pack() const;
  static Result<JobId> unpack(const weftUniqueId& id);
  static Result<JobId> random();  // random secret and group, no address yet
};

// A message of the control plane: from one rank, to all others.
struct Control {
  enum class Kind : uint8_t {
    lost,   // `from` closed its connection without a goodbye; made by the receiver, or by the root on its behalf
    left,   // `from` said goodbye
    alert,  // `text` is the failure engine's business
  };
  Kind kind = Kind::alert;
  int from = -1;
  std::string text;
};

// What a round or a join comes to when its deadline is cancelled, which is how weftCommAbort ends it.
Status aborted_in_setup(int rank);

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The rank through which the control plane goes; -1: there is none (ranks of one process).
  virtual int root() const { return -1; }
  // A random number that the root made for this join, the same on all ranks: ids that a launcher's variables make come
  // out the same each time in one job, this does not.
  virtual uint64_t session() const { return 0; }
  // Runs `wait`, which touches nothing of the bootstrap: another thread may use its control plane meanwhile.
  using Pause = std::function<void(const std::function<void()>& wait)>;
  // Collective: every rank's bytes, by rank. Errors name the ranks that did not take part, or that were lost. Where it
  // waits it does so inside `pause`, if there is one.
  virtual Result<std::vector<std::string>> all_gather(const std::string& mine, Deadline deadline,
                                                      const Pause& pause = {}) = 0;

  // Control plane; callable after join, from one thread at a time. send() goes to all others (through the root) and
  // never blocks; poll() never blocks. After poll() reported the root as lost nothing further arrives.
  virtual void send(const std::string& text) = 0;
  virtual std::optional<Control> poll() = 0;
  // Readable when poll() may have something; -1 when there is no descriptor (ranks of one process).
  virtual int fd() const = 0;
  // Says goodbye; a rank that left is not lost. The destructor without it looks like a death to the others.
  virtual void leave() = 0;
};

// A bound, listening socket: see listener.hpp.
class Listener;
// Binds a listener as the configuration says, keeps it in this process, and makes the id that leads to it.
Result<weftUniqueId> make_unique_id(const Config& config);
// The listener that this process keeps for the id, for the first who asks; nullptr for all others, and where another
// process made the id. A process forked off the one that made the id may take it too: the first of the family gets it.
// The process that made the id, or one forked off it afterwards, must be a rank of the communicator: a launcher that
// only makes the id and hands it to programs that it starts serves nobody, and their join fails at its deadline.
std::shared_ptr<Listener> take_root_listener(const JobId& id);

struct JoinOptions {
  JobId id;
  int rank = 0;
  int size = 1;
  std::shared_ptr<Listener> listener;  // from take_root_listener or Launch; whoever has it is the root, null elsewhere
  bool keep_listening = false;         // the listener is not closed once all ranks have joined, or in the end have not
  Deadline deadline = Deadline::never();
  const Config* config = nullptr;
};
// Connects to the root (retrying until the deadline while nobody listens there), proves the secret, checks rank and
// size. Errors at all ranks concerned: a duplicate rank (with both hosts and pids), different sizes (with both), ranks
// that never came (their numbers), a root that is not ours, another protocol version.
Result<std::unique_ptr<Bootstrap>> join(JoinOptions options);

// The same among threads of one process, over shared memory: element i is rank i's.
std::vector<std::unique_ptr<Bootstrap>> local_bootstraps(int size);

}  // namespace weft
