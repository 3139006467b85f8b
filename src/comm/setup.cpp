// How a communicator is set up: transports, an exchange of what the ranks must know of each other, the trial of shared
// memory, a second exchange of its outcome. O(n) messages at the root.
#include <sched.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bitset>
#include <fstream>
#include <limits>
#include <map>

#include "bootstrap/bytes.hpp"
#include "comm/comm.hpp"
#include "log/log.hpp"
#include "status/parse.hpp"

namespace weft {
namespace {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Equal for all that share this host's cores, whatever they call themselves and whichever transports they may use.
std::string machine_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? host_name() : id;
}

// The cores that this rank may run on, as the text of a bit set, and how many of them its quota of processor time is
// worth ("200000 100000" in cpu.max: two).
std::string usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(0, &set);
  std::bitset<CPU_SETSIZE> cores;
  for (size_t i = 0; i < CPU_SETSIZE; ++i) cores[i] = CPU_ISSET(i, &set);
  std::string bits = cores.to_string();
  bits.erase(0, bits.find('1'));
  std::ifstream quota("/sys/fs/cgroup/cpu.max");
  double limit = 0, period = 0;
  const bool limited = static_cast<bool>(quota >> limit >> period) && period > 0;
  return fmt::format("{} {}", limited ? std::max(1, static_cast<int>(limit / period)) : CPU_SETSIZE, bits);
}

// Whether a list such as "shm,tcp" names a transport.
bool named(const std::string& list, std::string_view name) {
  return ("," + list + ",").find("," + std::string(name) + ",") != std::string::npos;
}

Status check_transport_list(const std::string& list) {
  std::string legal;
  for (const TransportEntry& entry : transports()) legal += (legal.empty() ? "" : ", ") + std::string(entry.name);
  for (size_t begin = 0; begin <= list.size() && !list.empty();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, end - begin);
    begin = end + 1;
    const auto known = transports();
    if (std::none_of(known.begin(), known.end(), [&](const auto& entry) { return entry.name == item; })) {
      return error(weftInvalidArgument, "WEFT_TRANSPORT={}: no transport is called '{}'; legal: {}", list, item, legal);
    }
  }
  return {};
}

uint32_t hash_of(const std::string& text) { return static_cast<uint32_t>(XXH64(text.data(), text.size(), 0)); }

// What must be the same on every rank, since plans, tiles and order of messages follow from it: settings, and the texts
// of the user's algorithms and of what was measured.
std::string agreed_settings(const Config& config, const std::vector<ProgramPtr>& programs, const Tune& tune,
                            const TopologyFile& topology) {
  std::string text = fmt::format(
      "WEFT_ALGO={} WEFT_TUNE_FILE (text {:08x}) WEFT_TOPOLOGY (text {:08x}) WEFT_TILE={} WEFT_WINDOW={} WEFT_ACCUM={}",
      config.algo, hash_of(tune.text), hash_of(topology.text), config.tile_bytes, config.window, config.accum);
  for (const ProgramPtr& program : programs) {
    text +=
        fmt::format(" {} {} (text {:08x})", name_of(program->collective()), program->name(), hash_of(program->text()));
  }
  return text;
}

}  // namespace

std::string Comm::pack(Member& member) {
  std::string text;
  for (const std::string* field : member.fields()) put_text(text, *field);
  for (const auto& [transport, address] : member.addresses) {
    put_text(text, transport);
    put_text(text, address);
  }
  return text;
}

Result<Comm::Member> Comm::unpack(const std::string& text) {
  Member member;
  ByteReader reader(text);
  for (std::string* field : member.fields()) *field = reader.text();
  while (reader.ok() && !reader.rest().empty()) {
    const std::string_view transport = reader.text(), address = reader.text();
    member.addresses.emplace_back(transport, address);
  }
  if (!reader.ok()) return error(weftRemoteError, "a rank introduced itself in a form that is not understood");
  return member;
}

const std::string* Comm::address_of(int peer, std::string_view transport) const {
  for (const auto& [name, address] : members_[static_cast<size_t>(peer)].addresses) {
    if (name == transport) return &address;
  }
  return nullptr;
}

