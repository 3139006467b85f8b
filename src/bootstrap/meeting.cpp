#include "bootstrap/meeting.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <thread>
#include <vector>

#include "bootstrap/bytes.hpp"
#include "bootstrap/crypto.hpp"
#include "bootstrap/interfaces.hpp"
#include "bootstrap/join.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

using std::chrono::milliseconds;

ProbeResult probe_any(const std::vector<SocketAddress>& addresses, const JobId& id, Deadline deadline) {
  ProbeResult best{Probe::unreachable, error(weftSystemError, "no address")};
  for (const SocketAddress& address : addresses) {
    ProbeResult result = probe_root(address, id.secret, id.group, deadline.within(kProbeTime));
    if (result.probe == Probe::ours) return result;
    if (best.probe == Probe::unreachable || result.probe == Probe::mute || result.probe == Probe::foreign) {
      best = std::move(result);
    }
  }
  return best;
}

// Where the root of "host:port" listens: at the very address when it is a numeric one of this host, which also notices
// that somebody else holds the port there. A name may resolve to 127.0.1.1 here and to something else elsewhere, and an
// address that is not ours may be forwarded to us, so there it is all addresses.
std::vector<SocketAddress> places(const std::string& host, uint16_t port) {
  std::vector<SocketAddress> out;
  if (auto numeric = SocketAddress::parse(join_host_port(host == "localhost" ? "127.0.0.1" : host, port));
      numeric.ok()) {
    auto interfaces = list_interfaces();
    const bool ours =
        interfaces.ok() && std::any_of(interfaces->begin(), interfaces->end(),
                                       [&](const Interface& entry) { return entry.address.same_host(*numeric); });
    if (ours || numeric->is_loopback()) return {*numeric};
  }
  // Not every kernel has IPv6.
  return {SocketAddress::any(AF_INET6, port), SocketAddress::any(AF_INET, port)};
}

Result<std::shared_ptr<Listener>> listen_for(const std::string& host, uint16_t port, bool* in_use) {
  Result<std::shared_ptr<Listener>> listener = error(weftInternalError, "no place to listen");
  for (const SocketAddress& place : places(host, port)) {
    listener = Listener::bind(place, {}, host, in_use);
    if (listener.ok() || *in_use) return listener;
  }
  return listener;
}

Result<std::vector<SocketAddress>> resolve_until(const std::string& address, Deadline deadline) {
  while (true) {
    auto found = SocketAddress::resolve(address);
    if (found.ok() || found.status().code() == weftInvalidArgument || deadline.passed()) return found;
    std::this_thread::sleep_for(milliseconds(std::min(100, deadline.left_ms())));
  }
}

}  // namespace

JobId derive_id(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) put_text(text, part);
  const Digest digest = sha256(text);
  JobId id;
  std::memcpy(id.secret.data(), digest.data(), id.secret.size());
  std::memcpy(&id.group, digest.data() + id.secret.size(), sizeof id.group);
  return id;
}

