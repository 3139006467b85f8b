// The root's side of join(): takes connections until every rank is there.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <thread>
#include <vector>

#include "bootstrap/bytes.hpp"
#include "bootstrap/crypto.hpp"
#include "bootstrap/join.hpp"
#include "bootstrap/star.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

using std::chrono::milliseconds;

// Connections that have not proved anything yet. Beyond the limit the oldest that has had its second makes room; a rank
// that this hits comes again.
constexpr size_t kMaxPending = 128;
constexpr milliseconds kPendingTime{10000};
constexpr milliseconds kPendingMinimum{1000};
constexpr size_t kMaxJoinFrame = 4096;
constexpr milliseconds kFarewell{1000};

struct Pending {
  HandshakeSocket handshake;
  std::unique_ptr<FrameSocket> link;  // once the handshake is done
  SocketAddress remote;
  Clock::time_point since = Clock::now();
};

class RootJoin {
 public:
  explicit RootJoin(JoinOptions options)
      : options_(std::move(options)),
        links_(static_cast<size_t>(options_.size)),
        names_(static_cast<size_t>(options_.size)) {
    names_[static_cast<size_t>(options_.rank)] = describe_rank(options_.rank, this_host(), ::getpid());
  }

  Result<std::unique_ptr<Bootstrap>> run() {
    Status status;
    while (status.ok() && joined_ < options_.size) {
      if (options_.deadline.passed()) {
        status = options_.deadline.cancelled() ? aborted_in_setup(options_.rank) : never_came();
      } else {
        wait();
        status = step();
      }
    }
    if (!status.ok()) return give_up(status);
    return welcome();
  }

 private:
  void wait() {
    std::vector<pollfd> fds;
    fds.push_back({.fd = options_.listener->fd(), .events = POLLIN, .revents = 0});
    for (const Pending& pending : pending_) {
      const int fd = pending.link ? pending.link->fd() : pending.handshake.fd();
      const bool writing = !pending.link && pending.handshake.writing();
      fds.push_back({.fd = fd, .events = static_cast<short>(writing ? POLLIN | POLLOUT : POLLIN), .revents = 0});
    }
    const size_t first_link = fds.size();
    for (const auto& link : links_) {
      fds.push_back({.fd = link ? link->fd() : -1, .events = POLLIN, .revents = 0});
    }
    ::poll(fds.data(), fds.size(), options_.deadline.left_ms(200));
    listener_ready_ = fds[0].revents != 0;
    stirred_.clear();
    for (size_t r = 0; r < links_.size(); ++r) {
      if (fds[first_link + r].revents != 0) stirred_.push_back(r);
    }
  }

  Status step() {
    accept_some();
    for (auto it = pending_.begin(); it != pending_.end();) {
      bool keep = true;
      WEFT_RETURN_IF_ERROR(advance(*it, &keep));
      it = keep ? std::next(it) : pending_.erase(it);
    }
    for (const size_t r : stirred_) {
      if (!links_[r]->fill()) {
        return error(weftRemoteError, "{} died or gave up while the job waited for {} other ranks", names_[r],
                     options_.size - joined_);
      }
    }
    return {};
  }

  void accept_some() {
    if (!listener_ready_) return;
    bool any = false;
    while (make_room()) {
      Fd fd = options_.listener->accept();
      if (!fd) break;
      any = true;
      auto remote = SocketAddress::remote(fd.get());
      pending_.push_back(
          {.handshake = {std::move(fd), Handshake::accept(options_.id.secret, options_.id.group, kToRoot)},
           .link = nullptr,
           .remote = remote.ok() ? *remote : SocketAddress()});
    }
    // Ready and yet nothing to take: out of descriptors, or no room. Not a reason to spin.
    if (!any) std::this_thread::sleep_for(milliseconds(5));
  }

  bool make_room() {
    if (pending_.size() < kMaxPending) return true;
    const auto oldest = std::find_if(pending_.begin(), pending_.end(), [](const Pending& pending) {
      return !pending.link && Clock::now() - pending.since > kPendingMinimum;
    });
    if (oldest == pending_.end()) return false;
    pending_.erase(oldest);
    return true;
  }

  Status advance(Pending& pending, bool* keep) {
    if (!pending.link) *keep = authenticate(pending);
    if (pending.link) {
      const bool alive = pending.link->fill();
      if (auto frame = pending.link->next()) {
        *keep = false;
        return admit(pending, *frame);
      }
      if (!alive) *keep = false;
    }
    if (Clock::now() - pending.since > kPendingTime) *keep = false;
    return {};
  }

  bool authenticate(Pending& pending) {
    Status why;
    switch (pending.handshake.advance(&why)) {
      case HandshakeSocket::Step::again:
        return true;
      case HandshakeSocket::Step::closed:
        return false;
      case HandshakeSocket::Step::failed: {
        std::string note = fmt::format("a connection from {} was refused: {}", pending.remote.format(), why.message());
        log(LogLevel::info, "bootstrap: {}", note);
        if (refused_.size() < 3) refused_.push_back(std::move(note));
        return false;
      }
      case HandshakeSocket::Step::done:
        break;
    }
    if (pending.handshake.hello().purpose != kPurposeJoin) return false;
    pending.link = std::make_unique<FrameSocket>(pending.handshake.release(), kMaxJoinFrame);
    return true;
  }

