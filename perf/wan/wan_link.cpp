// A long link in user space: joins network namespaces as sites, with a rate, a delay, jitter and loss. Each site has a
// TUN device, and whatever goes to another site's addresses (10.77.<site>.x) passes three queues: out of its site at
// the site's rate, a delay, and into the other site at that one's rate. Queues drop their tail beyond a round trip's
// worth. Segments of up to 64 KiB pass whole (TSO), which is what makes it fast. perf/wan/weft-wan sets it up.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <queue>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr size_t kHeader = 10;  // of virtio_net_hdr, whose header is no C++
constexpr size_t kLargest = 65536 + 256;
constexpr size_t kBatch = 64;  // packets read from one site in a row

struct Options {
  int sites = 2;
  std::string prefix = "wan", netns;
  double mbit = 1000, delay_ms = 20, jitter_ms = 0, loss = 0, buffer_ms = 0;
  uint64_t seed = 1;
};

uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "wan-link: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

// Made inside the site's namespace, where it stays.
int open_tun(const std::string& netns, const std::string& name) {
  const int here = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int there = ::open(("/run/netns/" + netns).c_str(), O_RDONLY | O_CLOEXEC);
  if (here < 0 || there < 0 || ::setns(there, CLONE_NEWNET) != 0) die("network namespace " + netns);
  const int fd = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) die("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  if (::ioctl(fd, TUNSETIFF, &request) != 0) die("device " + name);
  if (::ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) != 0) die("offload of " + name);
  if (::setns(here, CLONE_NEWNET) != 0) die("back from " + netns);
  ::close(here);
  ::close(there);
  return fd;
}

struct Packet {
  uint64_t due = 0, order = 0;
  int from = 0, to = 0;
  std::vector<char> data;
  bool operator>(const Packet& other) const { return due != other.due ? due > other.due : order > other.order; }
};

struct Site {
  int fd = -1;
  uint64_t out_free = 0, in_free = 0;  // when the rate lets the next packet out, or in
  uint64_t queued = 0;                 // bytes on their way from here
  uint64_t bytes_out = 0, bytes_in = 0, packets = 0, dropped = 0, lost = 0;
};

class Link {
 public:
  explicit Link(const Options& options) : options_(options), random_(options.seed) {
    for (int i = 0; i < options.sites; ++i) {
      sites_.emplace_back().fd = open_tun(options.netns + std::to_string(i), options.prefix + "0");
    }
    const double buffer_ms = options.buffer_ms > 0 ? options.buffer_ms : 2 * options.delay_ms + 50;
    // What is on the way is not in the queue: room for both.
    limit_ = static_cast<uint64_t>(options.mbit * 125 * (buffer_ms + options.delay_ms)) + (1 << 20);
  }
  void run();

 private:
  void read_from(size_t from, uint64_t now);
  void deliver(uint64_t now);
  uint64_t wire_time(size_t bytes) const {
    return static_cast<uint64_t>(static_cast<double>(bytes) * 8000 / options_.mbit);
  }
  int site_of(const char* packet, size_t bytes) const;

  const Options& options_;
  std::mt19937_64 random_;
  std::vector<Site> sites_;
  uint64_t limit_ = 0, order_ = 0;
  std::priority_queue<Packet, std::vector<Packet>, std::greater<>> flying_;
  std::vector<std::vector<char>> spare_;
  char buffer_[kLargest];
};

// -1: not to a site.
int Link::site_of(const char* packet, size_t bytes) const {
  if (bytes < kHeader + 20 || (packet[kHeader] >> 4) != 4) return -1;
  const auto* to = reinterpret_cast<const unsigned char*>(packet + kHeader + 16);
  return to[0] == 10 && to[1] == 77 && to[2] < sites_.size() ? to[2] : -1;
}