Result<std::unique_ptr<Comm>> Comm::create(std::unique_ptr<Bootstrap> bootstrap, const JobId& id, Config config,
                                           std::string label, Deadline deadline) {
  auto poller = Poller::create();
  if (!poller.ok()) return poller.status();
  std::unique_ptr<Comm> comm(
      new Comm(std::move(bootstrap), id, std::move(config), std::move(label), std::move(*poller)));
  WEFT_RETURN_IF_ERROR(comm->set_up(deadline));
  return comm;
}

Status Comm::set_up(Deadline deadline) {
  auto programs = load_user_programs(config_.algo_path, size_);
  if (!programs.ok()) return programs.status();
  auto tune = read_tune(config_.tune_file);
  if (!tune.ok()) return tune.status();
  auto file = read_topology(config_.topology);
  if (!file.ok()) return error(file.status().code(), "WEFT_TOPOLOGY: {}", file.status().message());
  label(*file);
  WEFT_RETURN_IF_ERROR(make_transports());
  WEFT_RETURN_IF_ERROR(exchange(deadline, agreed_settings(config_, *programs, **tune, *file)));
  WEFT_RETURN_IF_ERROR(find_nodes(deadline));
  WEFT_RETURN_IF_ERROR(verify_user_programs(*programs, topology_.hierarchy));
  WEFT_RETURN_IF_ERROR(choose_transports());
  WEFT_RETURN_IF_ERROR(make_tuner(*programs, *tune));
  status_file_ = StatusFile::try_create(
      config_, {.job = config_.job_id, .label = label_, .group = id_.group, .rank = rank_, .size = size_});
  recorder_ = status_file_ != nullptr ? std::make_unique<FlightRecorder>(status_file_->recorder())
                                      : std::make_unique<FlightRecorder>();
  trace_ = TraceUser(config_, rank_);
  watch_ = std::make_unique<Watch>(*this);
  engine_ = std::make_unique<Engine>(*this);
  if (bootstrap_->fd() >= 0) WEFT_RETURN_IF_ERROR(poller_.add(bootstrap_->fd(), EPOLLIN));
  set_phase(CommPhase::ready);
  return {};
}

Status Comm::make_transports() {
  WEFT_RETURN_IF_ERROR(check_transport_list(config_.transport));
  const TransportContext context{
      .rank = rank_, .size = size_, .group = id_.group, .secret = id_.secret, .config = &config_, .poller = &poller_};
  std::string reasons;
  for (const TransportEntry& entry : transports()) {
    const bool asked = named(config_.transport, entry.name);
    if (size_ == 1 || !(asked || (config_.transport.empty() && !entry.on_request))) continue;
    auto made = entry.create(context);
    if (made.ok()) {
      transports_.push_back(std::move(*made));
    } else {
      log(entry.optional && !asked ? LogLevel::info : LogLevel::warn, "transport {} is not usable here: {}", entry.name,
          made.status().message());
      reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", entry.name, made.status().message());
    }
  }
  if (transports_.empty() && size_ > 1) {
    return error(weftSystemError, "rank {} has no usable transport ({})", rank_, reasons);
  }
  return {};
}

Status Comm::exchange(Deadline deadline, const std::string& agreed) {
  Member mine;
  mine.host = host_name();
  mine.machine = machine_id();
  mine.process = fmt::format("{}", ::getpid());
  mine.agreed = agreed;
  mine.site = config_.site;
  mine.rack = config_.rack;
  mine.node = config_.node;
  if (config_.ring_place >= 0) mine.place = std::to_string(config_.ring_place);
  if (size_ > 1) {
    if (auto spare = Listener::open(config_); spare.ok()) {
      spare_ = *spare;
      mine.spare = spare_->address();
    }
  }
  for (const auto& transport : transports_) mine.addresses.emplace_back(transport->name(), transport->address());
  auto all = bootstrap_->all_gather(pack(mine), deadline);
  if (!all.ok()) return all.status();
  for (int rank = 0; rank < size_; ++rank) {
    auto member = unpack((*all)[static_cast<size_t>(rank)]);
    if (!member.ok()) return member.status();
    members_.push_back(std::move(*member));
    spare_addresses_.push_back(members_.back().spare);
    if (members_.back().agreed != mine.agreed) {
      return error(weftInvalidUsage, "the ranks' settings differ: rank {} has {}, rank {} has {}", rank_, mine.agreed,
                   rank, members_.back().agreed);
    }
  }
  return {};
}

