#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

#include "bootstrap/meeting.hpp"

namespace weft {
namespace {

// One line out, one line back. The descriptor is the process's only one, and an MPI library may own it too: so nothing
// is read beyond the answer's end, and calls are one after the other.
class Pmi {
 public:
  Pmi(int fd, Deadline deadline) : fd_(fd), deadline_(deadline) {}

  Result<std::string> ask(const std::string& command, const std::string& answer) {
    WEFT_RETURN_IF_ERROR(write_line(command + "\n"));
    auto line = read_line();
    if (!line.ok()) return line;
    if (field(*line, "cmd") != answer) {
      return error(weftSystemError, "the MPI launcher answered \"{}\" to \"{}\"", *line, command);
    }
    const std::string rc = field(*line, "rc");
    if (!rc.empty() && rc != "0") {
      return error(weftSystemError, "the MPI launcher refused \"{}\": {}", command, *line);
    }
    return line;
  }

  static std::string field(const std::string& line, const std::string& name) {
    const std::string padded = " " + line;
    const size_t at = padded.find(" " + name + "=");
    if (at == std::string::npos) return {};
    const size_t begin = at + name.size() + 2;
    return padded.substr(begin, padded.find(' ', begin) - begin);
  }

 private:
  Status wait(short events) {
    pollfd entry{.fd = fd_, .events = events, .revents = 0};
    while (::poll(&entry, 1, deadline_.left_ms(1000)) <= 0) {
      if (deadline_.passed()) {
        return error(weftTimeout, "timed out at the MPI launcher's barrier (PMI): not all ranks of the job came");
      }
    }
    return {};
  }

  static Status lost() {
    return error(
        weftSystemError,
        "the connection to the MPI launcher (PMI_FD) is closed: after MPI_Finalize, or because the launcher died");
  }

  Status write_line(const std::string& line) {
    for (size_t at = 0; at < line.size();) {
      WEFT_RETURN_IF_ERROR(wait(POLLOUT));
      const ssize_t sent = ::send(fd_, line.data() + at, line.size() - at, MSG_NOSIGNAL);
      if (sent < 0 && errno != EINTR && errno != EAGAIN) return lost();
      if (sent > 0) at += static_cast<size_t>(sent);
    }
    return {};
  }

  Result<std::string> read_line() {
    std::string line;
    while (true) {
      WEFT_RETURN_IF_ERROR(wait(POLLIN));
      char c;
      const ssize_t got = ::read(fd_, &c, 1);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0 || line.size() > 4096) return lost();
      if (c == '\n') return line;
      line.push_back(c);
    }
  }

  int fd_;
  Deadline deadline_;
};

// Hydra takes a process that has spoken PMI and ends without a word for a crash, and kills the others. So, as MPI
// would, the process says that it ends well; unless MPI_Finalize did so and closed the descriptor, or another process
// holds it.
class Farewell {
 public:
  explicit Farewell(int fd) : fd_(fd), pid_(::getpid()) { ::fstat(fd_, &socket_); }
  ~Farewell() {
    struct stat now {};
    if (::getpid() != pid_ || ::fstat(fd_, &now) != 0 || now.st_dev != socket_.st_dev || now.st_ino != socket_.st_ino) {
      return;
    }
    (void)Pmi(fd_, Deadline::after(std::chrono::seconds(1))).ask("cmd=finalize", "finalize_ack").ok();
  }
  Farewell(const Farewell&) = delete;
  Farewell& operator=(const Farewell&) = delete;

 private:
  int fd_;
  pid_t pid_;
  struct stat socket_ {};
};

}  // namespace

Result<std::string> exchange_by_pmi(int fd, const std::string& key, const std::string& mine, Deadline deadline) {
  static std::mutex mutex;
  static bool unusable = false;
  const std::lock_guard lock(mutex);
  static const Farewell farewell(fd);
  if (unusable) {
    return error(
        weftInvalidUsage,
        "the MPI launcher's exchange (PMI) cannot be used any more: an earlier weftCommInitEnv timed out in it");
  }
  Pmi pmi(fd, deadline);
  auto name = pmi.ask("cmd=get_my_kvsname", "my_kvsname");
  if (!name.ok()) return name;
  const std::string space = Pmi::field(*name, "kvsname");
  if (!mine.empty()) {
    auto put = pmi.ask(fmt::format("cmd=put kvsname={} key={} value={}", space, key, mine), "put_result");
    if (!put.ok()) return put;
  }
  if (auto barrier = pmi.ask("cmd=barrier_in", "barrier_out"); !barrier.ok()) {
    unusable = true;  // its answer may still come, and would be taken for another's
    return barrier;
  }
  auto got = pmi.ask(fmt::format("cmd=get kvsname={} key={}", space, key), "get_result");
  if (!got.ok()) return got;
  return Pmi::field(*got, "value");
}

}  // namespace weft
