// The two sides of join(), and the probe with which a launcher's address is tried out.
#pragma once

#include <memory>
#include <string>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/frame.hpp"
#include "bootstrap/listener.hpp"

namespace weft {

// In a handshake of bootstrap nobody knows which rank the root is.
constexpr int32_t kToRoot = -1;
constexpr uint8_t kPurposeJoin = 'b';
constexpr uint8_t kPurposeProbe = 'p';  // is this my root? Closed by it right after the handshake

// "rank 1 (host a, pid 7)"
std::string describe_rank(int rank, std::string_view host, int64_t pid);
std::string this_host();

Result<std::unique_ptr<Bootstrap>> join_as_root(JoinOptions options);
Result<std::unique_ptr<Bootstrap>> join_as_member(JoinOptions options);

enum class Probe : uint8_t {
  ours,     // a root of this job answers
  refused,  // nobody listens
  mute,     // somebody accepts and stays silent
  foreign,  // somebody answers, who is not of this job
  unreachable,
};
struct ProbeResult {
  Probe probe = Probe::unreachable;
  Status why;
};
ProbeResult probe_root(const SocketAddress& address, const Secret& secret, uint64_t group, Deadline deadline);

}  // namespace weft
