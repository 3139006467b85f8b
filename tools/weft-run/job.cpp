#include "job.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace weft::run {
namespace {

constexpr int kTimedOut = 124, kCannotExecute = 126, kNotFound = 127;
constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

template <typename... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  const std::string line = "weft-run: " + fmt::format(format, std::forward<Args>(args)...) + "\n";
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nobody reads it
}

std::string random_hex(size_t bytes) {
  std::vector<unsigned char> raw(bytes);
  if (::getrandom(raw.data(), raw.size(), 0) != ssize_t(bytes)) return "";
  std::string text;
  for (const unsigned char byte : raw) text += fmt::format("{:02x}", byte);
  return text;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(int64_t(std::min(seconds, 1e9) * 1000));
}

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kPassedOn) sigaddset(&set, signal);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTSTP);
  return set;
}

// Two pipes for each rank may need more descriptors than a shell gives.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string rank_prefix(int rank, int to, const Options& options) {
  if (!options.prefix) return "";
  if (::isatty(to) == 0 || std::getenv("NO_COLOR") != nullptr) return fmt::format("[{}] ", rank);
  constexpr int kColours[] = {36, 33, 32, 35, 34, 31};
  return fmt::format("\033[{}m[{}]\033[0m ", kColours[size_t(rank) % std::size(kColours)], rank);
}

// The number-th of the cores that we may use, in turn.
void bind_to_core(int number) {
  cpu_set_t allowed, mine;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int left = number % CPU_COUNT(&allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || left-- > 0) continue;
    CPU_ZERO(&mine);
    CPU_SET(core, &mine);
    ::sched_setaffinity(0, sizeof mine, &mine);
    return;
  }
}

struct Pipe {
  Fd read, write;
};
Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error(errno, "pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

Result<TemporaryDirectory> TemporaryDirectory::create() {
  const char* base = std::getenv("TMPDIR");
  std::string path = fmt::format("{}/weft-run-XXXXXX", base != nullptr && *base != '\0' ? base : "/tmp");
  if (::mkdtemp(path.data()) == nullptr) return system_error(errno, path);
  return TemporaryDirectory(path);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

Job::Job(const Options& options, TemporaryDirectory directory)
    : options_(options), directory_(std::move(directory)), id_(random_hex(4)), secret_(random_hex(16)) {}

Job::~Job() { kill_leftovers(); }

Status Job::start() {
  raise_descriptor_limit();
  // Output goes to a pipe that may be closed: an error there, not our death. Orphans of ranks become our children.
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const sigset_t watched = watched_signals();
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  signals_ = Fd(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return system_error(errno, "signalfd");
  if (!options_.output.empty()) {
    std::error_code problem;
    std::filesystem::create_directories(options_.output, problem);
    if (problem) return error(weftSystemError, "--output {}: {}", options_.output, problem.message());
  }
  if (options_.timeout_s > 0) timeout_ = Deadline::after(milliseconds(options_.timeout_s));
  for (int number = 0; number < options_.ranks; ++number) WEFT_RETURN_IF_ERROR(start_rank(number));
  return {};
}

Status Job::start_rank(int number) {
  Fd out, err;
  if (!options_.output.empty()) {
    for (auto [fd, suffix] : {std::pair(&out, "out"), std::pair(&err, "err")}) {
      const std::string path = fmt::format("{}/rank-{}.{}", options_.output, number, suffix);
      *fd = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
      if (!*fd) return system_error(errno, path);
    }
  } else if (options_.ranks > 1) {
    for (auto [fd, to] : {std::pair(&out, STDOUT_FILENO), std::pair(&err, STDERR_FILENO)}) {
      auto pipe = make_pipe();
      if (!pipe.ok()) return pipe.status();
      ::fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);
      *fd = std::move(pipe->write);
      lines_.emplace_back(std::move(pipe->read), to, rank_prefix(number, to, options_));
    }
  }
  auto report = make_pipe();
  if (!report.ok()) return report.status();

  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) return system_error(errno, "fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before that took effect
    become_rank(number, out.get(), err.get(), report->write.get());
  }
  ranks_.push_back({pid, true});
  report->write.reset();
  int why = 0;
  if (::read(report->read.get(), &why, sizeof why) != sizeof why) return {};
  exit_code_ = why == ENOENT ? kNotFound : kCannotExecute;
  return system_error(why, "cannot run " + options_.command[0]);
}

// Rank 0 reads our standard input; a terminal it could not, being in a process group of its own.
void Job::become_rank(int number, int out, int err, int report) {
  ::setpgid(0, 0);
  if (number > 0 || ::isatty(STDIN_FILENO) != 0) {
    const int none = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(none, STDIN_FILENO);
  }
  if (out >= 0) ::dup2(out, STDOUT_FILENO);
  if (err >= 0) ::dup2(err, STDERR_FILENO);
  const sigset_t watched = watched_signals();
  ::sigprocmask(SIG_UNBLOCK, &watched, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  if (options_.bind_core) bind_to_core(number);
  set_environment(number);

  std::vector<char*> arguments;
  for (std::string& argument : options_.command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int why = errno;
  if (::write(report, &why, sizeof why) < 0) ::_exit(kCannotExecute);
  ::_exit(why == ENOENT ? kNotFound : kCannotExecute);
}

void Job::set_environment(int number) {
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  const std::string rank = std::to_string(number), size = std::to_string(options_.ranks);
  set("WEFT_RANK", rank);
  set("WEFT_WORLD_SIZE", size);
  set("WEFT_LOCAL_RANK", rank);
  set("WEFT_LOCAL_SIZE", size);
  set("WEFT_ROOT", "file:" + directory_.path() + "/root");
  set("WEFT_JOB_ID", id_);
  set("WEFT_SECRET", secret_);
  for (const auto& [name, value] : options_.environment) set(name.c_str(), value);
}

size_t Job::alive() const {
  return size_t(std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.alive; }));
}

int Job::run() {
  while (alive() > 0) poll_once();
  kill_leftovers();
  for (Lines& lines : lines_) lines.finish();
  return exit_code_.value_or(0);
}

void Job::poll_once() {
  std::vector<pollfd> waits{{signals_.get(), POLLIN, 0}};
  std::vector<Lines*> readers;
  for (Lines& lines : lines_) {
    if (!lines.open()) continue;
    waits.push_back({lines.fd(), POLLIN, 0});
    readers.push_back(&lines);
  }
  constexpr int kDay = 86'400'000;
  ::poll(waits.data(), waits.size(), std::min(timeout_.left_ms(kDay), kill_at_.left_ms(kDay)));

  for (size_t i = 0; i < readers.size(); ++i) {
    if (waits[i + 1].revents != 0) readers[i]->pump();
  }
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) handle_signal(int(info.ssi_signo));
  if (timeout_.passed()) {
    timeout_ = Deadline::never();
    say("the job ran for {} s (--timeout): ending it", options_.timeout_s);
    if (!exit_code_) exit_code_ = kTimedOut;
    end();
  }
  if (kill_at_.passed()) {
    kill_at_ = Deadline::never();
    say("{} of {} ranks are still there {} s after SIGTERM: SIGKILL", alive(), options_.ranks, options_.grace_s);
    send(SIGKILL);
  }
}

