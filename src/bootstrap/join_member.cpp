// A member's side of join(): finds the root, proves the secret, and waits until all are there.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "bootstrap/bytes.hpp"
#include "bootstrap/interfaces.hpp"
#include "bootstrap/join.hpp"
#include "bootstrap/star.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

using std::chrono::milliseconds;

// How long "refused" may last where somebody listened before the id was handed out.
constexpr milliseconds kRefusedTime{1000};
// With several addresses to try, one that swallows packets must not use up the time of the others.
constexpr milliseconds kOneOfSeveral{3000};
// The root's verdict at its deadline, which is about ours, tells who is missing.
constexpr milliseconds kVerdictTime{1000};

bool wait_for(int fd, short events, Deadline deadline) {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  while (true) {
    const int ready = ::poll(&entry, 1, deadline.left_ms(1000));
    if (ready > 0) return true;
    if (deadline.passed()) return false;
  }
}

// Connected, or *number says why not (ETIMEDOUT when the deadline passed).
Fd connect_to(const SocketAddress& address, Deadline deadline, int* number) {
  errno = 0;
  auto fd = start_connect(address);
  if (!fd.ok()) {
    *number = errno != 0 ? errno : EHOSTUNREACH;
    return {};
  }
  if (!wait_for(fd->get(), POLLOUT, deadline)) {
    *number = ETIMEDOUT;
    return {};
  }
  socklen_t bytes = sizeof *number;
  ::getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, number, &bytes);
  if (*number != 0) return {};
  // A socket that retries a free local port can meet itself there.
  auto here = SocketAddress::local(fd->get());
  if (here.ok() && here->same_host(address) && here->port() == address.port()) {
    *number = ECONNREFUSED;
    return {};
  }
  return std::move(*fd);
}

// Whether this host could reach addresses of the family at all.
bool has_family(int family) {
  auto interfaces = list_interfaces();
  if (!interfaces.ok()) return true;
  return std::any_of(interfaces->begin(), interfaces->end(), [family](const Interface& entry) {
    return entry.up && entry.address.family() == family && !entry.address.is_loopback() &&
           !entry.address.is_link_local();
  });
}

bool is_unroutable(int number) {
  return number == ENETUNREACH || number == EAFNOSUPPORT || number == EADDRNOTAVAIL || number == EHOSTUNREACH ||
         number == EACCES;
}

std::string text_of(int number) { return system_error(number, "").message().substr(2); }

class MemberJoin {
 public:
  explicit MemberJoin(JoinOptions options) : options_(std::move(options)) {}

  Result<std::unique_ptr<Bootstrap>> run() {
    milliseconds pause{5};
    while (true) {
      WEFT_RETURN_IF_ERROR(look_up());
      for (const SocketAddress& address : addresses_) {
        Fd fd = connect_to(address, patience(), &number_);
        if (fd) {
          bool again = false;
          auto joined = talk(address, std::move(fd), &again);
          if (!again) return joined;
        }
        WEFT_RETURN_IF_ERROR(check_refusal(address));
      }
      if (options_.deadline.passed()) return unreachable();
      std::this_thread::sleep_for(std::min(pause, milliseconds(options_.deadline.left_ms())));
      pause = std::min(pause * 2, milliseconds(100));
    }
  }

 private:
  Deadline patience() const {
    return addresses_.size() > 1 ? options_.deadline.within(kOneOfSeveral) : options_.deadline;
  }

  // A name may only come into being while the job starts, so that is tried until the deadline too.
  Status look_up() {
    if (!addresses_.empty()) return {};
    const int family = options_.config == nullptr ? AF_UNSPEC : family_of(options_.config->socket_family);
    auto found = SocketAddress::resolve(options_.id.address, family);
    if (found.ok()) {
      addresses_ = std::move(*found);
      return {};
    }
    if (found.status().code() == weftSystemError && !options_.deadline.passed()) {
      std::this_thread::sleep_for(milliseconds(100));
      return {};
    }
    return error(found.status().code(), "rank {} cannot find the root of the job: {}", options_.rank,
                 found.status().message());
  }

  Status check_refusal(const SocketAddress& address) {
    if (is_unroutable(number_) && !address.is_loopback() && addresses_.size() == 1 && !has_family(address.family())) {
      return error(weftSystemError,
                   "the root of the job advertises the {} address {}, but this host of rank {} has no {} address: set "
                   "WEFT_SOCKET_FAMILY, or WEFT_SOCKET_IFNAME, at the root",
                   family_name(address.family()), address.format(), options_.rank, family_name(address.family()));
    }
    if (number_ != ECONNREFUSED && number_ != ECONNRESET) {
      refused_since_ = {};
      return {};
    }
    if (!refused_since_) refused_since_ = Clock::now();
    if (options_.id.listening && Clock::now() - *refused_since_ > kRefusedTime) {
      return error(
          weftInvalidUsage,
          "nobody listens at {} any more: the unique id was used already (an id is good for one communicator), "
          "or the process that made it is gone",
          options_.id.address);
    }
    return {};
  }

  Status unreachable() const {
    return error(weftTimeout,
                 "rank {} timed out: the root of the job was not to be reached at {} ({}); is that process up, and the "
                 "address the right one (WEFT_SOCKET_IFNAME, WEFT_ADVERTISE)?",
                 options_.rank, options_.id.address, text_of(number_));
  }

