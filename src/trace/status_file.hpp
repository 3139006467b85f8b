// The state of one rank of one communicator in a small mapped file, so that `weft-info --job` can look at it from
// outside, whatever the rank is doing: idle, asleep, stuck or inside destroy. No thread serves it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "status/status.hpp"
#include "trace/recorder.hpp"

namespace weft {

enum class CommPhase : uint32_t { starting, ready, finalizing, failed, aborted };
const char* name_of(CommPhase phase);

struct StatusIdentity {
  std::string job;    // the launcher's job id; empty: made from the group
  std::string label;  // weftConfig_t::commName
  uint64_t group = 0;
  int rank = 0, size = 1;
};

class StatusFile {
 public:
  // The directory of the files: WEFT_STATUS_DIR, else $XDG_RUNTIME_DIR/weft, else /tmp/weft-<uid>.
  static std::string directory(const Config& config);
  // A directory that cannot be used is an error, to be logged once and gone on without.
  static Result<std::unique_ptr<StatusFile>> create(const Config& config, const StatusIdentity& identity);
  // create(), or nullptr with one line in the log, once per process.
  static std::unique_ptr<StatusFile> try_create(const Config& config, const StatusIdentity& identity);

  ~StatusFile();  // removes the file, unless in a forked child
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

  RecorderMemory* recorder();  // for FlightRecorder; lives as long as this
  void set_phase(CommPhase phase);
  const std::string& path() const { return path_; }

  struct Layout;

 private:
  StatusFile(std::string path, Layout* layout) : path_(std::move(path)), layout_(layout) {}
  std::string path_;
  Layout* layout_;
};

// What weft-info sees of one rank.
struct RankStatus {
  StatusIdentity identity;
  std::string host;
  int pid = 0;
  CommPhase phase = CommPhase::starting;
  uint64_t age_ns = 0;  // since the communicator was made
  std::vector<OpSnapshot> ops;
};

// All live ranks in a directory, ordered by job, group and rank. Files of dead processes of this host are removed;
// damaged ones are ignored.
Result<std::vector<RankStatus>> read_status(const std::string& directory);

// The report of `weft-info --job`: per communicator the last operation of each rank, who is behind, who is missing.
// An empty job selects all.
std::string status_text(const std::vector<RankStatus>& ranks, const std::string& job, uint64_t now_ns);
std::string status_json(const std::vector<RankStatus>& ranks, const std::string& job, uint64_t now_ns);

}  // namespace weft
