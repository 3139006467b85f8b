// weft-probe: measures the links between the ranks of a job, by messages from rank to rank only, and writes a topology
// file. Runs as the job would: weft-run -n 8 weft-probe -o topology.json
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <weft/weft.hpp>

#include "cluster.hpp"
#include "topology/topology_file.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using weft::Communicator;
using weft::Link;

constexpr int kAllPairs = 48;     // nodes: up to so many, all pairs are measured; beyond, those 1, 2, 4, ... apart
constexpr double kSiteRatio = 4;  // far is at least so much farther than near
constexpr size_t kRingBytes = 64 << 10;  // of a message that tells long links and thin ones from others
constexpr double kRingGain = 1.25;       // an order is told where its worst link is by so much better
constexpr int kLabel = 96;

double since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

template <typename T>
T median(std::vector<T> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// What a rank says of itself.
struct Label {
  char machine[kLabel] = {}, rack[kLabel] = {}, site[kLabel] = {};
};

void fill(char (&to)[kLabel], const std::string& text) { std::strncpy(to, text.c_str(), kLabel - 1); }

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Ranks that share memory have the same boot and, where it is told, the same node.
std::string machine() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  char host[64] = {};
  ::gethostname(host, sizeof host - 1);
  // In a network namespace of its own, a rank has neighbours over its network only.
  char network[64] = {};
  static_cast<void>(::readlink("/proc/self/ns/net", network, sizeof network - 1));
  return fmt::format("{} {} {} {}", variable("WEFT_NODE"), host, id.substr(0, 8), network);
}

class Probe {
 public:
  explicit Probe(Communicator& comm) : comm_(comm), rank_(comm.rank()), size_(comm.size()) {}
  weft::Topology run();

 private:
  void gather_labels();
  std::vector<int> numbers(char (Label::*field)[kLabel]) const;
  double round_trip(int peer, int repeats, size_t bytes = 1);
  weft::probe::Latencies latencies_between(const std::vector<int>& representatives, int repeats, size_t bytes);
  std::vector<int> ring_order(const weft::Hierarchy& tree);
  Link measure(const weft::Hierarchy& tree, int level);
  double rate(const std::vector<int>& to, const std::vector<int>& from, size_t bytes);
  // The largest of all ranks' values.
  double most(double value) {
    std::vector<double> all{value};
    comm_.all_reduce(all, weftMax);
    return all[0];
  }

  Communicator& comm_;
  int rank_, size_;
  std::vector<Label> labels_;
  std::vector<char> send_, receive_;
};

void Probe::gather_labels() {
  Label mine;
  fill(mine.machine, machine());
  fill(mine.rack, variable("WEFT_RACK"));
  fill(mine.site, variable("WEFT_SITE"));
  std::vector<char> one(sizeof mine), all(sizeof mine * static_cast<size_t>(size_));
  std::memcpy(one.data(), &mine, sizeof mine);
  comm_.all_gather(one, all);
  labels_.resize(static_cast<size_t>(size_));
  std::memcpy(labels_.data(), all.data(), all.size());
}

std::vector<int> Probe::numbers(char (Label::*field)[kLabel]) const {
  std::map<std::string, int> known;
  std::vector<int> groups;
  for (const Label& label : labels_) {
    groups.push_back(known.try_emplace(label.*field, static_cast<int>(known.size())).first->second);
  }
  return groups;
}

// Half of it: one way. The least of many, since nothing makes a message faster than it is.
double Probe::round_trip(int peer, int repeats, size_t bytes) {
  std::vector<char> message(bytes);
  double least = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = Clock::now();
    if (rank_ < peer) {
      comm_.send(message, peer);
      comm_.recv(message, peer);
    } else {
      comm_.recv(message, peer);
      comm_.send(message, peer);
    }
    if (i > 2) least = std::min(least, since(begin) / 2);
  }
  return least;
}