  // *again: the connection broke before anything was said; the root may be there later.
  Result<std::unique_ptr<Bootstrap>> talk(const SocketAddress& address, Fd fd, bool* again) {
    HandshakeSocket handshake(
        std::move(fd),
        Handshake::connect(
            options_.id.secret,
            {.purpose = kPurposeJoin, .group = options_.id.group, .from = options_.rank, .to = kToRoot, .channel = 0}));
    Status why;
    HandshakeSocket::Step step;
    while ((step = handshake.advance(&why)) == HandshakeSocket::Step::again) {
      if (!wait_for(handshake.fd(), static_cast<short>(handshake.writing() ? POLLIN | POLLOUT : POLLIN),
                    options_.deadline)) {
        return error(weftTimeout,
                     "rank {} timed out: {} accepts connections but does not answer, so it is not the root of this "
                     "job: another program holds that port, or the process that made the id is no rank of the job",
                     options_.rank, address.format());
      }
    }
    if (step == HandshakeSocket::Step::failed) {
      return error(why.code(), "rank {} is not welcome at {}: {}", options_.rank, address.format(), why.message());
    }
    if (step == HandshakeSocket::Step::closed) {
      number_ = ECONNRESET;
      *again = true;
      return Status(weftRemoteError, "");
    }
    return join(address, std::make_unique<FrameSocket>(handshake.release()));
  }

  Result<std::unique_ptr<Bootstrap>> join(const SocketAddress& address, std::unique_ptr<FrameSocket> link) {
    std::string body;
    put(body, static_cast<int32_t>(options_.rank));
    put(body, static_cast<int32_t>(options_.size));
    put(body, static_cast<int64_t>(::getpid()));
    put_text(body, this_host());
    link->queue(encode_frame(FrameType::join, body));
    link->flush();  // a fresh socket takes so few bytes
    const Deadline verdict = options_.deadline.later_by(kVerdictTime);
    while (true) {
      const bool alive = link->fill();
      if (auto frame = link->next()) return conclude(*frame, std::move(link));
      if (!alive) {
        return error(weftRemoteError, "the root of the job at {} died or gave up while rank {} was joining",
                     address.format(), options_.rank);
      }
      if (!wait_for(link->fd(), POLLIN, verdict)) {
        return error(weftTimeout, "rank {} timed out: it has joined at {}, but not all of the {} ranks did",
                     options_.rank, address.format(), options_.size);
      }
    }
  }

  Result<std::unique_ptr<Bootstrap>> conclude(const Frame& frame, std::unique_ptr<FrameSocket> link) {
    ByteReader reader(frame.body);
    if (frame.type == FrameType::refuse) {
      const auto code = static_cast<weftResult_t>(reader.get<int32_t>());
      return Status(code, std::string(reader.rest()));
    }
    const auto root = reader.get<int32_t>();
    const auto session = reader.get<uint64_t>();
    std::string name(reader.text());
    if (frame.type != FrameType::welcome || !reader.ok() || root < 0 || root >= options_.size) {
      return error(weftInternalError, "bootstrap: the root sent a malformed welcome");
    }
    std::vector<std::unique_ptr<FrameSocket>> links(static_cast<size_t>(options_.size));
    std::vector<std::string> names(static_cast<size_t>(options_.size));
    links[static_cast<size_t>(root)] = std::move(link);
    names[static_cast<size_t>(root)] = std::move(name);
    return Star::create(
        {.rank = options_.rank, .size = options_.size, .root = root, .session = session, .names = std::move(names)},
        std::move(links));
  }

  JoinOptions options_;
  std::vector<SocketAddress> addresses_;
  int number_ = EHOSTUNREACH;  // errno of the last attempt
  std::optional<Clock::time_point> refused_since_;
};

}  // namespace

std::string describe_rank(int rank, std::string_view host, int64_t pid) {
  return fmt::format("rank {} (host {}, pid {})", rank, host, pid);
}

std::string this_host() {
  char name[256] = "?";
  ::gethostname(name, sizeof name - 1);
  return name;
}

Result<std::unique_ptr<Bootstrap>> join_as_member(JoinOptions options) { return MemberJoin(std::move(options)).run(); }

Status aborted_in_setup(int rank) {
  return error(weftAborted, "weftCommAbort was called on rank {} while it set up", rank);
}

ProbeResult probe_root(const SocketAddress& address, const Secret& secret, uint64_t group, Deadline deadline) {
  int number = 0;
  Fd fd = connect_to(address, deadline, &number);
  if (!fd) {
    return {number == ECONNREFUSED ? Probe::refused : Probe::unreachable, system_error(number, address.format())};
  }
  HandshakeSocket handshake(
      std::move(fd),
      Handshake::connect(secret, {.purpose = kPurposeProbe, .group = group, .from = 0, .to = kToRoot, .channel = 0}));
  Status why;
  while (true) {
    switch (handshake.advance(&why)) {
      case HandshakeSocket::Step::done:
        return {Probe::ours, {}};
      case HandshakeSocket::Step::failed:
        return {Probe::foreign, why};
      case HandshakeSocket::Step::closed:
        return {handshake.heard() ? Probe::foreign : Probe::refused,
                error(weftRemoteError, "{} closed the connection", address.format())};
      case HandshakeSocket::Step::again:
        break;
    }
    if (!wait_for(handshake.fd(), static_cast<short>(handshake.writing() ? POLLIN | POLLOUT : POLLIN), deadline)) {
      return {Probe::mute, error(weftTimeout, "{} accepts connections but does not answer", address.format())};
    }
  }
}

Result<std::unique_ptr<Bootstrap>> join(JoinOptions options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return error(weftInvalidArgument, "rank {} of {} is no rank: legal is 0 <= rank < size", options.rank,
                 options.size);
  }
  if (options.size == 1 || options.listener) {
    if (!options.listener)
      return Star::create({.rank = 0, .size = 1, .root = 0, .session = 0, .names = {}},
                          std::vector<std::unique_ptr<FrameSocket>>(1));
    return join_as_root(std::move(options));
  }
  return join_as_member(std::move(options));
}

}  // namespace weft
