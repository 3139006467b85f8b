#include "transports/connector.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "bootstrap/address.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

using std::chrono::milliseconds;

// Longest time that somebody who connects to us may take to prove who they are.
constexpr milliseconds kHandshakeTime{5000};
// Connections that are being proved at once; further ones wait in the kernel's queue.
constexpr size_t kMostStrangers = 128;
// What each of them has at least when there are so many.
constexpr milliseconds kGrace{500};
constexpr milliseconds kFirstPause{1}, kLongestPause{100};
// The acceptor's last word. Until the dialler has it, a closed connection only means that it took too long to prove
// itself, and it tries again.
constexpr char kWelcome = '\x06';
constexpr char kClosed[] = "closed during the handshake";

std::string describe(const sockaddr_storage& address, uint32_t bytes) {
  if (address.ss_family != AF_UNIX) {
    return SocketAddress(reinterpret_cast<const sockaddr*>(&address), bytes).format();
  }
  const auto& name = reinterpret_cast<const sockaddr_un&>(address);
  const size_t length = bytes - offsetof(sockaddr_un, sun_path);
  if (length == 0) return "an unnamed socket";
  if (name.sun_path[0] != '\0') return std::string(name.sun_path, strnlen(name.sun_path, length));
  return "@" + std::string(name.sun_path + 1, length - 1);
}

// Nobody listens there yet, or not any more, or the network is in the way: worth another try.
bool passing(int number) {
  switch (number) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case ETIMEDOUT:
    case EAGAIN:
    case ENOENT:
    case EPIPE:
    case EINTR:
    case EADDRNOTAVAIL:
    case ENOBUFS:
      return true;
    default:
      return false;
  }
}

}  // namespace

struct Connector::Pending {
  enum class Stage : uint8_t { pause, connecting, shaking, welcome };
  enum class Step : uint8_t { again, moved, done, closed, hopeless };

  Stage stage = Stage::pause;
  bool accepted = false;
  Fd fd;
  std::optional<Handshake> shake;
  Hello hello;
  sockaddr_storage address{};
  uint32_t address_bytes = 0;
  Deadline deadline = Deadline::never();
  Clock::time_point retry_at{};
  milliseconds pause = kFirstPause;
  std::string out, in;  // bytes to send; bytes of the handshake message that is coming in
  std::string trouble;  // of the last try

  Step step(const Secret& secret);
  Step start();
  Step connected(const Secret& secret);
  Step shake_on();
  Step await_welcome();
  Step write();
  Step closed(const char* what, int number);
};

Connector::Pending::Step Connector::Pending::closed(const char* what, int number) {
  trouble = number == 0 ? what : system_error(number, what).message();
  return accepted || (number != 0 && !passing(number)) ? Step::hopeless : Step::closed;
}

Connector::Pending::Step Connector::Pending::start() {
  fd = Fd(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return closed("socket", errno);
  if (address.ss_family != AF_UNIX) tune_stream(fd.get());
  stage = Stage::connecting;
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), address_bytes) == 0) return Step::moved;
  return errno == EINPROGRESS ? Step::moved : closed("connect", errno);
}

Connector::Pending::Step Connector::Pending::connected(const Secret& secret) {
  pollfd wait{fd.get(), POLLOUT, 0};
  if (::poll(&wait, 1, 0) <= 0) return Step::again;
  int number = 0;
  socklen_t bytes = sizeof number;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &number, &bytes);
  if (number != 0) return closed("connect", number);
  shake = Handshake::connect(secret, hello);
  stage = Stage::shaking;
  return Step::moved;
}

Connector::Pending::Step Connector::Pending::write() {
  if (out.empty()) return Step::moved;
  const ssize_t put = ::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (put < 0) return errno == EAGAIN || errno == EINTR ? Step::again : closed("handshake", errno);
  out.erase(0, static_cast<size_t>(put));
  return out.empty() ? Step::moved : Step::again;
}

Connector::Pending::Step Connector::Pending::shake_on() {
  if (out.empty()) out = shake->take_output();
  if (const Step step = write(); step != Step::moved) return step;
  if (shake->done()) {
    stage = Stage::welcome;
    return Step::moved;
  }
  const size_t have = in.size(), want = shake->wants();
  in.resize(want);
  const ssize_t got = ::recv(fd.get(), in.data() + have, want - have, MSG_DONTWAIT);
  in.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got == 0) return closed("closed during the handshake", 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Step::again : closed("handshake", errno);
  if (in.size() < want) return Step::moved;
  const Status fed = shake->feed({reinterpret_cast<const uint8_t*>(in.data()), in.size()});
  in.clear();
  if (fed.ok()) return Step::moved;
  trouble = fed.message();
  out = shake->take_output();
  write();
  return Step::hopeless;
}