void Link::read_from(size_t from, uint64_t now) {
  Site& site = sites_[from];
  for (size_t i = 0; i < kBatch; ++i) {
    const ssize_t bytes = ::read(site.fd, buffer_, sizeof buffer_);
    if (bytes <= 0) return;
    const auto size = static_cast<size_t>(bytes);
    const int to = site_of(buffer_, size);
    if (to < 0 || to == static_cast<int>(from)) continue;
    ++site.packets;
    // A segment is as many packets as it would be on a wire.
    const double packets = static_cast<double>(size) / 1500 + 1;
    if (options_.loss > 0 && std::uniform_real_distribution<>()(random_) < options_.loss * packets) {
      ++site.lost;
      continue;
    }
    if (site.queued + size > limit_) {
      ++site.dropped;
      continue;
    }
    const uint64_t took = wire_time(size - kHeader);
    site.out_free = std::max(site.out_free, now) + took;
    double delay = options_.delay_ms * 1e6;
    if (options_.jitter_ms > 0) delay += std::uniform_real_distribution<>(0, options_.jitter_ms * 1e6)(random_);
    Site& target = sites_[static_cast<size_t>(to)];
    const uint64_t arrival = site.out_free + static_cast<uint64_t>(delay);
    target.in_free = std::max(target.in_free + took, arrival);
    site.queued += size;
    site.bytes_out += size - kHeader;
    Packet packet{.due = target.in_free, .order = order_++, .from = static_cast<int>(from), .to = to, .data = {}};
    if (!spare_.empty()) {
      packet.data = std::move(spare_.back());
      spare_.pop_back();
    }
    packet.data.assign(buffer_, buffer_ + size);
    flying_.push(std::move(packet));
  }
}

void Link::deliver(uint64_t now) {
  while (!flying_.empty() && flying_.top().due <= now) {
    auto& packet = const_cast<Packet&>(flying_.top());  // it goes at once
    Site& to = sites_[static_cast<size_t>(packet.to)];
    sites_[static_cast<size_t>(packet.from)].queued -= packet.data.size();
    if (::write(to.fd, packet.data.data(), packet.data.size()) > 0) {
      to.bytes_in += packet.data.size() - kHeader;
    } else {
      ++to.dropped;
    }
    spare_.push_back(std::move(packet.data));
    flying_.pop();
  }
}

void Link::run() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int stop = ::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  std::vector<int> all{stop, timer};
  for (const Site& site : sites_) all.push_back(site.fd);
  for (const int fd : all) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  }
  std::puts("ready");
  std::fflush(stdout);
  for (bool running = true; running;) {
    for (size_t i = 0; i < sites_.size(); ++i) {
      read_from(i, now_ns());
      deliver(now_ns());
    }
    itimerspec when{};
    if (!flying_.empty()) {
      const uint64_t due = flying_.top().due;
      if (due <= now_ns()) continue;
      when.it_value = {static_cast<time_t>(due / 1'000'000'000), static_cast<long>(due % 1'000'000'000)};
    }
    ::timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, nullptr);
    epoll_event events[8];
    const int count = ::epoll_wait(epoll, events, 8, -1);
    for (int i = 0; i < count; ++i) {
      uint64_t ignored;
      if (events[i].data.fd == stop) running = false;
      if (events[i].data.fd == timer) static_cast<void>(!::read(timer, &ignored, sizeof ignored));
    }
  }
  std::string text = "[";
  for (const Site& site : sites_) {
    char line[256];
    std::snprintf(line, sizeof line,
                  "%s{\"bytes_out\": %llu, \"bytes_in\": %llu, \"packets\": %llu, \"dropped\": %llu, \"lost\": %llu}",
                  text.size() > 1 ? ", " : "", static_cast<unsigned long long>(site.bytes_out),
                  static_cast<unsigned long long>(site.bytes_in), static_cast<unsigned long long>(site.packets),
                  static_cast<unsigned long long>(site.dropped), static_cast<unsigned long long>(site.lost));
    text += line;
  }
  std::puts((text + "]").c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Joins network namespaces NAME0, NAME1, ... as sites by long links; prints counters when it is told to stop.",
      "wan-link");
  app.add_option("--netns", options.netns, "NAME of the namespaces")->required();
  app.add_option("--sites", options.sites, "How many (2)")->check(CLI::Range(2, 64));
  app.add_option("--mbit", options.mbit, "10^6 bits a second out of, and into, each site (1000)")
      ->check(CLI::PositiveNumber);
  app.add_option("--delay-ms", options.delay_ms, "One way (20)")->check(CLI::NonNegativeNumber);
  app.add_option("--jitter-ms", options.jitter_ms, "Up to so much more, each packet by itself (0)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--loss", options.loss, "Part of the packets that get lost (0)")->check(CLI::Range(0.0, 1.0));
  app.add_option("--buffer-ms", options.buffer_ms, "Queue at each site, in time at its rate (a round trip and 50)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed, "Of what is lost (1)");
  CLI11_PARSE(app, argc, argv);
  Link(options).run();
}
