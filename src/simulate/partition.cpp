#include "simulate/partition.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "simulate/refine.hpp"

namespace weft::simulation {
namespace {

constexpr double kMostLooks = 5e5;   // operations, of all ranks, that are looked at before a sample has to do: a second
constexpr size_t kMostGuessed = 64;  // classes of a sample
constexpr size_t kMostPeers = 4096;  // of one rank, in a sample

// Where a rank is in its groups, below the highest level; and how many such places there are.
uint64_t position_of(const Hierarchy& tree, int rank) {
  uint64_t place = 0;
  for (int level = tree.levels() - 2; level >= 0; --level) {
    place = place * static_cast<uint64_t>(tree.span(level)) + static_cast<uint64_t>(tree.position(level, rank, 0));
  }
  return place;
}

uint64_t blend(uint64_t seed, uint64_t value) { return mix(seed ^ mix(value)); }

class Builder {
 public:
  Builder(const Program& program, const Hierarchy& tree, const SimulateOptions& options, uint32_t window)
      : tree_(tree), options_(options), outlines_(program, tree, options, window) {}

  // By a sample: false where it does not bear it out.
  Result<bool> guess(const std::vector<uint32_t>& classes, size_t count);
  Status look_at_all();
  Partition take();

 private:
  struct End {
    int from = 0, to = 0;
    uint32_t queue = 0;  // of all queues
    bool operator<(const End& other) const {
      return std::tie(from, to, queue) < std::tie(other.from, other.to, other.queue);
    }
  };
  const Outline& outline_of(size_t rank) { return outlines_[outline_[rank]]; }
  void pair_up();
  std::vector<uint64_t> initial();
  void make_actors(const std::vector<uint32_t>& colours);
  void number_wires(std::vector<Wire> wires, const std::vector<uint32_t>& out_queues);
  Result<const Outlines::Rank*> sampled(int rank);
  bool add_sampled_wires(uint32_t actor, std::vector<Wire>& wires, std::vector<uint32_t>& out_queues);

