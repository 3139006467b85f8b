// Bandwidth of one wire from one process to another, in the manner of ucx_perftest: the same buffer over and over.
//   wire_bandwidth TRANSPORT BYTES [MESSAGES [CPU CPU]]             MiB/s
//   wire_bandwidth --latency TRANSPORT BYTES [MESSAGES [CPU CPU]]   microseconds one way: median of half round trips
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "transports/transport.hpp"

namespace weft {
namespace {

constexpr uint32_t kInFlight = 16;

struct Board {
  std::atomic<uint32_t> bytes[2];
  char address[2][4000];
};

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// Stays until the program ends.
std::byte* pages(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(memory);
}

class End {
 public:
  // Memory as ucx_perftest's, since half of the time of a short process_vm_readv goes by pages: what is sent was never
  // written.
  End(Transport& transport, Wire& wire, size_t bytes)
      : transport_(transport), wire_(wire), out_{pages(bytes), bytes}, in_{pages(bytes), bytes} {
    std::memset(in_.data, 1, bytes);
  }
  void send(uint32_t count) {
    stream(sends_, count, [&](SendRequest& request, size_t bytes) {
      request.id = {sent_++, 0, 1};
      request.source = {&out_, 1, bytes};
      wire_.send(request);
    });
  }
  void receive(uint32_t count) {
    stream(receives_, count, [&](RecvRequest& request, size_t bytes) {
      request.id = {received_++, 0, 1};
      request.sink = {.dst = &in_, .count = 1, .bytes = bytes};
      wire_.recv(request);
    });
  }

 private:
  template <typename Request, typename Begin>
  void stream(Request (&requests)[kInFlight], uint32_t count, Begin begin) {
    for (uint32_t i = 0; i < count + kInFlight; ++i) {
      Request& request = requests[i % kInFlight];
      for (uint32_t spin = 1; i >= kInFlight && i - kInFlight < count && !request.done; ++spin) {
        wire_.progress();
        if (spin % 64 == 0) transport_.progress();
        if (spin % 4096 == 0) wire_.tick();
        if (wire_.error().kind != WireError::Kind::none) {
          std::fprintf(stderr, "%s\n", wire_.error().text.c_str());
          std::_Exit(1);
        }
      }
      if (i < count) begin(request, in_.bytes);
    }
  }

  Transport& transport_;
  Wire& wire_;
  Piece out_, in_;
  SendRequest sends_[kInFlight];
  RecvRequest receives_[kInFlight];
  uint32_t sent_ = 0, received_ = 0;
};

void bandwidth(End& end, int rank, size_t bytes, uint32_t messages) {
  // The receiver answers once at the end of a round: the last bytes are there.
  for (const uint32_t count : {messages / 10 + 1, messages}) {
    const double begin = now();
    rank == 0 ? end.send(count) : end.receive(count);
    rank == 0 ? end.receive(1) : end.send(1);
    const double took = now() - begin;
    if (rank == 0 && count == messages) std::printf("%.1f\n", static_cast<double>(bytes) * count / took / 1048576);
  }
}

// By the processor's counter: reading a clock may take longer than a message does, in a virtual machine by far.
uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<uint64_t>(now() * 1e9);
#endif
}

void latency(End& end, int rank, uint32_t messages) {
  std::vector<double> halves;
  const double begin = now();
  const uint64_t first = ticks();
  for (uint32_t i = 0; i < messages; ++i) {
    const uint64_t sent = ticks();
    rank == 0 ? end.send(1) : end.receive(1);
    rank == 0 ? end.receive(1) : end.send(1);
    if (i >= messages / 10) halves.push_back(static_cast<double>(ticks() - sent) / 2);
  }
  const double microseconds = (now() - begin) * 1e6 / static_cast<double>(ticks() - first);
  const auto middle = halves.begin() + static_cast<std::ptrdiff_t>(halves.size() / 2);
  std::nth_element(halves.begin(), middle, halves.end());
  if (rank == 0) std::printf("%.2f\n", *middle * microseconds);
}

int run(const TransportEntry& entry, int rank, size_t bytes, uint32_t messages, bool one_way, Board& board) {
  Config config = *parse_config([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
  config.socket_ifname = "=lo";
  Result<Poller> poller = Poller::create();
  TransportContext context;
  context.rank = rank;
  context.size = 2;
  context.config = &config;
  context.poller = &*poller;
  auto transport = entry.create(context);
  if (!transport.ok()) {
    std::fprintf(stderr, "%s\n", transport.status().message().c_str());
    std::_Exit(1);
  }
  const std::string mine = (*transport)->address();
  std::memcpy(board.address[rank], mine.data(), mine.size());
  board.bytes[rank] = static_cast<uint32_t>(mine.size());
  while (board.bytes[1 - rank] == 0) ::sched_yield();
  auto wire = (*transport)
                  ->connect(1 - rank, std::string(board.address[1 - rank], board.bytes[1 - rank]),
                            Deadline::after(std::chrono::seconds(5)));
  while (!wire->connected()) (*transport)->progress(), wire->tick();
  End end(**transport, *wire, bytes);
  one_way ? latency(end, rank, messages) : bandwidth(end, rank, bytes, messages);
  std::fflush(nullptr);
  wire->close();
  return 0;
}

void pin(const char* cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(std::atoi(cpu)), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  using namespace weft;
  const bool one_way = argc > 1 && std::string(argv[1]) == "--latency";
  if (one_way) --argc, ++argv;
  if (argc < 3) {
    std::fprintf(stderr, "usage: wire_bandwidth [--latency] TRANSPORT BYTES [MESSAGES [CPU CPU]]\n");
    return 2;
  }
  const size_t bytes = std::strtoull(argv[2], nullptr, 10);
  const auto messages = static_cast<uint32_t>(argc > 3 ? std::atoi(argv[3]) : 1000);
  void* shared = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Board* board = new (shared) Board();
  for (const TransportEntry& entry : transports()) {
    if (entry.name != argv[1]) continue;
    const pid_t child = ::fork();
    if (argc > 5) pin(argv[child == 0 ? 4 : 5]);
    const int result = run(entry, child == 0 ? 1 : 0, bytes, messages, one_way, *board);
    if (child == 0) ::_exit(result);
    ::waitpid(child, nullptr, 0);
    return result;
  }
  std::fprintf(stderr, "no transport %s\n", argv[1]);
  return 2;
}
