#include "bootstrap/star.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "bootstrap/bytes.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMaxAlert = 64 << 10;
constexpr size_t kMaxAlertQueue = 4 << 20;
// Of one all_gather, all ranks together: the result is one frame.
constexpr size_t kMaxGather = FrameSocket::kMaxFrame - 4096;
// A member waits this much longer than the root, so that it hears from it who is missing.
constexpr milliseconds kGrace{700};
constexpr milliseconds kLinger{500};
constexpr int kPausedLookMs = 2;  // how often a round looks at what another thread may have taken in for it

std::string from_body(int from, std::string_view text = {}) {
  std::string body;
  put(body, static_cast<int32_t>(from));
  body += text;
  return body;
}

}  // namespace

Star::Star(Options options, std::vector<std::unique_ptr<FrameSocket>> links)
    : options_(std::move(options)),
      links_(std::move(links)),
      writing_(links_.size()),
      presence_(links_.size(), Presence::here),
      contributions_(links_.size()),
      pid_(::getpid()) {}

Result<std::unique_ptr<Bootstrap>> Star::create(Options options, std::vector<std::unique_ptr<FrameSocket>> links) {
  std::unique_ptr<Star> star(new Star(std::move(options), std::move(links)));
  WEFT_RETURN_IF_ERROR(star->watch());
  return std::unique_ptr<Bootstrap>(std::move(star));
}

Status Star::watch() {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  doorbell_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !doorbell_) return system_error(errno, "epoll_create1, eventfd");
  epoll_event event{.events = EPOLLIN, .data = {.u64 = links_.size()}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, doorbell_.get(), &event) != 0) return system_error(errno, "epoll_ctl");
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    if (!links_[peer]) continue;
    event = {.events = EPOLLIN, .data = {.u64 = peer}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, links_[peer]->fd(), &event) != 0) {
      return system_error(errno, "epoll_ctl");
    }
  }
  // What came in the same packets as the last bytes of the join waits in the links' buffers already.
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    while (links_[peer]) {
      auto frame = links_[peer]->next();
      if (!frame) break;
      handle(static_cast<int>(peer), std::move(*frame));
    }
    if (links_[peer] && links_[peer]->queued() > 0) queue(static_cast<int>(peer), nullptr);
  }
  return {};
}

std::string Star::name(int peer) const {
  const auto at = static_cast<size_t>(peer);
  return at < options_.names.size() && !options_.names[at].empty() ? options_.names[at] : fmt::format("rank {}", peer);
}

// ---- moving bytes

void Star::pump(int timeout_ms) {
  epoll_event ready[64];
  const int count = ::epoll_wait(epoll_.get(), ready, std::size(ready), timeout_ms);
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(ready[i].data.u64);
    if (at >= links_.size() || !links_[at]) continue;
    const int peer = static_cast<int>(at);
    if ((ready[i].events & EPOLLOUT) != 0) queue(peer, nullptr);
    if ((ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read_link(peer);
  }
}

void Star::wait(int timeout_ms, const Pause& pause) {
  if (!pause) return pump(timeout_ms);
  pause([this, timeout_ms] {
    pollfd ready{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, std::min(timeout_ms, kPausedLookMs));
  });
  pump(0);
}

void Star::read_link(int peer) {
  auto& link = links_[static_cast<size_t>(peer)];
  const bool alive = link && link->fill();
  while (link) {
    auto frame = link->next();
    if (!frame) break;
    handle(peer, std::move(*frame));
  }
  if (!alive && link) gone(peer, Presence::lost);
}

// Also carries on with what is queued already; a broken link is left to read_link, which first takes what came in.
void Star::queue(int peer, const SharedBytes& frame) {
  auto& link = links_[static_cast<size_t>(peer)];
  if (!link) return;
  if (frame) link->queue(frame);
  want_writes(peer, link->flush() && link->queued() > 0);
}

void Star::relay(int except, const SharedBytes& frame) {
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer != except) queue(peer, frame);
  }
}

void Star::want_writes(int peer, bool on) {
  const auto at = static_cast<size_t>(peer);
  if (writing_[at] == on) return;
  writing_[at] = on;
  epoll_event event{.events = EPOLLIN | (on ? uint32_t{EPOLLOUT} : 0), .data = {.u64 = at}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, links_[at]->fd(), &event);
}

// ---- who says what

void Star::handle(int peer, Frame frame) {
  if (is_root()) {
    handle_as_root(peer, frame);
  } else {
    handle_as_member(frame);
  }
}