// A tournament: in each round every part meets another. Few parts meet all others; many meet those 1, 2, 4, ... apart.
weft::probe::Latencies Probe::latencies_between(const std::vector<int>& representatives, int repeats, size_t bytes) {
  const int parts = static_cast<int>(representatives.size());
  const auto place = std::find(representatives.begin(), representatives.end(), rank_);
  const int mine = place == representatives.end() ? -1 : static_cast<int>(place - representatives.begin());
  std::vector<double> found(static_cast<size_t>(parts) * static_cast<size_t>(parts), -1);
  const auto meet = [&](int a, int b) {
    if (mine != a && mine != b) return;
    const double one_way = round_trip(representatives[static_cast<size_t>(mine == a ? b : a)], repeats, bytes);
    found[static_cast<size_t>(a * parts + b)] = found[static_cast<size_t>(b * parts + a)] = one_way;
  };
  if (parts <= kAllPairs) {
    const int players = parts + parts % 2;
    for (int round = 0; round + 1 < players; ++round) {
      for (int i = 0; i < players / 2; ++i) {
        const int a = i == 0 ? players - 1 : (round + i) % (players - 1);
        const int b = (round + players - 1 - i) % (players - 1);
        if (a < parts && b < parts) meet(std::min(a, b), std::max(a, b));
      }
    }
  } else {
    for (int apart = 1; apart < parts; apart *= 2) {
      for (const int first : {0, 1}) {  // pairs that do not overlap, then the others
        for (int a = 0; a + apart < parts; ++a) {
          if (a / apart % 2 == first) meet(a, a + apart);
        }
      }
    }
  }
  comm_.all_reduce(found, weftMax);
  return {parts, std::move(found)};
}

// All ranks in the order in which a ring goes through the parts of the highest level with the best worst link; empty
// where the order of their numbers is hardly worse.
std::vector<int> Probe::ring_order(const weft::Hierarchy& tree) {
  const int top = tree.levels() - 1, parts = tree.parts(top, 0);
  if (parts < 4 || parts > kAllPairs) return {};  // of three parts there is one ring
  std::vector<int> representatives;
  for (int part = 0; part < parts; ++part) representatives.push_back(tree.owner(top, 0, part, 0, 0));
  const weft::probe::Latencies times = latencies_between(representatives, 6, kRingBytes);
  const std::vector<int> ring = weft::probe::ring_through(times, kRingGain);
  std::vector<int> order;
  for (const int part : ring) {
    for (int rank = 0; rank < size_; ++rank) {
      if (tree.position(top, rank, 0) == part) order.push_back(rank);
    }
  }
  return order;
}

// All ranks send to one and receive from one at once: what the slowest of them reaches, in bytes a nanosecond. No
// partner (-1): they wait.
double Probe::rate(const std::vector<int>& to, const std::vector<int>& from, size_t bytes) {
  const int next = to[static_cast<size_t>(rank_)], previous = from[static_cast<size_t>(rank_)];
  send_.resize(bytes);
  receive_.resize(bytes);
  std::vector<double> times;
  for (int i = 0; i < 4; ++i) {
    comm_.barrier();
    const auto begin = Clock::now();
    weft::Group group;
    if (next >= 0) comm_.send(send_, next);
    if (previous >= 0) comm_.recv(receive_, previous);
    group.end();
    if (i > 0)
      times.push_back(most(since(begin)));
    else
      most(0);
  }
  return static_cast<double>(bytes) / (median(times) * 1000);
}

// Of the links from part to part of this level's groups.
Link Probe::measure(const weft::Hierarchy& tree, int level) {
  Link link;
  // Who meets whom: the owner of each column in the next part.
  std::vector<int> to(static_cast<size_t>(size_), -1), from(static_cast<size_t>(size_), -1);
  std::vector<int> senders(static_cast<size_t>(level == 0 ? size_ : tree.groups(level - 1)));
  const int64_t columns = tree.tail(-1) / tree.tail(level - 1);
  for (int rank = 0; rank < size_; ++rank) {
    const int parts = tree.parts(level, rank), position = tree.position(level, rank, 0);
    if (parts == 1) continue;
    for (int64_t column = 0; column < columns; ++column) {
      if (tree.owner(level, rank, position, column, 0) != rank || to[static_cast<size_t>(rank)] >= 0) continue;
      const int next = tree.owner(level, rank, (position + 1) % parts, column, 0);
      if (from[static_cast<size_t>(next)] >= 0) continue;
      to[static_cast<size_t>(rank)] = next;
      from[static_cast<size_t>(next)] = rank;
      ++senders[static_cast<size_t>(level == 0 ? rank : tree.group(level - 1, rank))];
    }
  }
  // One way, between the first two parts of each group; and what a message costs in a row of many.
  double one_way = 0, message = 0;
  const int position = tree.position(level, rank_, 0);
  const bool pairs = tree.parts(level, rank_) > 1 && position < 2 && tree.owner(level, rank_, position, 0, 0) == rank_;
  const int peer = pairs ? tree.owner(level, rank_, 1 - position, 0, 0) : -1;
  comm_.barrier();
  if (pairs) one_way = round_trip(peer, 40);
  link.latency_us = most(one_way);
  comm_.barrier();
  if (pairs) {
    constexpr int kRow = 256;
    std::vector<char> byte(8);
    std::vector<double> rows;
    for (int i = 0; i < 5; ++i) {
      const auto begin = Clock::now();
      for (int k = 0; k < kRow; ++k) position == 0 ? comm_.send(byte, peer) : comm_.recv(byte, peer);
      position == 0 ? comm_.recv(byte, peer) : comm_.send(byte, peer);
      rows.push_back((since(begin) - 2 * one_way) / kRow);
    }
    message = std::max(0.0, median(rows));
  }
  link.message_us = std::min(most(message), link.latency_us / 2);
  link.latency_us = std::max(link.latency_us - 2 * link.message_us, link.latency_us / 10);
  // Long enough that the latency does not matter, short enough that a slow link does not take forever.
  size_t bytes = 64 << 10;
  double per_ns = rate(to, from, bytes);
  while (bytes < size_t{64} << 20 && static_cast<double>(bytes) / per_ns < 20e6 + 20 * 1000 * link.latency_us) {
    bytes *= 4;
    per_ns = rate(to, from, bytes);
  }
  const int together = std::max(1, *std::max_element(senders.begin(), senders.end()));
  link.byte_ns = 1 / (per_ns * (level == 0 ? 1 : together));
  return link;
}

