#include "bootstrap/launch.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "bootstrap/crypto.hpp"
#include "bootstrap/meeting.hpp"
#include "log/log.hpp"

namespace weft {
namespace {

constexpr int64_t kMostRanks = 1 << 20;
// Ports beside the launcher's own, or derived from a job's number, of which the root takes the first free one.
constexpr unsigned kPorts = 16;

class Environment {
 public:
  Environment(std::string launcher, const Getter& get) : launcher_(std::move(launcher)), get_(get) {}

  bool has(const std::string& name) const { return get_(name).has_value(); }
  std::string text(const std::string& name) const { return get_(name).value_or(""); }

  Result<std::string> required(const std::string& name, const std::string& legal) const {
    const auto value = get_(name);
    if (!value)
      return error(weftInvalidUsage, "{} is not set, but the other variables of a job under {} are: legal is {}", name,
                   launcher_, legal);
    if (value->empty()) return error(weftInvalidUsage, "{}=\"\": legal is {}", name, legal);
    return *value;
  }

  Result<int64_t> integer(const std::string& name, int64_t least, int64_t most) const {
    const std::string legal = fmt::format("{}..{}", least, most);
    auto value = required(name, legal);
    if (!value.ok()) return value.status();
    int64_t number = 0;
    const char* end = value->data() + value->size();
    const auto [rest, code] = std::from_chars(value->data(), end, number);
    if (code != std::errc() || rest != end || number < least || number > most) {
      return error(weftInvalidUsage, "{}=\"{}\": legal is {}", name, *value, legal);
    }
    return number;
  }

  // Rank, size, and the place among the ranks of this host where the launcher tells it.
  Result<Launch> place(const char* rank, const char* size, const char* local_rank, const char* local_size) {
    Launch launch;
    launch.launcher = launcher_;
    auto ranks = integer(size, 1, kMostRanks);
    if (!ranks.ok()) return ranks.status();
    auto mine = integer(rank, 0, *ranks - 1);
    if (!mine.ok()) return mine.status();
    launch.rank = static_cast<int>(*mine);
    launch.size = static_cast<int>(*ranks);
    if (has(local_size)) {
      auto value = integer(local_size, 1, *ranks);
      if (!value.ok()) return value.status();
      launch.local_size = static_cast<int>(*value);
    }
    if (has(local_rank)) {
      auto value = integer(local_rank, 0, has(local_size) ? launch.local_size - 1 : *ranks - 1);
      if (!value.ok()) return value.status();
      launch.local_rank = static_cast<int>(*value);
      launch.local_size = std::max(launch.local_size, launch.local_rank + 1);
    }
    return launch;
  }