Connector::Pending::Step Connector::Pending::await_welcome() {
  char byte = kWelcome;
  if (accepted) {
    const ssize_t put = ::send(fd.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put == 1) return Step::done;
    return errno == EAGAIN || errno == EINTR ? Step::again : closed("handshake", errno);
  }
  const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
  if (got == 0) return closed(kClosed, 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Step::again : closed("handshake", errno);
  if (byte == kWelcome) return Step::done;
  trouble = "not welcomed";
  return Step::hopeless;
}

Connector::Pending::Step Connector::Pending::step(const Secret& secret) {
  switch (stage) {
    case Stage::pause:
      return Clock::now() >= retry_at ? start() : Step::again;
    case Stage::connecting:
      return connected(secret);
    case Stage::shaking:
      return shake_on();
    case Stage::welcome:
      return await_welcome();
  }
  return Step::hopeless;
}

Connector::Connector(const TransportContext& context, char purpose, Fd listener, Ready ready, Failed failed)
    : context_(context),
      purpose_(purpose),
      listener_(std::move(listener)),
      ready_(std::move(ready)),
      failed_(std::move(failed)) {
  if (listener_) watch(listener_.get(), EPOLLIN);
}

Connector::~Connector() {
  for (Pending& pending : pending_) unwatch(pending.fd.get());
  unwatch(listener_.get());
  unwatch(timer_.get());
}

void Connector::watch(int fd, uint32_t events) {
  if (context_.poller == nullptr || fd < 0) return;
  if (const Status added = context_.poller->add(fd, events); !added.ok()) log(LogLevel::warn, "{}", added.message());
}
void Connector::unwatch(int fd) {
  if (context_.poller != nullptr && fd >= 0) context_.poller->remove(fd);
}

void Connector::dial(int peer, uint32_t channel, const sockaddr_storage& address, uint32_t address_bytes,
                     Deadline deadline) {
  Pending& pending = pending_.emplace_back();
  pending.hello = {static_cast<uint8_t>(purpose_), context_.group, context_.rank, peer, channel};
  pending.address = address;
  pending.address_bytes = address_bytes;
  pending.deadline = deadline;
  pending.retry_at = Clock::now();
  set_timer();
}

Status Connector::dial(int peer, uint32_t channels, const std::string& address, Deadline deadline) {
  auto found = SocketAddress::resolve(address, family_of(context_.config->socket_family));
  if (!found.ok()) return found.status();
  const SocketAddress& target = found->front();
  for (uint32_t channel = 0; channel < channels; ++channel) {
    dial(peer, channel, target.storage(), target.bytes(), deadline);
  }
  return {};
}

bool Connector::progress() {
  bool moved = false;
  if (resting_ && Clock::now() >= rest_until_) {
    resting_ = false;
    watch(listener_.get(), EPOLLIN);
  }
  // While nothing is under way this is called in a waiter's loop, and looks only now and then.
  if (listener_ && !resting_ && (!pending_.empty() || ++calls_ % 4 == 0)) moved |= accept();
  if (pending_.empty() && timer_at_ == Clock::time_point::max()) return moved;
  for (At at = pending_.begin(); at != pending_.end();) moved |= advance(at++);
  set_timer();
  return moved;
}

bool Connector::accept() {
  bool moved = false;
  for (;;) {
    pollfd wait{listener_.get(), POLLIN, 0};
    if (::poll(&wait, 1, 0) <= 0) {
      starved_by_ = 0;
      return moved;
    }
    if (strangers_ >= kMostStrangers && !make_room()) {
      rest();
      return moved;
    }
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return moved;
      // No descriptors left: try again later.
      if (starved_by_ == 0) starved_since_ = Clock::now();
      starved_by_ = errno;
      rest();
      return moved;
    }
    starved_by_ = 0;
    moved = true;
    ++strangers_;
    Pending& pending = pending_.emplace_back();
    pending.accepted = true;
    pending.stage = Pending::Stage::shaking;
    pending.deadline = Deadline::after(kHandshakeTime);
    pending.shake = Handshake::accept(context_.secret, context_.group, context_.rank);
    pending.fd = std::move(fd);
    if (purpose_ != 's') tune_stream(pending.fd.get());
    watch(pending.fd.get(), EPOLLIN);
  }
}

