#include "transports/loop/loop.hpp"

#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "memory/regions.hpp"
#include "transports/ring_wire.hpp"

namespace weft {
namespace {

constexpr size_t kDataBytes = 256 << 10;

// What the two ends of a wire share. End 0 is the lower rank's.
struct Link {
  Scratch memory;
  Fd bell[2];
  std::atomic<bool> gone[2] = {false, false};
};

// The links of one communicator. They live as long as any of its ranks: one that sends its last messages and leaves may
// be gone before their receiver first looks at its end of the wire.
class Links {
 public:
  // Those of a communicator that ranks of this process are in.
  static std::shared_ptr<Links> of(uint64_t group) {
    static std::mutex mutex;
    static auto* all = new std::map<uint64_t, std::weak_ptr<Links>>;
    std::lock_guard lock(mutex);
    std::erase_if(*all, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Links>& entry = (*all)[group];
    std::shared_ptr<Links> links = entry.lock();
    if (links == nullptr) entry = links = std::make_shared<Links>();
    return links;
  }

  // Null when memory or descriptors are out.
  std::shared_ptr<Link> between(int rank, int peer) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Link>& link = links_[std::minmax(rank, peer)];
    if (link != nullptr) return link;
    auto made = std::make_shared<Link>();
    if (made->memory.get(2 * ring_memory(kDataBytes)) == nullptr) return nullptr;
    for (Fd& bell : made->bell) bell = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!made->bell[0] || !made->bell[1]) return nullptr;
    link = std::move(made);
    return link;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::shared_ptr<Link>> links_;  // by lower and higher rank
};

// One random name for a process: two ranks with the same one share their memory.
std::string process_token() {
  static const uint64_t random = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  return fmt::format("{:x}.{}", random, ::getpid());
}

class LoopWire final : public RingWire {
 public:
  LoopWire(int rank, int peer, std::shared_ptr<Link> link, Poller* poller)
      : RingWire(peer), link_(std::move(link)), side_(rank < peer ? 0 : 1), poller_(poller) {
    if (link_ == nullptr) {
      fail(WireError::Kind::broken, "no memory or descriptors for the rings between two threads");
      return;
    }
    std::byte* base = link_->memory.get(0);
    attach(base + side_ * ring_memory(kDataBytes), base + (1 - side_) * ring_memory(kDataBytes), kDataBytes);
    (void)poller_->add(link_->bell[side_].get(), EPOLLIN);
  }
  ~LoopWire() override { close(); }

  std::string_view transport() const override { return "loop"; }
  void tick() override {
    if (link_ == nullptr || !link_->gone[1 - side_].load(std::memory_order_acquire)) return;
    while (progress()) {
    }
    if (has_requests()) fail(WireError::Kind::closed, "its communicator was destroyed");
  }
  void cancel() override {
    RingWire::cancel();
    // The peer is a thread of ours and may be reading or writing what will be freed next.
    while (connected() && (peer_writes() || rings_.tx.header()->reading.load(std::memory_order_seq_cst) != 0)) {
      ::sched_yield();
    }
    close();
  }
  void close() override {
    if (link_ == nullptr || closed_) return;
    closed_ = true;
    poller_->remove(link_->bell[side_].get());
    link_->gone[side_].store(true, std::memory_order_release);
    wake_peer();
  }

 private:
  bool share(const Piece& piece, ViewPiece* view) override {
    *view = {reinterpret_cast<uint64_t>(piece.data), 1, static_cast<uint32_t>(piece.bytes)};
    return true;
  }
  std::byte* map(const ViewPiece& view) override { return reinterpret_cast<std::byte*>(view.address); }
  bool pull(const ViewPiece&, size_t, std::byte*, size_t) override { return false; }
  void wake_peer() override {
    const uint64_t one = 1;
    (void)!::write(link_->bell[1 - side_].get(), &one, sizeof one);
  }
  void drain_wakeups() override {
    uint64_t count;
    (void)!::read(link_->bell[side_].get(), &count, sizeof count);
  }

  std::shared_ptr<Link> link_;
  int side_;
  Poller* poller_;
  bool closed_ = false;
};

class LoopTransport final : public Transport {
 public:
  explicit LoopTransport(const TransportContext& context) : context_(context), links_(Links::of(context.group)) {}

  std::string_view name() const override { return "loop"; }
  Capability capability() const override {
    return {.latency_us = 0.1,
            .bandwidth_gbs = 10,
            .eager_bytes = RingWire::kEager,
            .same_host_only = true,
            .same_process_only = true};
  }
  std::string address() const override { return process_token(); }
  bool reaches(int, const std::string& address) override { return address == process_token(); }
  std::unique_ptr<Wire> connect(int peer, const std::string&, Deadline) override {
    return std::make_unique<LoopWire>(context_.rank, peer, links_->between(context_.rank, peer), context_.poller);
  }
  bool progress() override { return false; }

 private:
  TransportContext context_;
  std::shared_ptr<Links> links_;
};

}  // namespace

Result<std::unique_ptr<Transport>> create_loop(const TransportContext& context) {
  return std::unique_ptr<Transport>(std::make_unique<LoopTransport>(context));
}

}  // namespace weft