 private:
  std::string launcher_;
  const Getter& get_;
};

// Each call is a meeting of its own: launchers that keep what was published once need another key for the next.
std::string next_key() {
  static std::atomic<int> count{0};
  return fmt::format("weft-{}", count++);
}

Result<Launch> with(Launch launch, Result<Meeting> meeting) {
  if (!meeting.ok()) return meeting.status();
  launch.id = std::move(meeting->id);
  launch.listener = std::move(meeting->listener);
  return launch;
}

Result<Launch> from_weft(const Config& config, const Getter& get, Deadline deadline) {
  Environment env("weft-run", get);
  auto launch = env.place("WEFT_RANK", "WEFT_WORLD_SIZE", "WEFT_LOCAL_RANK", "WEFT_LOCAL_SIZE");
  if (!launch.ok() || launch->size == 1) return launch;
  const char* legal = "host:port, [ipv6]:port or file:/path";
  auto root = env.required("WEFT_ROOT", legal);
  if (!root.ok()) return root.status();
  const bool is_root = launch->rank == 0;
  constexpr std::string_view kFile = "file:";
  if (root->starts_with(kFile)) {
    const std::string path = root->substr(kFile.size());
    if (path.empty()) return error(weftInvalidUsage, "WEFT_ROOT=\"{}\": legal is {}", *root, legal);
    const JobId tag = derive_id({"file", config.job_id, config.secret});
    return with(*launch, meet_in_file(path, is_root, tag, config, deadline));
  }
  if (auto parts = split_host_port(*root); !parts.ok()) {
    return error(weftInvalidUsage, "WEFT_ROOT: {}, or file:/path", parts.status().message());
  }
  const JobId id = derive_id({"weft-run", *root, config.job_id, config.secret});
  return with(*launch, meet_at(*root, is_root, id, deadline));
}

Result<Launch> from_torchrun(const Config& config, const Getter& get, Deadline deadline) {
  Environment env("torchrun", get);
  auto launch = env.place("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  if (!launch.ok() || launch->size == 1) return launch;
  auto host = env.required("MASTER_ADDR", "the host of rank 0");
  if (!host.ok()) return host.status();
  auto port = env.integer("MASTER_PORT", 1, 65535);
  if (!port.ok()) return port.status();
  // MASTER_PORT itself belongs to torch's store, so it is the ports after it (before it at the very end).
  const auto first = static_cast<unsigned>(*port + 1 + kPorts > 65535 ? *port - kPorts : *port + 1);
  const JobId id = derive_id({"torchrun", env.text("TORCHELASTIC_RUN_ID"), env.text("TORCHELASTIC_RESTART_COUNT"),
                              std::to_string(*port), config.job_id, config.secret});
  const PortRange range{static_cast<uint16_t>(first), static_cast<uint16_t>(first + kPorts - 1)};
  return with(*launch, meet_in_range(*host, range, launch->rank == 0, id, deadline));
}

// A directory that only this user can write to.
Result<std::string> private_directory(const Environment& env) {
  const std::string base = env.has("TMPDIR") && !env.text("TMPDIR").empty() ? env.text("TMPDIR") : "/tmp";
  const std::string path = fmt::format("{}/weft-{}", base, ::geteuid());
  struct stat info {};
  if ((::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) || ::lstat(path.c_str(), &info) != 0) {
    return system_error(errno, fmt::format("cannot make the directory {}", path));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return error(weftSystemError, "{} is not a directory that only this user can use: remove it, or set TMPDIR", path);
  }
  return path;
}

Result<Launch> from_openmpi(const Config& config, const Getter& get, Deadline deadline) {
  Environment env("openmpi", get);
  auto launch = env.place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                          "OMPI_COMM_WORLD_LOCAL_SIZE");
  if (!launch.ok() || launch->size == 1) return launch;
  const bool is_root = launch->rank == 0;
  const std::string key = next_key();
  auto by_pmix = with(
      *launch,
      meet_through([&](const std::string& mine) { return exchange_by_pmix(key, mine, deadline); }, is_root, config));
  if (by_pmix.ok() || by_pmix.status().code() != weftSystemError) return by_pmix;
  const std::string job = env.text("PMIX_NAMESPACE") + env.text("OMPI_MCA_orte_hnp_uri");
  if (launch->local_size != launch->size || job.empty()) {
    return error(weftSystemError, "Open MPI's PMIx cannot be used ({}): set WEFT_RANK, WEFT_WORLD_SIZE and WEFT_ROOT",
                 by_pmix.status().message());
  }
  log(LogLevel::info, "PMIx cannot be used ({}); the ranks are on one host and meet through a file",
      by_pmix.status().message());
  auto directory = private_directory(env);
  if (!directory.ok()) return directory.status();
  const JobId tag = derive_id({"openmpi", job, key, config.secret});
  return with(*launch,
              meet_in_file(fmt::format("{}/openmpi-{:016x}", *directory, tag.group), is_root, tag, config, deadline));
}

Result<Launch> from_mpich(const Config& config, const Getter& get, Deadline deadline) {
  Environment env("mpich", get);
  auto launch = env.place("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  if (!launch.ok() || launch->size == 1) return launch;
  auto fd = env.integer("PMI_FD", 0, 1 << 20);
  if (!fd.ok()) return fd.status();
  const std::string key = next_key();
  return with(
      *launch,
      meet_through([&](const std::string& mine) { return exchange_by_pmi(static_cast<int>(*fd), key, mine, deadline); },
                   launch->rank == 0, config));
}

// Slurm hands out nothing secret that all tasks see: without WEFT_SECRET the secret comes from the job's numbers, which
// other users of the cluster can read. That keeps jobs apart; it does not keep out somebody who means harm.
Result<Launch> from_slurm(const Config& config, const Getter& get, Deadline deadline) {
  Environment env("slurm", get);
  const char* size = env.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  auto launch = env.place("SLURM_PROCID", size, "SLURM_LOCALID", "");
  if (!launch.ok() || launch->size == 1) return launch;
  auto job = env.integer("SLURM_JOB_ID", 0, UINT32_MAX);
  if (!job.ok()) return job.status();
  const std::string step = env.text("SLURM_STEP_ID");
  const bool one_node = env.text("SLURM_STEP_NUM_NODES") == "1";
  std::string host = one_node ? "127.0.0.1" : first_host(env.text("SLURM_STEP_NODELIST"));
  if (host.empty()) host = env.text("SLURM_LAUNCH_NODE_IPADDR");
  if (host.empty()) {
    return error(
        weftInvalidUsage,
        "SLURM_STEP_NODELIST is not set, but the other variables of a job under slurm are: legal is a node list");
  }
  const JobId id =
      derive_id({"slurm", std::to_string(*job), step, env.text("SLURM_RESTART_COUNT"), config.job_id, config.secret});
  // Outside the range from which Linux takes ports for outgoing connections.
  const auto first = static_cast<uint16_t>(16384 + id.group % ((32768 - 16384) / kPorts) * kPorts);
  return with(*launch,
              meet_in_range(host, {first, static_cast<uint16_t>(first + kPorts - 1)}, launch->rank == 0, id, deadline));
}

using Starter = Result<Launch> (*)(const Config&, const Getter&, Deadline);

// The innermost launcher counts: mpirun inside of srun has both kinds of variables.
Starter find_starter(const Getter& get) {
  const auto any = [&get](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (get(name)) return true;
    }
    return false;
  };
  if (any({"WEFT_RANK", "WEFT_WORLD_SIZE", "WEFT_ROOT"})) return from_weft;
  if (any({"TORCHELASTIC_RUN_ID"})) return from_torchrun;
  if (any({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) return from_openmpi;
  // srun's PMI-2 has PMI_FD too, but speaks another protocol.
  if (any({"PMI_FD"}) && (any({"MPI_LOCALRANKID", "HYDI_CONTROL_FD"}) || !any({"SLURM_STEP_ID"}))) return from_mpich;
  if (any({"RANK", "WORLD_SIZE"})) return from_torchrun;
  if (any({"SLURM_STEP_ID"}) && any({"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})) return from_slurm;
  return nullptr;
}

}  // namespace

Result<Launch> detect_launch(const Config& config, const Getter& get, Deadline deadline) {
  Starter starter = find_starter(get);
  Result<Launch> launch = Launch{};
  if (starter != nullptr) {
    launch = starter(config, get, deadline);
    if (!launch.ok()) return launch;
  } else {
    launch->launcher = "none";
  }
  if (launch->size == 1) {
    auto id = JobId::random();
    if (!id.ok()) return id.status();
    launch->id = *id;
  }
  log(LogLevel::info, "launcher {}: rank {} of {}, local rank {} of {}{}{}", launch->launcher, launch->rank,
      launch->size, launch->local_rank, launch->local_size, launch->id.address.empty() ? "" : ", root at ",
      launch->id.address);
  return launch;
}

Result<Launch> detect_launch(const Config& config, Deadline deadline) {
  const Getter environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  return detect_launch(config, environment, deadline);
}

}  // namespace weft