Result<Meeting> meet_at(const std::string& address, bool root, JobId id, Deadline deadline) {
  auto parts = split_host_port(address);
  if (!parts.ok()) return parts.status();
  id.address = address;
  id.listening = false;
  if (!root) return Meeting{id, nullptr};
  const Deadline mute = deadline.within(kMuteTime);
  while (true) {
    bool in_use = false;
    auto listener = listen_for(parts->first, parts->second, &in_use);
    if (listener.ok()) return Meeting{id, *listener};
    if (!in_use) return listener.status();
    auto found = SocketAddress::resolve(address);
    if (!found.ok()) return found.status();
    const ProbeResult held = probe_any(*found, id, deadline);
    if (held.probe == Probe::ours) return Meeting{id, nullptr};
    if (held.probe == Probe::foreign || (held.probe == Probe::mute && mute.passed()) || deadline.passed()) {
      return error(weftSystemError, "cannot listen at {}: another program holds the port, and it is not ours ({})",
                   address, held.why.message());
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
}

Result<Meeting> meet_in_range(const std::string& host, PortRange range, bool root, JobId id, Deadline deadline) {
  auto first = resolve_until(join_host_port(host, range.first), deadline);
  if (!first.ok()) return first.status();
  std::string last_reason = "nobody listens there";
  for (milliseconds pause{10};; pause = std::min(pause * 2, milliseconds(100))) {
    for (unsigned port = range.first; port <= range.last; ++port) {
      id.address = join_host_port(host, static_cast<uint16_t>(port));
      for (SocketAddress& address : *first) address.set_port(static_cast<uint16_t>(port));
      bool in_use = false;
      if (root) {
        auto listener = listen_for(host, static_cast<uint16_t>(port), &in_use);
        if (listener.ok()) return Meeting{id, *listener};
        if (!in_use) return listener.status();
      }
      const ProbeResult held = probe_any(*first, id, deadline);
      if (held.probe == Probe::ours) {
        id.listening = true;
        return Meeting{id, nullptr};
      }
      if (held.probe != Probe::refused) last_reason = held.why.message();
    }
    if (root) {
      return error(weftSystemError,
                   "cannot listen at {}: ports {}-{} are all taken, by programs that are not ours ({})", host,
                   range.first, range.last, last_reason);
    }
    if (deadline.passed()) {
      return error(weftTimeout, "timed out: rank 0 of this job was not found at {}, ports {}-{} ({})", host,
                   range.first, range.last, last_reason);
    }
    std::this_thread::sleep_for(std::min(pause, milliseconds(deadline.left_ms())));
  }
}

Result<Meeting> meet_through(const Exchange& exchange, bool root, const Config& config) {
  Meeting meeting;
  std::string mine;
  if (root) {
    auto listener = Listener::open(config);
    if (!listener.ok()) return listener.status();
    auto id = JobId::random();
    if (!id.ok()) return id.status();
    meeting = {*id, *listener};
    meeting.id.address = (*listener)->address();
    meeting.id.listening = true;
    mine = to_hex(meeting.id.pack());
  }
  auto text = exchange(mine);
  if (!text.ok()) return text.status();
  if (root) return meeting;
  auto id = from_hex(*text);
  if (!id.ok()) return id.status();
  meeting.id = *id;
  return meeting;
}

std::string first_host(std::string_view nodelist) {
  const size_t end = nodelist.find_first_of(",[");
  std::string host(nodelist.substr(0, end));
  if (end == std::string_view::npos || nodelist[end] == ',') return host;
  // "rack[1-2]n[03,7-9]x,...": of each bracket the first number, with its leading zeros.
  while (true) {
    const size_t open = nodelist.find('[');
    const size_t close = nodelist.find(']');
    if (open == std::string_view::npos || close == std::string_view::npos || close < open) return host;
    const std::string_view inside = nodelist.substr(open + 1, close - open - 1);
    host += inside.substr(0, inside.find_first_of(",-"));
    nodelist.remove_prefix(close + 1);
    const size_t next = std::min(nodelist.find_first_of(",["), nodelist.size());
    host += nodelist.substr(0, next);
    if (next == nodelist.size() || nodelist[next] == ',') return host;
    nodelist.remove_prefix(next);
  }
}

std::string to_hex(const weftUniqueId& id) {
  std::string out;
  for (const char c : id.internal) out += fmt::format("{:02x}", static_cast<uint8_t>(c));
  return out;
}

Result<JobId> from_hex(std::string_view text) {
  weftUniqueId id{};
  bool good = text.size() == 2 * sizeof id.internal;
  for (size_t i = 0; good && i < sizeof id.internal; ++i) {
    uint8_t byte = 0;
    const char* at = text.data() + 2 * i;
    good = std::from_chars(at, at + 2, byte, 16).ptr == at + 2;
    id.internal[i] = static_cast<char>(byte);
  }
  if (!good) return error(weftInvalidArgument, "the text handed on by the launcher is no unique id");
  return JobId::unpack(id);
}

}  // namespace weft
