#include "trace/status_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "log/log.hpp"
#include "status/fd.hpp"

namespace weft {

// Written once before the file gets its name, but for `phase` and the recorder.
struct StatusFile::Layout {
  static constexpr uint64_t kMagic = 0x7374617477656674;  // "tfewtats"
  static constexpr uint32_t kVersion = 1;

  uint64_t magic, version;
  uint64_t group, made_ns, process_start;
  int32_t pid, rank, size, reserved;
  char job[64], label[64], host[64], boot[40], pid_space[32];
  std::atomic<uint32_t> phase;
  RecorderMemory recorder;
};

namespace {

using Layout = StatusFile::Layout;

struct Machine {
  std::string host, boot, pid_space;
};

// This boot of this host, and this process's view of process numbers.
const Machine& machine() {
  static const Machine& only = *new Machine([] {
    Machine here;
    char text[256] = "";
    if (gethostname(text, sizeof text - 1) == 0) here.host = text;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> here.boot;
    const ssize_t length = readlink("/proc/self/ns/pid", text, sizeof text);
    if (length > 0) here.pid_space.assign(text, size_t(length));
    return here;
  }());
  return only;
}

// When a process started, in clock ticks since the boot (field 22 of stat; the second field may hold anything, and
// ends at the last parenthesis); 0: there is none.
uint64_t process_start(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  size_t at = text.rfind(')');
  // Over, though nobody has waited for it yet.
  if (at != std::string::npos && at + 2 < text.size() && (text[at + 2] == 'Z' || text[at + 2] == 'X')) return 0;
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

template <size_t N>
void put(char (&to)[N], std::string_view text) {
  text.copy(to, N - 1);  // the rest is zero already
}
template <size_t N>
std::string get(const char (&from)[N]) {
  return {from, strnlen(from, N)};
}

// A directory of our own name in /tmp must be ours: another user could have made it first.
Status prepare_directory(const std::string& path, bool ours) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return system_error(errno, fmt::format("cannot make the status directory {} (WEFT_STATUS_DIR sets another)", path));
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return system_error(errno, path);
  if (ours && (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 022) != 0))
    return error(weftSystemError, "{} is not a directory of user {} alone; WEFT_STATUS_DIR sets another", path,
                 ::geteuid());
  return {};
}

std::string file_name(const std::string& job, int rank) {
  static std::atomic<uint64_t> count{0};
  std::string safe;
  for (const char c : job) safe += std::isalnum(static_cast<unsigned char>(c)) || c == '-' ? c : '_';
  return fmt::format("{}.{}.{}.{}", safe.substr(0, 40), rank, ::getpid(), count.fetch_add(1));
}

class Mapping {
 public:
  // Whole file, or nothing when it is not a status file.
  static std::optional<Mapping> open(const std::string& path) {
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat info {};
    if (!file || ::fstat(file.get(), &info) != 0 || info.st_size != off_t(sizeof(Layout))) return std::nullopt;
    void* at = ::mmap(nullptr, sizeof(Layout), PROT_READ, MAP_SHARED, file.get(), 0);
    if (at == MAP_FAILED) return std::nullopt;
    Mapping mapping(static_cast<const Layout*>(at));
    if (mapping->magic != Layout::kMagic || mapping->version != Layout::kVersion) return std::nullopt;
    return mapping;
  }
  explicit Mapping(const Layout* layout) : layout_(layout) {}
  Mapping(Mapping&& other) noexcept : layout_(std::exchange(other.layout_, nullptr)) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (layout_ != nullptr) ::munmap(const_cast<Layout*>(layout_), sizeof(Layout));
  }
  const Layout* operator->() const { return layout_; }

 private:
  const Layout* layout_;
};

// A process that cannot be judged from here (another host or process namespace) counts as alive.
bool is_dead(const Layout& file) {
  const Machine& here = machine();
  if (get(file.boot) != here.boot) return get(file.host) == here.host;
  return get(file.pid_space) == here.pid_space && process_start(file.pid) != file.process_start;
}

RankStatus read_rank(const Layout& file) {
  RankStatus rank;
  rank.identity = {get(file.job), get(file.label), file.group, file.rank, file.size};
  rank.host = get(file.host);
  rank.pid = file.pid;
  rank.phase = CommPhase(std::min(file.phase.load(std::memory_order_acquire), uint32_t(CommPhase::aborted)));
  const uint64_t now = monotonic_ns();
  rank.age_ns = now > file.made_ns ? now - file.made_ns : 0;
  rank.ops = FlightRecorder::snapshot(file.recorder);
  return rank;
}

