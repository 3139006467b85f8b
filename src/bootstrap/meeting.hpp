// Ways by which the ranks of a launcher's job come to the same id: each ends with an id to join with and, at one rank,
// the listener that the id leads to.
//
// Where an address is agreed on beforehand, a process that is told to be rank 0 but finds the place taken by a root of
// its own job goes there without a listener: joining then tells both that two processes claim rank 0.
#pragma once

#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "bootstrap/bootstrap.hpp"
#include "bootstrap/listener.hpp"

namespace weft {

struct Meeting {
  JobId id;
  std::shared_ptr<Listener> listener;
};

// A root of our own answers as soon as it has come to its join; silent for longer than the second of these, whoever
// holds the place is a stranger.
constexpr std::chrono::milliseconds kProbeTime{1000}, kMuteTime{3000};

// Secret and group from what all ranks of the job know. As secret as the parts are: with WEFT_SECRET among them good,
// with nothing but a launcher's job id it keeps jobs apart, but not an attacker away who can read that id.
JobId derive_id(std::initializer_list<std::string_view> parts);

// At "host:port".
Result<Meeting> meet_at(const std::string& address, bool root, JobId id, Deadline deadline);
// At one of a few ports of a host, where others may hold some: the root takes the first free one, the members try each.
Result<Meeting> meet_in_range(const std::string& host, PortRange range, bool root, JobId id, Deadline deadline);
// Through a file that the root writes, and that the members read until it leads to a root that answers. A file that an
// earlier job left, an empty one and a half-written one are passed over. `tag` keeps jobs apart: only files with it are
// taken for this job's.
Result<Meeting> meet_in_file(const std::string& path, bool root, const JobId& tag, const Config& config,
                             Deadline deadline);

// The root opens a listener and makes a random id, `exchange` carries its text from the root to the members.
using Exchange = std::function<Result<std::string>(const std::string& mine)>;
Result<Meeting> meet_through(const Exchange& exchange, bool root, const Config& config);

// Hydra's PMI-1 over an inherited descriptor. It is not initialised, so that MPI_Init may come before, after or never;
// where MPI_Finalize does not end it, the end of the process does (exit, not _exit). All ranks call it; empty `mine` at
// all but rank 0.
Result<std::string> exchange_by_pmi(int fd, const std::string& key, const std::string& mine, Deadline deadline);
// Open MPI's PMIx, by libpmix where it is installed. weftSystemError where it cannot be used at all.
Result<std::string> exchange_by_pmix(const std::string& key, const std::string& mine, Deadline deadline);

// "node[03-05,9],other" -> "node03".
std::string first_host(std::string_view nodelist);

std::string to_hex(const weftUniqueId& id);
Result<JobId> from_hex(std::string_view text);

}  // namespace weft