// Which ranks share memory is found out by trying: each rank looks for the lowest one that it reaches with a transport
// of one host. All learn all outcomes, so all have the same picture.
Status Comm::find_nodes(Deadline deadline) {
  int lowest = rank_;
  for (int peer = 0; peer < rank_ && lowest == rank_; ++peer) {
    for (const auto& transport : transports_) {
      const std::string* address = address_of(peer, transport->name());
      if (!transport->capability().same_host_only || address == nullptr) continue;
      if (!transport->reaches(peer, *address)) continue;
      lowest = peer;
      break;
    }
  }
  auto all = bootstrap_->all_gather(fmt::format("{} {}", lowest, usable_cores()), deadline);
  if (!all.ok()) return all.status();
  topology_.ranks = size_;
  topology_.node.clear();
  topology_.nodes = 0;
  topology_.machines = 0;
  // Of each machine (by its lowest rank): how many ranks, which cores they have between them, and the largest quota.
  std::vector<size_t> members(static_cast<size_t>(size_)), quotas(static_cast<size_t>(size_));
  std::vector<std::bitset<CPU_SETSIZE>> cores(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    int node = rank;
    size_t quota = 1;
    char bits[CPU_SETSIZE + 1] = {};
    if (std::sscanf((*all)[static_cast<size_t>(rank)].c_str(), "%d %zu %1024[01]", &node, &quota, bits) != 3 ||
        node < 0 || node > rank) {
      return error(weftRemoteError, "rank {} sent an outcome of its shared-memory trial that is not understood", rank);
    }
    if (node < rank) node = topology_.node[static_cast<size_t>(node)];
    topology_.node.push_back(node);
    topology_.nodes += node == rank ? 1 : 0;
    size_t machine = 0;
    while (members_[machine].machine != members_[static_cast<size_t>(rank)].machine) ++machine;
    ++members[machine];
    cores[machine] |= std::bitset<CPU_SETSIZE>(bits);
    quotas[machine] = std::max(quotas[machine], quota);
  }
  for (size_t machine = 0; machine < members.size(); ++machine) {
    const size_t usable = std::min(quotas[machine], cores[machine].count());
    topology_.machines += members[machine] > 0 ? 1 : 0;
    if (members[machine] <= usable) continue;
    topology_.oversubscribed = true;
    if (static_cast<int>(machine) == rank_) {
      log(LogLevel::info, "{} ranks share {} core{} of this machine: who waits yields it", members[machine], usable,
          usable == 1 ? "" : "s");
    }
  }
  make_hierarchy();
  topology_.one_process = std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
    return member.process == members_[0].process && member.host == members_[0].host;
  });
  return {};
}

// What the file says of this rank, where the variables say nothing. Communicators made from this one inherit it.
void Comm::label(const TopologyFile& file) {
  topology_.links = file.links;
  const auto fill = [](std::string& label, const std::string& text) {
    if (label.empty()) label = text;
  };
  if (const auto host = file.hosts.find(host_name()); host != file.hosts.end()) {
    fill(config_.rack, host->second.rack);
    fill(config_.site, host->second.site);
  }
  if (file.ranks != size_) {
    if (file.ranks > 0)
      log(LogLevel::info, "WEFT_TOPOLOGY is of {} ranks, this communicator has {}", file.ranks, size_);
    return;
  }
  const auto place = std::find(file.ring.begin(), file.ring.end(), rank_);
  if (config_.ring_place < 0 && place != file.ring.end()) config_.ring_place = place - file.ring.begin();
  for (const Hierarchy::Level& level : file.levels) {
    const std::string group = fmt::format("{}", level.group_of[static_cast<size_t>(rank_)]);
    if (level.name == kNodeLevel) fill(config_.node, group);
    if (level.name == "rack") fill(config_.rack, group);
    if (level.name == "site") fill(config_.site, group);
  }
}

// Ranks with places first. Empty where none has one.
std::vector<int> Comm::ring_order() const {
  std::vector<std::pair<int64_t, int>> order;
  bool any = false;
  for (int rank = 0; rank < size_; ++rank) {
    const auto place = parse_integer<int64_t>(members_[static_cast<size_t>(rank)].place);
    any = any || place.has_value();
    order.emplace_back(place.value_or(std::numeric_limits<int64_t>::max()), rank);
  }
  if (!any) return {};
  std::sort(order.begin(), order.end());
  std::vector<int> ranks;
  for (const auto& [place, rank] : order) ranks.push_back(rank);
  return ranks;
}

