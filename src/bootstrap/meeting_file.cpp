#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>

#include "bootstrap/crypto.hpp"
#include "bootstrap/join.hpp"
#include "bootstrap/meeting.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kTitle = "weft-rendezvous";

// One line: title, tag of the job, id, and a digest of all that, by which a half-written file is known.
std::string line_of(const JobId& tag, const JobId& id) {
  const std::string body = fmt::format("{} {:016x} {}", kTitle, tag.group, to_hex(id.pack()));
  const Digest digest = hmac_sha256(tag.secret, body);
  return fmt::format("{} {:02x}\n", body, fmt::join(digest.begin(), digest.begin() + 8, ""));
}

struct Reading {
  std::optional<JobId> id;
  std::string note;  // why there is none
};

Reading read_file(const std::string& path, const JobId& tag) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) return {std::nullopt, "it does not exist yet"};
  if (!fd) return {std::nullopt, system_error(errno, "it cannot be read").message()};
  char bytes[1024];
  const ssize_t size = ::read(fd.get(), bytes, sizeof bytes);
  const std::string text(bytes, size > 0 ? static_cast<size_t>(size) : 0);
  if (text.empty()) return {std::nullopt, "it is empty: stale, or about to be written"};
  const std::string prefix = fmt::format("{} {:016x} ", kTitle, tag.group);
  constexpr size_t kHex = 2 * WEFT_UNIQUE_ID_BYTES;
  if (!text.starts_with(kTitle)) return {std::nullopt, "it is half-written, or no rendezvous file of Weft"};
  if (text.size() >= prefix.size() && !text.starts_with(prefix)) {
    return {std::nullopt, "it is stale or another job's: WEFT_JOB_ID or WEFT_SECRET differ"};
  }
  if (text.size() < prefix.size() + kHex) return {std::nullopt, "it is half-written"};
  auto id = from_hex(std::string_view(text).substr(prefix.size(), kHex));
  if (!id.ok() || line_of(tag, *id) != text) return {std::nullopt, "it is half-written or damaged"};
  return {*id, {}};
}

ProbeResult probe(const JobId& id, Deadline deadline) {
  auto found = SocketAddress::resolve(id.address);
  if (!found.ok()) return {Probe::unreachable, found.status()};
  ProbeResult result;
  for (const SocketAddress& address : *found) {
    result = probe_root(address, id.secret, id.group, deadline.within(kProbeTime));
    if (result.probe == Probe::ours) break;
  }
  return result;
}

// A complete file appears at `path` in one step: by link() only where there is none, by rename() in any case.
Status publish(const std::string& path, const JobId& id, const std::string& line, bool replace, bool* exists) {
  const std::string draft = fmt::format("{}.{:016x}.tmp", path, id.group);
  Fd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return system_error(errno, fmt::format("cannot write the rendezvous file {}", draft));
  const bool written = ::write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size());
  Status status;
  if (!written || ::fsync(fd.get()) != 0) {
    status = system_error(errno, fmt::format("cannot write the rendezvous file {}", draft));
  } else if (replace) {
    if (::rename(draft.c_str(), path.c_str()) == 0) return {};
    status = system_error(errno, fmt::format("cannot write the rendezvous file {}", path));
  } else if (::link(draft.c_str(), path.c_str()) != 0) {
    *exists = errno == EEXIST;
    // Some file systems know no links; there a second rank 0 at the same moment goes unnoticed until it times out.
    if (!*exists && ::rename(draft.c_str(), path.c_str()) == 0) return {};
    if (!*exists) status = system_error(errno, fmt::format("cannot write the rendezvous file {}", path));
  }
  ::unlink(draft.c_str());
  return status;
}

Result<Meeting> write_as_root(const std::string& path, const JobId& tag, const Config& config, Deadline deadline) {
  auto listener = Listener::open(config);
  if (!listener.ok()) return listener.status();
  auto id = JobId::random();
  if (!id.ok()) return id.status();
  id->address = (*listener)->address();
  id->listening = true;
  const std::string line = line_of(tag, *id);
  const Deadline mute = deadline.within(kMuteTime);
  while (true) {
    bool exists = false;
    WEFT_RETURN_IF_ERROR(publish(path, *id, line, false, &exists));
    if (exists) {
      const Reading reading = read_file(path, tag);
      if (reading.id) {
        const ProbeResult result = probe(*reading.id, deadline);
        if (result.probe == Probe::ours) return Meeting{*reading.id, nullptr};
        if (result.probe == Probe::mute && !mute.passed()) continue;
      }
      log(LogLevel::info, "the rendezvous file {} is replaced: {}", path,
          reading.id ? "nobody of its job answers any more" : reading.note);
      WEFT_RETURN_IF_ERROR(publish(path, *id, line, true, &exists));
    }
    // It is of no use once all have joined; only our own may go.
    (*listener)->on_close([path, tag, line] {
      const Reading now = read_file(path, tag);
      if (now.id && line_of(tag, *now.id) == line) ::unlink(path.c_str());
    });
    return Meeting{*id, *listener};
  }
}

}  // namespace

Result<Meeting> meet_in_file(const std::string& path, bool root, const JobId& tag, const Config& config,
                             Deadline deadline) {
  if (root) return write_as_root(path, tag, config, deadline);
  std::string note;
  for (milliseconds pause{5};; pause = std::min(pause * 2, milliseconds(100))) {
    const Reading reading = read_file(path, tag);
    note = reading.note;
    if (reading.id) {
      const ProbeResult result = probe(*reading.id, deadline);
      if (result.probe == Probe::ours) return Meeting{*reading.id, nullptr};
      note = result.probe == Probe::unreachable
                 ? fmt::format("the root that it names is not to be reached from here: {}", result.why.message())
                 : fmt::format("it is stale: no root of its job answers at {} ({})", reading.id->address,
                               result.why.message());
    }
    if (deadline.passed()) {
      return error(weftTimeout, "timed out at the rendezvous file {}: {}; is rank 0 up, and does it see that file?",
                   path, note);
    }
    std::this_thread::sleep_for(std::min(pause, milliseconds(deadline.left_ms())));
  }
}

}  // namespace weft