// Removes the file of a dead process; true when it did. Most are judged by the process number in their name alone.
bool remove_if_dead(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const size_t last = name.rfind('.'),
               before = last == std::string::npos || last == 0 ? last : name.rfind('.', last - 1);
  if (before == std::string::npos) return false;
  const std::string pid = name.substr(before + 1, last - before - 1);
  if (pid.empty() || ::access(("/proc/" + pid).c_str(), F_OK) == 0) return false;
  const auto file = Mapping::open(path);
  return file && is_dead(*file->operator->()) && ::unlink(path.c_str()) == 0;
}

// What killed processes left is reclaimed by the next one that comes.
void clean_once(const std::string& directory) {
  static std::atomic<pid_t> cleaner{0};
  if (cleaner.exchange(::getpid()) == ::getpid()) return;
  std::error_code problem;
  for (std::filesystem::directory_iterator files(directory, problem), end; !problem && files != end;
       files.increment(problem))
    remove_if_dead(files->path());
}

}  // namespace

const char* name_of(CommPhase phase) {
  constexpr const char* kNames[] = {"starting", "ready", "finalizing", "failed", "aborted"};
  return kNames[size_t(phase)];
}

std::string StatusFile::directory(const Config& config) {
  return config.status_dir.empty() ? runtime_directory() : config.status_dir;
}

Result<std::unique_ptr<StatusFile>> StatusFile::create(const Config& config, const StatusIdentity& identity) {
  const std::string where = directory(config);
  WEFT_RETURN_IF_ERROR(prepare_directory(where, config.status_dir.empty()));
  clean_once(where);
  const std::string job = identity.job.empty() ? fmt::format("{:016x}", identity.group) : identity.job;
  const std::string name = file_name(job, identity.rank), hidden = where + "/." + name, path = where + "/" + name;

  const Fd file(::open(hidden.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return system_error(errno, hidden);
  // Blocks are taken now, so that a full file system is an error here and not a SIGBUS later.
  int problem = ::posix_fallocate(file.get(), 0, sizeof(Layout));
  void* at = MAP_FAILED;
  if (problem == 0) {
    at = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (at == MAP_FAILED) problem = errno;
  }
  if (problem != 0) {
    ::unlink(hidden.c_str());
    return system_error(problem, hidden);
  }
  auto* layout = new (at) Layout();
  layout->magic = Layout::kMagic;
  layout->version = Layout::kVersion;
  layout->group = identity.group;
  layout->made_ns = monotonic_ns();
  layout->pid = ::getpid();
  layout->process_start = process_start(layout->pid);
  layout->rank = identity.rank;
  layout->size = identity.size;
  put(layout->job, job);
  put(layout->label, identity.label);
  put(layout->host, machine().host);
  put(layout->boot, machine().boot);
  put(layout->pid_space, machine().pid_space);

  std::unique_ptr<StatusFile> status(new StatusFile(path, layout));
  if (::rename(hidden.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(hidden.c_str());
    return system_error(why, path);
  }
  return status;
}

std::unique_ptr<StatusFile> StatusFile::try_create(const Config& config, const StatusIdentity& identity) {
  auto made = create(config, identity);
  if (made.ok()) return std::move(made.value());
  static std::atomic<bool> said{false};
  if (!said.exchange(true))
    log(LogLevel::warn, "weft-info --job will not see this process: {}", made.status().message());
  return nullptr;
}

StatusFile::~StatusFile() {
  if (layout_->pid == ::getpid()) ::unlink(path_.c_str());
  ::munmap(layout_, sizeof(Layout));
}

RecorderMemory* StatusFile::recorder() { return &layout_->recorder; }

void StatusFile::set_phase(CommPhase phase) { layout_->phase.store(uint32_t(phase), std::memory_order_release); }

Result<std::vector<RankStatus>> read_status(const std::string& directory) {
  std::error_code problem;
  std::filesystem::directory_iterator files(directory, problem);
  std::vector<RankStatus> ranks;
  if (problem == std::errc::no_such_file_or_directory) return ranks;
  if (problem) return error(weftSystemError, "status directory {}: {}", directory, problem.message());
  for (; !problem && files != std::filesystem::directory_iterator(); files.increment(problem)) {
    const std::string path = files->path();
    const auto file = Mapping::open(path);
    if (!file) continue;
    if (is_dead(*file->operator->())) {
      ::unlink(path.c_str());
      continue;
    }
    // A file that has no name yet is still being written.
    if (files->path().filename().string().front() == '.') continue;
    if (get((*file)->boot) == machine().boot) ranks.push_back(read_rank(*file->operator->()));
  }
  std::sort(ranks.begin(), ranks.end(), [](const RankStatus& a, const RankStatus& b) {
    return std::tie(a.identity.job, a.identity.group, a.identity.rank, a.pid) <
           std::tie(b.identity.job, b.identity.group, b.identity.rank, b.pid);
  });
  return ranks;
}

}  // namespace weft