  Status admit(Pending& pending, const Frame& frame) {
    ByteReader reader(frame.body);
    const auto rank = reader.get<int32_t>();
    const auto size = reader.get<int32_t>();
    const auto pid = reader.get<int64_t>();
    const std::string who = describe_rank(rank, reader.text(), pid);
    Status status;
    if (frame.type != FrameType::join || !reader.ok()) {
      status = error(weftInternalError, "bootstrap: {} sent a malformed join message", pending.remote.format());
    } else if (size != options_.size) {
      status = error(weftInvalidUsage, "the ranks disagree on the size of the job: {} says {}, {} says {}", who, size,
                     names_[static_cast<size_t>(options_.rank)], options_.size);
    } else if (rank < 0 || rank >= size) {
      status = error(weftInvalidUsage, "{} is no rank of a job of {}: legal is 0..{}", who, size, size - 1);
    } else if (!names_[static_cast<size_t>(rank)].empty()) {
      status = error(weftInvalidUsage, "two processes claim rank {}: {} and {}", rank,
                     names_[static_cast<size_t>(rank)], who);
    }
    if (!status.ok()) {
      extra_.push_back(std::move(pending.link));
      return status;
    }
    names_[static_cast<size_t>(rank)] = who;
    pending.link->set_max_frame(FrameSocket::kMaxFrame);
    links_[static_cast<size_t>(rank)] = std::move(pending.link);
    ++joined_;
    log(LogLevel::debug, "bootstrap: {} joined from {}, {} of {} are here", who, pending.remote.format(), joined_,
        size);
    return {};
  }

  Status never_came() const {
    std::string list;
    int count = 0;
    for (int r = 0; r < options_.size; ++r) {
      if (!names_[static_cast<size_t>(r)].empty() || ++count > 32) continue;
      list += fmt::format("{}{}", list.empty() ? "" : ", ", r);
    }
    if (count > 32) list += fmt::format(" and {} more", count - 32);
    std::string notes;
    for (const std::string& note : refused_) notes += "; " + note;
    return error(weftTimeout, "timed out: rank{} {} of {} never joined at {}{}", count == 1 ? "" : "s", list,
                 options_.size, options_.listener->address(), notes);
  }

  // Everybody who is here is told why, and given the time to read it: a reset would destroy the message.
  Status give_up(const Status& why) {
    std::string body;
    put(body, static_cast<int32_t>(why.code()));
    const SharedBytes frame = encode_frame(FrameType::refuse, body + why.message());
    if (!options_.keep_listening) options_.listener->close();
    for (auto& link : links_) {
      if (link) extra_.push_back(std::move(link));
    }
    for (auto& pending : pending_) {
      if (pending.link) extra_.push_back(std::move(pending.link));
    }
    for (auto& link : extra_) {
      link->queue(frame);
      if (link->flush()) ::shutdown(link->fd(), SHUT_WR);
    }
    const Deadline deadline = Deadline::after(kFarewell);
    while (!extra_.empty() && !deadline.passed()) {
      std::vector<pollfd> fds;
      for (const auto& link : extra_) fds.push_back({.fd = link->fd(), .events = POLLIN, .revents = 0});
      ::poll(fds.data(), fds.size(), deadline.left_ms(100));
      std::erase_if(extra_, [](auto& link) {
        const bool alive = link->fill();
        while (link->next()) continue;
        return !alive;
      });
    }
    return why;
  }

  Result<std::unique_ptr<Bootstrap>> welcome() {
    // First nobody listens any more, then the ranks go on: one that is quick to start the next job at the same port
    // must not land here.
    if (!options_.keep_listening) options_.listener->close();
    uint64_t session = 0;
    WEFT_RETURN_IF_ERROR(random_bytes({reinterpret_cast<uint8_t*>(&session), sizeof session}));
    std::string body;
    put(body, static_cast<int32_t>(options_.rank));
    put(body, session);
    put_text(body, names_[static_cast<size_t>(options_.rank)]);
    const SharedBytes frame = encode_frame(FrameType::welcome, body);
    for (auto& link : links_) {
      if (!link) continue;
      link->queue(frame);
      link->flush();  // what does not go now, or fails, is the star's business
    }
    return Star::create({.rank = options_.rank,
                         .size = options_.size,
                         .root = options_.rank,
                         .session = session,
                         .names = std::move(names_)},
                        std::move(links_));
  }

  JoinOptions options_;
  int joined_ = 1;
  bool listener_ready_ = false;
  std::vector<size_t> stirred_;  // ranks that have joined and then said something: as a rule that they are gone
  std::list<Pending> pending_;
  std::vector<std::unique_ptr<FrameSocket>> links_;
  std::vector<std::unique_ptr<FrameSocket>> extra_;  // to be told of a failure, without a place of their own
  std::vector<std::string> names_;                   // empty: not here yet
  std::vector<std::string> refused_;
};

}  // namespace

Result<std::unique_ptr<Bootstrap>> join_as_root(JoinOptions options) { return RootJoin(std::move(options)).run(); }

}  // namespace weft
