// Runs a shell command and keeps what it wrote.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace weft::test {

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Directory {
 public:
  Directory() : path_(testing::TempDir() + "weft-tool-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp " + path_);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A command in a process group of its own; killed when it is still there at the end.
class Process {
 public:
  explicit Process(const std::string& command) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setpgid(0, 0);
    for (auto [name, fd] : {std::pair("out", STDOUT_FILENO), std::pair("err", STDERR_FILENO)})
      ::dup2(::open((directory_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), fd);
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  ~Process() {
    if (!ended_) {
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // Its exit code, 128 + signal; a hang is a failure after `seconds`.
  int wait(double seconds = 30) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > until) {
        ADD_FAILURE() << "still runs after " << seconds << " s; output so far:\n" << out() << err();
        return -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Waits until `text` stands in the output.
  bool wait_for(const std::string& text, double seconds = 20) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (out().find(text) == std::string::npos && err().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  std::string out() const { return slurp(directory_ / "out"); }
  std::string err() const { return slurp(directory_ / "err"); }

 private:
  Directory directory_;
  pid_t pid_ = 0;
  bool ended_ = false;
};

// Whether a process (not a zombie) with this number exists.
inline bool alive(pid_t pid) {
  const std::string stat = slurp("/proc/" + std::to_string(pid) + "/stat");
  const size_t at = stat.rfind(')');
  return at != std::string::npos && stat.substr(at + 2, 1) != "Z";
}
inline bool gone_soon(pid_t pid) {
  for (int i = 0; i < 1000 && alive(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return !alive(pid);
}

}  // namespace weft::test