void Star::handle_as_root(int peer, const Frame& frame) {
  ByteReader reader(frame.body);
  switch (frame.type) {
    case FrameType::contribute: {
      const auto round = reader.get<uint32_t>();
      // A member is at most one round ahead; what is of an earlier, failed round is of no use.
      if (round >= round_) contributions_[static_cast<size_t>(peer)][round] = reader.rest();
      break;
    }
    case FrameType::alert:
      reader.get<int32_t>();
      push({Control::Kind::alert, peer, std::string(reader.rest())});
      relay(peer, encode_frame(FrameType::alert, from_body(peer, reader.rest())));
      break;
    case FrameType::left:
      gone(peer, Presence::left);
      break;
    default:
      log(LogLevel::warn, "bootstrap: {} sent a message of unknown kind {}", name(peer), int(frame.type));
  }
}

void Star::handle_as_member(const Frame& frame) {
  ByteReader reader(frame.body);
  switch (frame.type) {
    case FrameType::gathered: {
      const auto round = reader.get<uint32_t>();
      std::vector<std::string> all;
      for (int r = 0; r < options_.size; ++r) all.emplace_back(reader.text());
      if (reader.ok()) {
        results_.insert_or_assign(round, std::move(all));
      } else {
        results_.insert_or_assign(round, error(weftInternalError, "bootstrap: the root's message is cut short"));
      }
      break;
    }
    case FrameType::failed: {
      const auto round = reader.get<uint32_t>();
      const auto code = static_cast<weftResult_t>(reader.get<int32_t>());
      results_.insert_or_assign(round, Status(code, std::string(reader.rest())));
      break;
    }
    case FrameType::alert: {
      const int from = reader.get<int32_t>();
      push({Control::Kind::alert, from, std::string(reader.rest())});
      break;
    }
    case FrameType::lost:
    case FrameType::left: {
      const int from = reader.get<int32_t>();
      if (from >= 0 && from < options_.size) {
        gone(from, frame.type == FrameType::left ? Presence::left : Presence::lost);
      }
      break;
    }
    default:
      log(LogLevel::warn, "bootstrap: the root sent a message of unknown kind {}", int(frame.type));
  }
}

void Star::gone(int peer, Presence how) {
  const auto at = static_cast<size_t>(peer);
  drop_link(peer);
  if (presence_[at] != Presence::here) return;
  presence_[at] = how;
  push({how == Presence::left ? Control::Kind::left : Control::Kind::lost, peer, {}});
  if (is_root()) relay(peer, encode_frame(how == Presence::left ? FrameType::left : FrameType::lost, from_body(peer)));
}

void Star::drop_link(int peer) {
  // Closing takes it out of the epoll set, unless a forked process has inherited it.
  auto& link = links_[static_cast<size_t>(peer)];
  if (!link) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link->fd(), nullptr);
  link.reset();
  writing_[static_cast<size_t>(peer)] = false;
}

void Star::push(Control control) {
  if (events_.empty()) ::eventfd_write(doorbell_.get(), 1);
  events_.push_back(std::move(control));
}

// ---- rounds

Result<std::vector<std::string>> Star::all_gather(const std::string& mine, Deadline deadline, const Pause& pause) {
  if (left_ || ::getpid() != pid_) {
    return error(weftInvalidUsage, "rank {} has left the communicator, or was forked off it", options_.rank);
  }
  ++round_;
  if (mine.size() > kMaxGather / static_cast<size_t>(options_.size)) {
    return error(weftInvalidArgument, "bootstrap all_gather of {} bytes from rank {} is above the limit of {}",
                 mine.size(), options_.rank, kMaxGather / static_cast<size_t>(options_.size));
  }
  return is_root() ? gather_as_root(mine, deadline, pause) : gather_as_member(mine, deadline, pause);
}

Status Star::missing(const std::vector<int>& ranks, Presence how) const {
  std::string list;
  for (size_t i = 0; i < ranks.size() && i < 16; ++i) list += (i == 0 ? "" : ", ") + name(ranks[i]);
  if (ranks.size() > 16) list += fmt::format(" and {} more", ranks.size() - 16);
  switch (how) {
    case Presence::here:
      return error(weftTimeout, "set-up timed out: no word from {}", list);
    case Presence::left:
      return error(weftRemoteError, "{} left the communicator while others set up", list);
    case Presence::lost:
      break;
  }
  return error(weftRemoteError, "{} died or closed its connection", list);
}