weft::Topology Probe::run() {
  gather_labels();
  const std::vector<int> machines = numbers(&Label::machine), racks = numbers(&Label::rack);
  std::vector<int> sites = numbers(&Label::site);
  std::vector<int> representatives;  // of each machine
  for (int rank = 0; rank < size_; ++rank) {
    if (machines[static_cast<size_t>(rank)] == static_cast<int>(representatives.size()))
      representatives.push_back(rank);
  }
  const bool named = *std::max_element(sites.begin(), sites.end()) > 0;
  if (!named && representatives.size() > 2) {
    const weft::probe::Latencies latencies = latencies_between(representatives, 12, 1);
    if (const auto threshold = weft::probe::gap(latencies, kSiteRatio)) {
      const std::vector<int> groups = weft::probe::cluster(latencies, *threshold);
      for (size_t rank = 0; rank < sites.size(); ++rank) sites[rank] = groups[static_cast<size_t>(machines[rank])];
    }
  }
  std::vector<weft::Hierarchy::Level> levels{{weft::kNodeLevel, machines}};
  if (*std::max_element(racks.begin(), racks.end()) > 0) levels.push_back({"rack", racks});
  levels.push_back({"site", sites});
  weft::Topology topology;
  topology.ranks = size_;
  topology.hierarchy = weft::Hierarchy::create(size_, levels);
  // Inside one host all ranks are as near.
  if (representatives.size() > 1) {
    topology.hierarchy = weft::Hierarchy::create(size_, levels, ring_order(topology.hierarchy));
  }
  for (int level = 0; level < topology.hierarchy.levels(); ++level) {
    topology.links[topology.hierarchy.name(level)] = measure(topology.hierarchy, level);
  }
  return topology;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string output;
  CLI::App app(
      "Measures the links between the ranks of a job and writes a topology file, for WEFT_TOPOLOGY, weft-plan and\n"
      "weft-sim: weft-run -n 8 weft-probe -o topology.json. Takes seconds; nothing else should run meanwhile. Nodes "
      "are\n"
      "ranks that share memory; racks and sites come from WEFT_RACK and WEFT_SITE, or sites from round trips.",
      "weft-probe");
  app.add_option("-o,--output", output, "File to write, at rank 0; standard output when not given");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : 2;
  }
  Communicator comm = Communicator::from_env();
  const weft::Topology topology = Probe(comm).run();
  if (comm.rank() != 0) return 0;
  const std::string text = weft::to_json(topology) + "\n";
  if (output.empty()) {
    std::cout << text;
    return 0;
  }
  std::ofstream file(output);
  file << text;
  file.close();
  if (!file) {
    std::cerr << "weft-probe: " << output << " cannot be written\n";
    return 1;
  }
  const weft::Hierarchy& tree = topology.hierarchy;
  for (int level = 0; level < tree.levels(); ++level) {
    const Link& link = topology.links.at(tree.name(level));
    std::cout << fmt::format("{}: up to {} parts, {:.4g} us, {:.4g} us a message, {:.4g} GB/s out of each\n",
                             tree.name(level), tree.span(level), link.latency_us, link.message_us, 1 / link.byte_ns);
  }
  if (tree.is_ordered()) std::cout << fmt::format("rings go through the ranks {}\n", fmt::join(tree.ring(), ","));
  return 0;
} catch (const std::exception& problem) {
  std::cerr << "weft-probe: " << problem.what() << "\n";
  return 1;
}