  const Hierarchy& tree_;
  const SimulateOptions& options_;
  Outlines outlines_;
  std::vector<uint32_t> outline_;  // by rank
  std::vector<uint32_t> begin_;    // by rank: its queues
  std::vector<int> peers_;         // by queue
  std::vector<uint32_t> other_;    // by queue: the peer's
  std::map<int, Outlines::Rank> sample_;
  Partition result_;
};

// Finds the other end of each wire's queue.
void Builder::pair_up() {
  std::vector<End> sends, receives;
  for (size_t rank = 0; rank < outline_.size(); ++rank) {
    for (uint32_t i = begin_[rank]; i < begin_[rank + 1]; ++i) {
      const bool sends_here = outline_of(rank).schedule.queues[i - begin_[rank]].verb == Verb::send;
      const int self = static_cast<int>(rank);
      (sends_here ? sends : receives).push_back({sends_here ? self : peers_[i], sends_here ? peers_[i] : self, i});
    }
  }
  std::sort(sends.begin(), sends.end());
  std::sort(receives.begin(), receives.end());
  other_.assign(peers_.size(), kNone);
  auto receive = receives.begin();
  for (const End& send : sends) {
    while (receive != receives.end() && std::tie(receive->from, receive->to) < std::tie(send.from, send.to)) ++receive;
    if (receive == receives.end() || receive->from != send.from || receive->to != send.to) continue;
    other_[send.queue] = receive->queue;
    other_[receive->queue] = send.queue;
  }
}

// What ranks of a class have to have in common, peers apart.
std::vector<uint64_t> Builder::initial() {
  std::vector<uint64_t> values(outline_.size());
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const int self = static_cast<int>(rank);
    uint64_t& value = values[rank];
    value = blend(1, outline_[rank]);
    for (uint32_t i = begin_[rank]; i < begin_[rank + 1]; ++i) {
      const auto peer = static_cast<size_t>(peers_[i]);
      value = blend(value, static_cast<uint64_t>(tree_.level_between(self, peers_[i])));
      value = blend(value, other_[i] == kNone ? kNone : other_[i] - begin_[peer]);
    }
    if (options_.sharing == Sharing::fifo) value = blend(value, position_of(tree_, self));
    for (const auto& [slow, factor] : options_.slow_ranks) {
      if (slow == self) value = blend(value, static_cast<uint64_t>(factor * 1e6));
    }
    for (size_t i = 0; i < options_.slow_groups.size(); ++i) {
      const auto& slow = options_.slow_groups[i];
      if (tree_.group(slow.level, self) == slow.group) value = blend(value, 1000 + i);
    }
  }
  return values;
}

Status Builder::look_at_all() {
  begin_.assign(1, 0);
  for (int rank = 0; rank < tree_.ranks(); ++rank) {
    auto looked = outlines_.of(rank);
    if (!looked.ok()) return looked.status();
    outline_.push_back(looked->outline);
    peers_.insert(peers_.end(), looked->peers.begin(), looked->peers.end());
    begin_.push_back(static_cast<uint32_t>(peers_.size()));
  }
  pair_up();
  std::vector<uint32_t> colours;
  // Where most classes would be of one rank they are not worth their names.
  if (options_.classes != Classes::none && !options_.record)
    colours = refine(tree_, initial(), begin_, peers_, outline_.size() / 2);
  if (colours.empty()) {
    colours.resize(outline_.size());
    std::iota(colours.begin(), colours.end(), 0);
  }
  make_actors(colours);
  std::vector<Wire> wires;
  std::vector<uint32_t> out_queues;
  for (uint32_t actor = 0; actor < result_.actors.size(); ++actor) {
    const int from = result_.actors[actor].rank;
    const auto self = static_cast<size_t>(from);
    for (uint32_t i = begin_[self]; i < begin_[self + 1]; ++i) {
      if (other_[i] == kNone || outline_of(self).schedule.queues[i - begin_[self]].verb != Verb::send) continue;
      const int to = peers_[i];
      wires.push_back({actor, result_.actor_of[static_cast<size_t>(to)], other_[i] - begin_[static_cast<size_t>(to)],
                       from, to, tree_.level_between(from, to)});
      out_queues.push_back(i - begin_[self]);
    }
  }
  number_wires(std::move(wires), out_queues);
  return {};
}

// An actor for each colour: its lowest rank.
void Builder::make_actors(const std::vector<uint32_t>& colours) {
  std::vector<uint32_t> number(colours.size(), kNone);  // by colour
  result_.actors.clear();
  result_.actor_of.clear();
  uint32_t queues = 0;
  for (size_t rank = 0; rank < colours.size(); ++rank) {
    uint32_t& actor = number[colours[rank]];
    if (actor == kNone) {
      actor = static_cast<uint32_t>(result_.actors.size());
      const uint32_t outline = outline_.empty() ? sample_.at(static_cast<int>(rank)).outline : outline_[rank];
      result_.actors.push_back({outline, static_cast<int>(rank), 0, queues});
      queues += static_cast<uint32_t>(outlines_[outline].schedule.queues.size());
    }
    ++result_.actors[actor].size;
    result_.actor_of.push_back(actor);
  }
  result_.wire_of.assign(queues, kNone);
}

void Builder::number_wires(std::vector<Wire> wires, const std::vector<uint32_t>& out_queues) {
  std::vector<std::tuple<uint64_t, uint64_t, int, int, uint32_t>> order;
  for (uint32_t i = 0; i < wires.size(); ++i) {
    const Wire& wire = wires[i];
    order.emplace_back(position_of(tree_, wire.from), position_of(tree_, wire.to), wire.from, wire.to, i);
  }
  std::sort(order.begin(), order.end());
  result_.wires.reserve(wires.size());
  for (const auto& place : order) {
    const uint32_t i = std::get<4>(place), number = static_cast<uint32_t>(result_.wires.size());
    const Wire& wire = wires[i];
    result_.wire_of[result_.actors[wire.sender].first_queue + out_queues[i]] = number;
    result_.wire_of[result_.actors[wire.receiver].first_queue + wire.in_queue] = number;
    result_.wires.push_back(wire);
  }
  // A queue that nobody is at the other end of: the simulation will come to a halt there.
  for (uint32_t actor = 0; actor < result_.actors.size(); ++actor) {
    const Actor& self = result_.actors[actor];
    const size_t queues = outlines_[self.outline].schedule.queues.size();
    for (size_t queue = 0; queue < queues; ++queue) {
      uint32_t& wire = result_.wire_of[self.first_queue + queue];
      if (wire != kNone) continue;
      wire = static_cast<uint32_t>(result_.wires.size());
      result_.wires.push_back({actor, actor, 0, self.rank, self.rank, 0});
    }
  }
}

Result<const Outlines::Rank*> Builder::sampled(int rank) {
  const auto known = sample_.find(rank);
  if (known != sample_.end()) return &known->second;
  auto looked = outlines_.of(rank);
  if (!looked.ok()) return looked.status();
  return &sample_.emplace(rank, std::move(*looked)).first->second;
}

// The wires that a class sends on; false where its peers do not receive as they should.
bool Builder::add_sampled_wires(uint32_t actor, std::vector<Wire>& wires, std::vector<uint32_t>& out_queues) {
  const Actor self = result_.actors[actor];
  const Outlines::Rank& rank = sample_.at(self.rank);
  for (uint32_t queue = 0; queue < rank.peers.size(); ++queue) {
    if (outlines_[self.outline].schedule.queues[queue].verb != Verb::send) continue;
    const int to = rank.peers[queue];
    const Outlines::Rank& peer = sample_.at(to);
    const uint32_t receiver = result_.actor_of[static_cast<size_t>(to)];
    std::optional<uint32_t> in_queue;
    for (uint32_t other = 0; other < peer.peers.size(); ++other) {
      if (peer.peers[other] == self.rank && outlines_[peer.outline].schedule.queues[other].verb == Verb::recv)
        in_queue = other;
    }
    if (!in_queue) return false;
    uint32_t& taken = result_.wire_of[result_.actors[receiver].first_queue + *in_queue];
    if (std::exchange(taken, 0) != kNone) return false;
    wires.push_back({actor, receiver, *in_queue, self.rank, to, tree_.level_between(self.rank, to)});
    out_queues.push_back(queue);
  }
  return true;
}

Result<bool> Builder::guess(const std::vector<uint32_t>& classes, size_t count) {
  // The first rank of each class, whom it talks with, another one of it, and others here and there.
  std::vector<int> ranks;
  const auto middle = classes.begin() + tree_.ranks() / 2;
  for (size_t i = 0; i < count; ++i) {
    const auto first = static_cast<int>(std::find(classes.begin(), classes.end(), i) - classes.begin());
    auto looked = sampled(first);
    if (!looked.ok()) return looked.status();
    if ((*looked)->peers.size() > kMostPeers) return false;
    ranks.insert(ranks.end(), (*looked)->peers.begin(), (*looked)->peers.end());
    const auto another = std::find(middle, classes.end(), i);
    if (another != classes.end()) ranks.push_back(static_cast<int>(another - classes.begin()));
  }
  for (int i = 1; i <= 16; ++i) ranks.push_back(static_cast<int>(int64_t{tree_.ranks() - 1} * i / 16));
  for (const int rank : ranks) {
    auto looked = sampled(rank);
    if (!looked.ok()) return looked.status();
  }
  make_actors(classes);
  for (const auto& [rank, looked] : sample_) {
    const Actor& actor = result_.actors[result_.actor_of[static_cast<size_t>(rank)]];
    if (looked.outline != actor.outline) return false;
    const Outlines::Rank& first = sample_.at(actor.rank);
    for (size_t queue = 0; queue < looked.peers.size(); ++queue) {
      const int mine = looked.peers[queue], its = first.peers[queue];
      if (tree_.level_between(rank, mine) != tree_.level_between(actor.rank, its)) return false;
      if (classes[static_cast<size_t>(mine)] != classes[static_cast<size_t>(its)]) return false;
    }
  }
  std::vector<Wire> wires;
  std::vector<uint32_t> out_queues;
  for (uint32_t actor = 0; actor < result_.actors.size(); ++actor) {
    if (!add_sampled_wires(actor, wires, out_queues)) return false;
  }
  const auto queues = static_cast<size_t>(result_.wire_of.size());
  if (2 * wires.size() != queues) return false;
  number_wires(std::move(wires), out_queues);
  result_.sampled = true;
  return true;
}

Partition Builder::take() {
  result_.outlines = outlines_.take();
  return std::move(result_);
}

bool is_even(const Hierarchy& tree) {
  for (int level = 0; level < tree.levels(); ++level) {
    if (tree.sizes(level).size() > 1) return false;
  }
  return true;
}

}  // namespace