// Nodes are ranks that share memory, or have the same label; racks and sites are labels.
void Comm::make_hierarchy() {
  std::vector<Hierarchy::Level> levels{{kNodeLevel, {}}, {"rack", {}}, {"site", {}}};
  std::map<std::pair<int, std::string>, int> nodes;
  std::map<std::string, int> racks, sites;
  const auto number = [](auto& known, auto key) {
    return known.try_emplace(std::move(key), static_cast<int>(known.size())).first->second;
  };
  for (int rank = 0; rank < size_; ++rank) {
    const Member& member = members_[static_cast<size_t>(rank)];
    const int shared = member.node.empty() ? topology_.node[static_cast<size_t>(rank)] : -1;
    levels[0].group_of.push_back(number(nodes, std::pair(shared, member.node)));
    levels[1].group_of.push_back(number(racks, member.rack));
    levels[2].group_of.push_back(number(sites, member.site));
  }
  if (racks.size() == 1) levels.erase(levels.begin() + 1);
  topology_.hierarchy = Hierarchy::create(size_, levels, ring_order());
  std::string text;
  for (int level = 0; level < topology_.hierarchy.levels(); ++level) {
    text += fmt::format("{}{} of up to {}", level > 0 ? ", " : "", topology_.hierarchy.name(level),
                        topology_.hierarchy.span(level));
  }
  if (topology_.hierarchy.levels() > 1) log(LogLevel::info, "levels of this communicator's ranks: {}", text);
}

// One transport per pair, the same at both ends: the first in the table that both have and that crosses what lies
// between them.
Status Comm::choose_transports() {
  transport_of_.assign(static_cast<size_t>(size_), -1);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const bool same_node = topology_.node[static_cast<size_t>(peer)] == topology_.node[static_cast<size_t>(rank_)];
    for (size_t i = 0; i < transports_.size() && transport_of_[static_cast<size_t>(peer)] < 0; ++i) {
      const Capability capability = transports_[i]->capability();
      const std::string* address = address_of(peer, transports_[i]->name());
      if (address == nullptr || (capability.same_host_only && !same_node)) continue;
      if (capability.same_process_only && *address != transports_[i]->address()) continue;
      transport_of_[static_cast<size_t>(peer)] = static_cast<int>(i);
    }
    if (transport_of_[static_cast<size_t>(peer)] < 0) {
      std::string mine, theirs;
      for (const auto& transport : transports_) mine += " " + std::string(transport->name());
      for (const auto& [name, address] : members_[static_cast<size_t>(peer)].addresses) theirs += " " + name;
      return error(weftSystemError,
                   "rank {} (transports:{}) and rank {} (transports:{}) have none in common that reaches"
                   " from {} to {}",
                   rank_, mine, peer, theirs, members_[static_cast<size_t>(rank_)].host,
                   members_[static_cast<size_t>(peer)].host);
    }
  }
  std::string used;
  for (size_t i = 0; i < transports_.size(); ++i) {
    const auto peers = std::count(transport_of_.begin(), transport_of_.end(), static_cast<int>(i));
    if (peers > 0 && transports_[i]->capability().registers) registering_.push_back(transports_[i].get());
    if (peers > 0) used += fmt::format("{}{} by {}", used.empty() ? "" : ", ", peers, transports_[i]->name());
  }
  if (!used.empty()) log(LogLevel::info, "other ranks of this communicator: {}", used);
  return {};
}

Status Comm::make_tuner(const std::vector<ProgramPtr>& own, const TunePtr& tune) {
  std::vector<ProgramPtr> programs = builtin_programs();
  programs.insert(programs.end(), own.begin(), own.end());
  auto tuner = Tuner::create(topology_, std::move(programs), config_.algo, static_cast<size_t>(config_.tile_bytes),
                             static_cast<uint32_t>(config_.window), tune);
  if (!tuner.ok()) return tuner.status();
  tuner_ = std::move(*tuner);
  return {};
}

}  // namespace weft
