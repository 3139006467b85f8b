// Latency and bandwidth of every transport between two processes, beside a plain TCP socket on the loopback device.
//   transports_perf [rounds]
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "transports/transport.hpp"

namespace weft {
namespace {

constexpr size_t kSizes[] = {8, 64, 1024, 8192, 32768, 65536, 262144, 1 << 20, 4 << 20, 16 << 20};
constexpr int kInFlight = 4;

struct Board {
  std::atomic<int> ready{0};
  std::atomic<uint32_t> bytes[2];
  char address[2][2000];
};

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// One end of something that carries messages: sends `out` and receives `in`, either may be 0 bytes long.
class End {
 public:
  virtual ~End() = default;
  virtual void exchange(size_t out, size_t in, int messages) = 0;
  // Sends a reply of 8 bytes for each message that comes in, or the other way round.
  void ping_pong(bool first, size_t bytes) {
    if (first) exchange(bytes, 0, 1);
    exchange(0, bytes, 1);
    if (!first) exchange(bytes, 0, 1);
  }
};

class RawEnd : public End {
 public:
  explicit RawEnd(Fd fd) : fd_(std::move(fd)), memory_(kInFlight * (16u << 20)) {
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
  }
  void exchange(size_t out, size_t in, int messages) override {
    for (int i = 0; i < messages; ++i) {
      char* at = memory_.data() + static_cast<size_t>(i % kInFlight) * (out + in);
      for (size_t done = 0; done < out;) done += count(::send(fd_.get(), at + done, out - done, MSG_NOSIGNAL));
      for (size_t done = 0; done < in;) done += count(::recv(fd_.get(), at + done, in - done, 0));
    }
  }

 private:
  static size_t count(ssize_t moved) { return moved > 0 ? static_cast<size_t>(moved) : 0; }
  Fd fd_;
  std::vector<char> memory_;
};

class WireEnd : public End {
 public:
  WireEnd(Transport& transport, std::unique_ptr<Wire> wire)
      : transport_(transport), wire_(std::move(wire)), memory_(kInFlight * (16u << 20)) {}
  ~WireEnd() override { wire_->close(); }
  void exchange(size_t out, size_t in, int messages) override {
    const int most = std::min(messages, kInFlight);
    Piece pieces[kInFlight];
    SendRequest sends[kInFlight];
    RecvRequest receives[kInFlight];
    const auto begin = [&](int i) {
      const int slot = i % kInFlight;
      pieces[slot] = {memory_.data() + static_cast<size_t>(slot) * (out + in), out + in};
      if (out > 0) {
        sends[slot] = {};
        sends[slot].id = {sent_++, 0, 1};
        sends[slot].source = {&pieces[slot], 1, out};
        wire_->send(sends[slot]);
      } else {
        receives[slot] = {};
        receives[slot].id = {received_++, 0, 1};
        receives[slot].sink = {&pieces[slot], 1, in};
        wire_->recv(receives[slot]);
      }
    };
    for (int i = 0; i < most; ++i) begin(i);
    for (int i = 0; i < messages; ++i) {
      const int slot = i % kInFlight;
      for (int spin = 1; out > 0 ? !sends[slot].done : !receives[slot].done; ++spin) {
        wire_->progress();
        if (spin % 64 == 0 && !wire_->connected()) transport_.progress();
        if (wire_->error().kind != WireError::Kind::none) std::abort();
      }
      if (i + most < messages) begin(i + most);
    }
  }

 private:
  Transport& transport_;
  std::unique_ptr<Wire> wire_;
  std::vector<std::byte> memory_;
  uint32_t sent_ = 0, received_ = 0;
};

void measure(End& end, bool first, const char* name, int rounds) {
  for (const size_t bytes : kSizes) {
    const int turns = std::max(10, static_cast<int>(std::min<size_t>(3000, (32u << 20) / bytes))) * rounds;
    for (int i = 0; i < turns / 10; ++i) end.ping_pong(first, bytes);
    double begin = now();
    for (int i = 0; i < turns; ++i) end.ping_pong(first, bytes);
    const double latency = (now() - begin) / turns / 2;
    begin = now();
    end.exchange(first ? bytes : 0, first ? 0 : bytes, turns);
    end.exchange(first ? 0 : 8, first ? 8 : 0, 1);
    const double stream = static_cast<double>(bytes) * turns / (now() - begin);
    if (first) fmt::print("{:>6} {:>10} B {:>10.2f} us {:>8.3f} GB/s\n", name, bytes, latency * 1e6, stream / 1e9);
  }
}

template <typename Make>
void run(const char* name, int rounds, Make make) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  {
    std::unique_ptr<End> end = make(child == 0 ? 1 : 0);
    measure(*end, child != 0, name, rounds);
    end.reset();
  }
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
}

void run_raw(int rounds) {
  Fd listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes);
  ::listen(listener.get(), 1);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  run("raw", rounds, [&](int rank) -> std::unique_ptr<End> {
    Fd fd(rank == 0 ? ::accept(listener.get(), nullptr, nullptr) : ::socket(AF_INET, SOCK_STREAM, 0));
    if (rank == 1) ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes);
    return std::make_unique<RawEnd>(std::move(fd));
  });
}

void run_transport(const TransportEntry& entry, int rounds, Board& board) {
  static Config config = *parse_config([](const std::string&) { return std::nullopt; });
  config.socket_ifname = "=lo";
  board.ready = 0;
  static std::unique_ptr<Poller> poller;
  static std::unique_ptr<Transport> transport;
  run(std::string(entry.name).c_str(), rounds, [&](int rank) -> std::unique_ptr<End> {
    poller = std::make_unique<Poller>(std::move(*Poller::create()));
    TransportContext context;
    context.rank = rank;
    context.size = 2;
    context.config = &config;
    context.poller = poller.get();
    transport = std::move(*entry.create(context));
    const std::string address = transport->address();
    std::memcpy(board.address[rank], address.data(), address.size());
    board.bytes[rank] = static_cast<uint32_t>(address.size());
    for (++board.ready; board.ready < 2;) continue;
    auto wire = transport->connect(1 - rank, std::string(board.address[1 - rank], board.bytes[1 - rank]),
                                   Deadline::after(std::chrono::seconds(5)));
    while (!wire->connected()) transport->progress(), wire->progress();
    for (int i = 0; i < 10000; ++i) transport->progress();
    return std::make_unique<WireEnd>(*transport, std::move(wire));
  });
  transport.reset();
  poller.reset();
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  using namespace weft;
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  void* shared = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Board* board = new (shared) Board();
  run_raw(rounds);
  for (const TransportEntry& entry : transports()) {
    if (entry.name != "loop") run_transport(entry, rounds, *board);
  }
  run_raw(rounds);
}