Star::Gathered Star::gather_as_root(const std::string& mine, Deadline deadline, const Pause& pause) {
  std::vector<std::string> all(static_cast<size_t>(options_.size));
  const auto fail = [this](const Status& why) -> Gathered {
    std::string body;
    put(body, round_);
    put(body, static_cast<int32_t>(why.code()));
    relay(-1, encode_frame(FrameType::failed, body + why.message()));
    return why;
  };
  contributions_[static_cast<size_t>(options_.rank)][round_] = mine;
  while (true) {
    std::vector<int> awaited, gone_ranks;
    Presence how = Presence::left;
    for (int r = 0; r < options_.size; ++r) {
      const auto at = static_cast<size_t>(r);
      if (contributions_[at].contains(round_)) continue;
      (presence_[at] == Presence::here ? awaited : gone_ranks).push_back(r);
      if (presence_[at] == Presence::lost) how = Presence::lost;
    }
    if (!gone_ranks.empty()) return fail(missing(gone_ranks, how));
    if (awaited.empty()) break;
    if (deadline.cancelled()) return fail(aborted_in_setup(options_.rank));
    if (deadline.passed()) return fail(missing(awaited, Presence::here));
    wait(deadline.left_ms(1000), pause);
  }
  size_t total = 0;
  std::string body;
  put(body, round_);
  for (size_t r = 0; r < all.size(); ++r) {
    all[r] = std::move(contributions_[r][round_]);
    contributions_[r].erase(contributions_[r].begin(), contributions_[r].upper_bound(round_));
    total += all[r].size() + 4;
    if (total <= kMaxGather) put_text(body, all[r]);
  }
  if (total > kMaxGather) {
    return fail(
        error(weftInvalidArgument, "bootstrap all_gather of {} bytes is above the limit of {}", total, kMaxGather));
  }
  relay(-1, encode_frame(FrameType::gathered, body));
  WEFT_RETURN_IF_ERROR(flush_all(deadline));
  return all;
}

Status Star::flush_all(Deadline deadline) {
  while (true) {
    std::vector<int> slow;
    for (int peer = 0; peer < options_.size; ++peer) {
      if (writing_[static_cast<size_t>(peer)]) slow.push_back(peer);
    }
    if (slow.empty()) return {};
    if (deadline.passed()) return missing(slow, Presence::here);
    pump(deadline.left_ms(1000));
  }
}

Star::Gathered Star::gather_as_member(const std::string& mine, Deadline deadline, const Pause& pause) {
  const auto root = static_cast<size_t>(options_.root);
  std::string body;
  put(body, round_);
  queue(options_.root, encode_frame(FrameType::contribute, body + mine));
  // The root's word on this round may be here before we came to it: it fails a round at once where a rank is gone.
  results_.erase(results_.begin(), results_.lower_bound(round_));
  const Deadline patience = deadline.later_by(kGrace);
  while (true) {
    // The result may stand before the root's goodbye in the stream, so it counts even where the root is gone.
    if (auto result = results_.extract(round_)) return std::move(result.mapped());
    if (presence_[root] != Presence::here) return missing({options_.root}, presence_[root]);
    if (deadline.cancelled()) return aborted_in_setup(options_.rank);
    if (patience.passed()) return missing({options_.root}, Presence::here);
    wait(patience.left_ms(1000), pause);
  }
}

// ---- control plane

void Star::send(const std::string& text) {
  if (left_ || ::getpid() != pid_) return;
  const SharedBytes frame =
      encode_frame(FrameType::alert, from_body(options_.rank, std::string_view(text).substr(0, kMaxAlert)));
  for (int peer = 0; peer < options_.size; ++peer) {
    const auto& link = links_[static_cast<size_t>(peer)];
    if (link && link->queued() > kMaxAlertQueue) {
      log(LogLevel::warn, "bootstrap: {} does not read; an alert to it is dropped", name(peer));
    } else {
      queue(peer, frame);
    }
  }
}

std::optional<Control> Star::poll() {
  if (left_ || ::getpid() != pid_) return std::nullopt;
  if (events_.empty()) pump(0);
  if (events_.empty()) return std::nullopt;
  Control control = std::move(events_.front());
  events_.pop_front();
  if (events_.empty()) {
    eventfd_t count;
    ::eventfd_read(doorbell_.get(), &count);
  }
  return control;
}

void Star::leave() {
  if (left_ || ::getpid() != pid_) return;
  relay(-1, encode_frame(FrameType::left, from_body(options_.rank)));
  events_.clear();
  eventfd_t count;
  ::eventfd_read(doorbell_.get(), &count);
  linger();
  left_ = true;
}

// A socket that is closed with unread bytes in it sends a reset, which may destroy a goodbye that is still on its way.
// So what comes in is read and dropped until the peer's kernel has everything, or the peer has closed too.
void Star::linger() {
  const Deadline deadline = Deadline::after(kLinger);
  for (int wait_ms = 0; !deadline.passed(); wait_ms = 1) {
    epoll_event ready[1];
    ::epoll_wait(epoll_.get(), ready, 1, wait_ms);
    bool any_open = false;
    for (int peer = 0; peer < options_.size; ++peer) {
      auto& link = links_[static_cast<size_t>(peer)];
      if (!link) continue;
      const bool alive = link->flush() && link->fill();
      while (link->next()) continue;
      if (!alive || (link->queued() == 0 && link->unacknowledged() == 0)) {
        drop_link(peer);
      } else {
        any_open = true;
      }
    }
    if (!any_open) return;
  }
  for (int peer = 0; peer < options_.size; ++peer) drop_link(peer);
}

}  // namespace weft
