// What two ranks of one host can do at best: each collective written by hand, with nothing in it but the copies and
// additions that it needs and two meetings of the ranks. "shared": all buffers lie in memory that both map, and each
// rank reads and writes them directly. "private": a rank reads the other's memory with process_vm_readv. "tcp": the
// bytes alone, both ways at once over one socket that both poll, without the additions.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>
#include <string_view>

#include "cells.hpp"
#include "kernels/reduce.hpp"

namespace {

constexpr size_t kBlock = 64 << 10;       // stays in the second-level cache while it is worked on
constexpr size_t kStreamFrom = 16 << 20;  // buffers from which on results bypass the caches

struct Board {
  struct alignas(64) Count {
    std::atomic<uint64_t> value{0};
  } met[2];
  float* in[2];
  float* out[2];
};

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

template <typename T>
T* mapped(size_t bytes, int kind) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::exit(1);
  std::memset(memory, 0, bytes);
  return static_cast<T*>(memory);
}

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

// Two connected sockets over loopback.
void connect_pair(int ends[2]) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ends[0] = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::connect(ends[0], reinterpret_cast<sockaddr*>(&address), length) != 0) {
    give_up("loopback");
  }
  ends[1] = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  const int on = 1;
  for (int i = 0; i < 2; ++i) ::setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

class Rank {
 public:
  Rank(Board* board, int rank, pid_t peer, bool shared, int socket)
      : board_(board), rank_(rank), peer_(peer), shared_(shared), socket_(socket), bounce_(kBlock / sizeof(float)) {}

  void meet() {
    const uint64_t turn = board_->met[rank_].value.load(std::memory_order_relaxed) + 1;
    board_->met[rank_].value.store(turn, std::memory_order_release);
    while (board_->met[1 - rank_].value.load(std::memory_order_acquire) < turn) __builtin_ia32_pause();
  }

  void run(compare::Collective which, size_t floats) {
    const size_t half = std::max<size_t>(floats / 2, 1), mine = rank_ == 0 ? 0 : floats / 2, other = floats / 2 - mine;
    float* in = board_->in[rank_];
    float* out = board_->out[rank_];
    const float* there = board_->in[1 - rank_];
    if (socket_ >= 0) return send_only(which, floats, in, out);
    meet();
    switch (which) {
      case compare::allreduce:
        add(out + mine, in + mine, there + mine, half, shared_ ? board_->out[1 - rank_] + mine : nullptr, floats);
        if (!shared_) {
          meet();
          take(out + other, board_->out[1 - rank_] + other, half);
        }
        break;
      case compare::reduce_scatter:
        add(out, in + mine, there + mine, half, nullptr, floats);
        break;
      case compare::allgather:
        weft::copy(out + mine, in, half * sizeof(float));
        take(out + other, there, half);
        break;
      case compare::broadcast:
        if (rank_ == 1) take(out, board_->out[0], floats);
        break;
      default:
        weft::copy(out + mine, in + mine, half * sizeof(float));
        take(out + other, there + mine, half);
    }
    meet();
  }

 private:
  void send_only(compare::Collective which, size_t floats, const float* in, float* out) {
    const size_t half = std::max<size_t>(floats / 2, 1);
    switch (which) {
      case compare::allreduce:
        return exchange(in, floats, out, floats);
      case compare::broadcast:
        return rank_ == 0 ? exchange(out, floats, out, 0) : exchange(in, 0, out, floats);
      default:
        return exchange(in, half, out, half);
    }
  }
  void exchange(const float* from, size_t sent, float* to, size_t received) {
    constexpr size_t kPart = 1 << 20;
    const auto* out = reinterpret_cast<const char*>(from);
    auto* in = reinterpret_cast<char*>(to);
    for (size_t out_left = sent * sizeof(float), in_left = received * sizeof(float); out_left > 0 || in_left > 0;) {
      const ssize_t gave = out_left == 0 ? 0 : ::send(socket_, out, std::min(out_left, kPart), MSG_DONTWAIT);
      const ssize_t got = in_left == 0 ? 0 : ::recv(socket_, in, std::min(in_left, kPart), MSG_DONTWAIT);
      if ((gave < 0 || got < 0) && errno != EAGAIN) give_up("loopback");
      if (gave > 0) out += gave, out_left -= static_cast<size_t>(gave);
      if (got > 0) in += got, in_left -= static_cast<size_t>(got);
    }
  }
  // to = a + b, and the same to `also`; b is the other rank's.
  void add(float* to, const float* a, const float* b, size_t floats, float* also, size_t whole) {
    const weft::ReduceFn sum = weft::reduce_function(weftFloat, weftSum, whole * sizeof(float) >= kStreamFrom);
    for (size_t at = 0; at < floats; at += kBlock / sizeof(float)) {
      const size_t part = std::min(floats - at, kBlock / sizeof(float));
      const float* from = b + at;
      if (!shared_) {
        pull(bounce_.data(), from, part);
        from = bounce_.data();
      }
      sum(to + at, a + at, from, part);
      if (also != nullptr) sum(also + at, a + at, from, part);
    }
  }
  void take(float* to, const float* from, size_t floats) {
    if (shared_) {
      weft::copy(to, from, floats * sizeof(float));
    } else {
      pull(to, from, floats);
    }
  }
  void pull(float* to, const float* from, size_t floats) {
    if (floats == 0) return;
    iovec local{to, floats * sizeof(float)}, remote{const_cast<float*>(from), floats * sizeof(float)};
    if (::process_vm_readv(peer_, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(local.iov_len)) {
      give_up("process_vm_readv");
    }
  }

  Board* board_;
  int rank_;
  pid_t peer_;
  bool shared_;
  int socket_;  // -1: not by tcp
  std::vector<float> bounce_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc > 1 ? argv[1] : "";
  const bool shared = kind == "shared";
  if (!shared && kind != "private" && kind != "tcp") {
    std::fprintf(stderr, "bounds shared|private|tcp collective:bytes ...\n");
    return 2;
  }
  int ends[2] = {-1, -1};
  if (kind == "tcp") connect_pair(ends);
  const size_t bytes = compare::largest(argc, argv);
  auto* board = new (mapped<Board>(sizeof(Board), MAP_SHARED)) Board;
  // Private buffers get the same addresses in both, since they are made before the fork; each touches its own.
  for (int rank = 0; rank < 2; ++rank) {
    board->in[rank] = mapped<float>(bytes, shared ? MAP_SHARED : MAP_PRIVATE);
    board->out[rank] = mapped<float>(bytes, shared ? MAP_SHARED : MAP_PRIVATE);
  }
  const pid_t parent = ::getpid(), child = ::fork();
  const int rank = child == 0 ? 1 : 0;
  pin(rank);
  if (!shared) {  // copies of its own, in place of those that it shares with the other since the fork
    std::memset(board->in[rank], 0, bytes);
    std::memset(board->out[rank], 0, bytes);
  }
  Rank me(board, rank, child == 0 ? parent : child, shared, ends[rank]);
  compare::run_cells(
      argc, argv, rank, {board->in[rank], board->out[rank]},
      [&](compare::Collective which, size_t floats, compare::Buffers) { me.run(which, floats); }, [&] { me.meet(); });
  if (child != 0) ::waitpid(child, nullptr, 0);
  return 0;
}