Status Connector::starving() const {
  if (starved_by_ == 0 || Clock::now() - starved_since_ < kGrace) return {};
  return system_error(starved_by_, "no connection can be accepted");
}

// Drops the connection that has been unproved longest, if it has had time enough. One of ours comes back.
bool Connector::make_room() {
  for (At at = pending_.begin(); at != pending_.end(); ++at) {
    if (!at->accepted) continue;
    if (at->deadline.at() - Clock::now() > kHandshakeTime - kGrace) return false;
    at->trouble = "others were waiting";
    give_up(at);
    return true;
  }
  return false;
}

// Takes no connections for a while: the listening socket must not keep a waiter awake meanwhile.
void Connector::rest() {
  resting_ = true;
  rest_until_ = Clock::now() + kLongestPause;
  unwatch(listener_.get());
}

// Carries one connection on as far as it goes; it may be gone afterwards.
bool Connector::advance(At at) {
  bool moved = false;
  for (;;) {
    const auto before = at->stage;
    const Pending::Step step = at->step(context_.secret);
    if (at->fd && before == Pending::Stage::pause) watch(at->fd.get(), EPOLLOUT);
    if (before == Pending::Stage::connecting && at->stage == Pending::Stage::shaking && context_.poller != nullptr) {
      context_.poller->modify(at->fd.get(), EPOLLIN);
    }
    if (step == Pending::Step::moved) {
      moved = true;
      continue;
    }
    if (step == Pending::Step::done) {
      finish(at);
      return true;
    }
    if (step == Pending::Step::hopeless || at->deadline.passed()) {
      give_up(at);
      return true;
    }
    if (step == Pending::Step::closed) retry(*at);
    return moved;
  }
}

void Connector::retry(Pending& pending) {
  unwatch(pending.fd.get());
  pending.fd.reset();
  pending.shake.reset();
  pending.out.clear();
  pending.in.clear();
  pending.stage = Pending::Stage::pause;
  pending.retry_at = Clock::now() + pending.pause;
  pending.pause = std::min(2 * pending.pause, kLongestPause);
}

void Connector::finish(At at) {
  unwatch(at->fd.get());
  const bool accepted = at->accepted;
  const Hello hello = accepted ? at->shake->hello() : at->hello;
  Fd fd = std::move(at->fd);
  pending_.erase(at);
  if (accepted) --strangers_;
  if (accepted && (hello.purpose != static_cast<uint8_t>(purpose_) || hello.from < 0 || hello.from >= context_.size ||
                   hello.from == context_.rank)) {
    log(LogLevel::warn, "dropped a connection of purpose {} from rank {}", hello.purpose, hello.from);
    return;
  }
  ready_(hello, accepted, std::move(fd));
}

void Connector::give_up(At at) {
  unwatch(at->fd.get());
  const bool accepted = at->accepted;
  const Hello hello = at->hello;
  const std::string trouble = at->trouble.empty() ? "no answer" : at->trouble;
  const bool silent = accepted && at->in.empty() && at->trouble.starts_with(kClosed);  // a look whether we are there
  const std::string where = accepted ? "" : describe(at->address, at->address_bytes);
  pending_.erase(at);
  if (accepted) {
    --strangers_;
    log(silent ? LogLevel::debug : LogLevel::info, "dropped a connection that did not prove to be ours: {}", trouble);
    return;
  }
  failed_(hello, error(weftRemoteError, "cannot connect to rank {} at {}: {}", hello.to, where, trouble));
}

// The timer stands at the earliest moment at which progress() has something to do that no descriptor tells of.
void Connector::set_timer() {
  if (context_.poller == nullptr) return;
  Clock::time_point at = resting_ ? rest_until_ : Clock::time_point::max();
  for (const Pending& pending : pending_) {
    at = std::min(at, pending.stage == Pending::Stage::pause ? pending.retry_at : pending.deadline.at());
  }
  if (at == timer_at_) return;
  timer_at_ = at;
  if (!timer_) {
    timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    watch(timer_.get(), EPOLLIN);
  }
  // Setting it also takes back that it went off. A time that is over goes off at once.
  itimerspec spec{};
  if (at != Clock::time_point::max()) {
    const auto since = std::max<int64_t>(std::chrono::nanoseconds(at.time_since_epoch()).count(), 1);
    spec.it_value.tv_sec = since / 1000000000;
    spec.it_value.tv_nsec = since % 1000000000;
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

}  // namespace weft