void Job::handle_signal(int signal) {
  if (signal == SIGCHLD) return reap();
  if (signal == SIGTSTP) return stop_and_continue();
  const bool asks_to_end = signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
  // Who asks a second time means it.
  if (asks_to_end && ++interrupts_ > 1) signal = SIGKILL;
  if (asks_to_end) say("passing SIG{} on to the ranks", ::sigabbrev_np(signal));
  send(signal);
}

void Job::stop_and_continue() {
  send(SIGSTOP);
  ::raise(SIGSTOP);
  send(SIGCONT);
}

void Job::reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto rank =
        std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.alive && r.pid == pid; });
    if (rank == ranks_.end()) continue;  // an orphan of a rank
    rank->alive = false;
    ended(int(rank - ranks_.begin()), status);
  }
}

void Job::ended(int number, int status) {
  const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  // What ends because we ended it is no failure of its own.
  if (good || ending_ || (exit_code_ && !options_.keep_going)) return;
  const pid_t pid = ranks_[size_t(number)].pid;
  const char* then = options_.keep_going || alive() == 0 ? "" : "; ending the other ranks";
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    say("rank {} (pid {}) was ended by signal {} (SIG{}, {}){}{}", number, pid, signal, ::sigabbrev_np(signal),
        ::sigdescr_np(signal), WCOREDUMP(status) ? ", core dumped" : "", then);
  } else {
    say("rank {} (pid {}) exited with code {}{}", number, pid, WEXITSTATUS(status), then);
  }
  if (!exit_code_) exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (!options_.keep_going) end();
}

void Job::end() {
  if (ending_) return;
  ending_ = true;
  send(SIGTERM);
  kill_at_ = Deadline::after(milliseconds(options_.grace_s));
}

// To the process group of each rank, which the rank makes first of all: before that, to the rank itself.
void Job::send(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.alive && ::kill(-rank.pid, signal) != 0) ::kill(rank.pid, signal);
  }
}

// Ranks that are still alive with their process groups, and all that ranks have left behind: as orphans those are our
// children, and when they die so are theirs.
void Job::kill_leftovers() {
  send(SIGKILL);
  for (int round = 0; round < 2000; ++round) {
    std::ifstream children(fmt::format("/proc/self/task/{}/children", ::getpid()));
    for (pid_t pid = 0; children >> pid;) ::kill(pid, SIGKILL);
    pid_t pid = 0;
    while ((pid = ::waitpid(-1, nullptr, WNOHANG)) > 0) continue;
    if (pid < 0) break;  // none left
    ::usleep(1000);
  }
  for (Rank& rank : ranks_) rank.alive = false;
}

}  // namespace weft::run
