#include "common/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/host.hpp"

namespace weft::perf {

Watchdog::Watchdog(int ranks, int seconds) : seconds_(seconds), slots_(static_cast<size_t>(ranks)) {
  if (seconds > 0) thread_ = std::thread([this] { loop(); });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::watch(int local_rank, const Member& member) {
  std::lock_guard lock(mutex_);
  slots_[static_cast<size_t>(local_rank)].member = member;
}

void Watchdog::start(int local_rank) {
  if (seconds_ == 0) return;
  std::lock_guard lock(mutex_);
  Slot& slot = slots_[static_cast<size_t>(local_rank)];
  slot.running = true;
  slot.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds_);
}

void Watchdog::stop(int local_rank) {
  if (seconds_ == 0) return;
  std::lock_guard lock(mutex_);
  slots_[static_cast<size_t>(local_rank)].running = false;
}

bool Watchdog::expired(int local_rank) {
  if (seconds_ == 0) return false;
  if (fired_) return true;
  std::lock_guard lock(mutex_);
  const Slot& slot = slots_[static_cast<size_t>(local_rank)];
  auto skew = std::max(std::chrono::milliseconds(500), std::chrono::milliseconds(seconds_ * 100));
  return slot.running && std::chrono::steady_clock::now() + skew >= slot.deadline;
}

void Watchdog::loop() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    changed_.wait_for(lock, std::chrono::milliseconds(50));
    auto now = std::chrono::steady_clock::now();
    for (Slot& slot : slots_) {
      if (!slot.running || now < slot.deadline) continue;
      slot.running = false;
      fired_ = true;
      weftCommAbort(slot.member.group);
      if (slot.member.world != slot.member.group) weftCommAbort(slot.member.world);
    }
  }
}

Session::Session(const Options& options, const Environment& environment, const char* program)
    : options_(options), first_device_(environment.first_device), watchdog_(options.local_ranks(), options.timeout_s) {
  config_.transport = options.transport;
  config_.algo = options.algo;
  config_.comm_name = program;
  auto local = static_cast<size_t>(options.local_ranks());
  worlds_.resize(local);
  groups_.resize(local);
  members_.resize(local);

  Communicator launched = Communicator::from_env(config_);
  process_ = launched.rank();
  processes_ = launched.size();
  color_ = split_color(environment.split, process_);
  group_processes_ = 0;
  for (int p = 0; p < processes_; ++p) group_processes_ += split_color(environment.split, p) == color_;
  if (local == 1) {
    worlds_[0] = std::move(launched);
    return;
  }
  processes_comm_ = std::move(launched);
  // All ranks in one process need no address; but the call takes no configuration, and joins one rank after the other.
  bool configured = !options.transport.empty() || !options.algo.empty();
  if (processes_ == 1 && !configured && options.parallel_init == 0)
    worlds_ = Communicator::all(options.local_ranks());
  else
    share_id();
}

void Session::share_id() {
  if (process_ == 0) id_ = make_unique_id();
  if (processes_ > 1) processes_comm_.broadcast(std::span<char>(id_.internal), 0);
}

Member Session::join(int local_rank) {
  auto i = static_cast<size_t>(local_rank);
  int rank = process_ * options_.local_ranks() + local_rank;
  if (!worlds_[i]) worlds_[i] = Communicator::join(id_, ranks(), rank, config_);
  Member m;
  m.world = worlds_[i].raw();
  m.world_rank = worlds_[i].rank();
  m.world_size = worlds_[i].size();
  m.group = m.world;
  m.group_rank = m.world_rank;
  m.group_size = m.world_size;
  if (group_processes_ != processes_) {
    groups_[i] = worlds_[i].split(color_, rank);
    m.group = groups_[i].raw();
    m.group_rank = groups_[i].rank();
    m.group_size = groups_[i].size();
  }
  members_[i] = m;
  watchdog_.watch(local_rank, m);
  return m;
}

void Session::abandon(int local_rank) {
  const Member& m = members_[static_cast<size_t>(local_rank)];
  if (m.group != nullptr) weftCommAbort(m.group);
  if (m.world != nullptr && m.world != m.group) weftCommAbort(m.world);
}

void Session::leave(int local_rank) {
  auto i = static_cast<size_t>(local_rank);
  watchdog_.stop(local_rank);
  members_[i] = {};
  groups_[i] = {};
  worlds_[i] = {};
}

std::vector<RankInfo> Session::exchange(const Member& member, int local_rank) const {
  RankInfo own{};
  own.rank = member.world_rank;
  own.group = color_;
  own.pid = getpid();
  // Devices are numbered along the ranks of a host; the exchange below tells which those are.
  own.device = first_device_ >= 0 ? first_device_ + local_rank : -1;
  std::strncpy(own.host, host_name().c_str(), sizeof(own.host) - 1);
  std::strncpy(own.name, cpu_name().c_str(), sizeof(own.name) - 1);
  own.memory_available = memory_available();

  std::vector<RankInfo> all(static_cast<size_t>(member.world_size));
  check(weftAllGather(&own, all.data(), sizeof(own), weftUint8, member.world, nullptr), "weftAllGather", member.world);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].device >= 0) continue;
    auto same_host = [&](const RankInfo& other) { return std::strcmp(other.host, all[r].host) == 0; };
    all[r].device = static_cast<int32_t>(std::count_if(all.begin(), all.begin() + static_cast<long>(r), same_host));
  }
  return all;
}

}  // namespace weft::perf