Result<Partition> partition(const Program& program, const Hierarchy& tree, const SimulateOptions& options,
                            uint32_t window, size_t ops) {
  Builder builder(program, tree, options, window);
  const bool plain = options.slow_ranks.empty() && options.slow_groups.empty() && !options.record;
  if (options.classes == Classes::sample && plain && is_even(tree) &&
      static_cast<double>(ops) * tree.ranks() > kMostLooks) {
    std::vector<uint32_t> by_position(static_cast<size_t>(tree.ranks()));
    for (size_t rank = 0; rank < by_position.size(); ++rank)
      by_position[rank] = static_cast<uint32_t>(position_of(tree, static_cast<int>(rank)));
    const size_t positions = *std::max_element(by_position.begin(), by_position.end()) + size_t{1};
    // One for all is exact where all get the same; where places have queues it is in the middle of them.
    std::vector<std::pair<std::vector<uint32_t>, size_t>> guesses;
    guesses.emplace_back(std::vector<uint32_t>(by_position.size(), 0), 1);
    if (positions > 1 && positions <= kMostGuessed)
      guesses.emplace(options.sharing == Sharing::fair ? guesses.end() : guesses.begin(), by_position, positions);
    for (const auto& [classes, count] : guesses) {
      auto good = builder.guess(classes, count);
      if (!good.ok()) return good.status();
      if (*good) return builder.take();
    }
  }
  const bool every = options.classes == Classes::none || options.record;
  const double all = static_cast<double>(ops) * tree.ranks() * (every ? window : 1);
  if (all > kMostOps) {
    return error(weftInvalidArgument, "{} {} of {} ranks has {:.3g} operations{}; legal: up to {:.3g}{}",
                 name_of(program.collective()), program.name(), tree.ranks(), all,
                 every ? fmt::format(" in its window of {} tiles", window) : "", kMostOps,
                 every ? "" : ", where the ranks of a sample are not alike");
  }
  WEFT_RETURN_IF_ERROR(builder.look_at_all());
  return builder.take();
}

}  // namespace weft::simulation
