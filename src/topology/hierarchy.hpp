// The ranks as a tree of groups: ranks in nodes, nodes in racks, racks in sites, sites in the world. What programs see
// of the topology.
//
// Level 0 is the lowest: its groups have ranks as their parts; the parts of a group of level k are groups of level k-1;
// the highest level is one group. Parts stand in the order of their lowest ranks, or in the one in which their first
// ranks stand in an order that is told; but where a call has a root, the part that holds it comes first. Groups of one
// level may have different numbers of parts.
//
// Pieces. span(k) is the largest number of parts of a group of level k. A piece is a number with a digit for each
// level, the one of level 0 the most significant; digit k is below span(k). So there are span(0)*span(1)*... pieces,
// and those that agree in their first k digits follow each other. Whoever is the part number `digit % parts` of its
// group on each level *owns* the piece (or a prefix of it, within a group); if on each level the digit is below the
// number of parts, the rank is *at* the piece. Every rank is at exactly one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "status/status.hpp"

namespace weft {

// The name of the level whose groups are ranks that share memory.
inline constexpr const char* kNodeLevel = "node";

class Hierarchy {
 public:
  // A level as it is told: its name, and the number of each rank's group.
  struct Level {
    std::string name;
    std::vector<int> group_of;
  };

  // One level: the world.
  static Hierarchy flat(int ranks);
  // Levels from the lowest up, without the world. Groups are cut where one of a higher level ends, and levels that
  // divide nothing are left out; of two that are the same, the lower one's name stays.
  // `order`: all ranks in the order in which rings shall go through them, as far as groups allow, which are never left
  // before all of their ranks were met; empty: by their numbers.
  static Hierarchy create(int ranks, const std::vector<Level>& levels, const std::vector<int>& order = {});

  int ranks() const { return ranks_; }
  int levels() const { return static_cast<int>(levels_.size()); }
  const std::string& name(int level) const { return levels_[static_cast<size_t>(level)].name; }
  int span(int level) const { return levels_[static_cast<size_t>(level)].span; }
  // Pieces with the same digits up to and with this level's; of level -1: all pieces.
  int64_t tail(int level) const { return tails_[static_cast<size_t>(level + 1)]; }
  int groups(int level) const { return static_cast<int>(levels_[static_cast<size_t>(level)].parts.size()); }
  // Different numbers of parts of this level's groups.
  const std::vector<int>& sizes(int level) const { return levels_[static_cast<size_t>(level)].sizes; }

  // Of the group of this level that a rank is in: its number, its parts, and which of them has the rank.
  int group(int level, int rank) const {
    return levels_[static_cast<size_t>(level)].group_of[static_cast<size_t>(rank)];
  }
  int parts(int level, int rank) const;
  int position(int level, int rank, int root) const;
  // The owner, in one part of a rank's group of this level, of a prefix: the digits below this level.
  int owner(int level, int rank, int part, int64_t prefix, int root) const;
  // -1: nobody.
  int at(int64_t piece, int root) const;
  // All ranks, group by group on every level: the order of rings that go over all of them.
  const std::vector<int>& ring() const { return ring_; }
  int place(int rank) const { return place_[static_cast<size_t>(rank)]; }
  // Whether an order was told.
  bool is_ordered() const { return ordered_; }
  // The lowest level with a group that holds both.
  int level_between(int a, int b) const;

 private:
  struct Built {
    std::string name;
    int span = 1;
    std::vector<int> sizes;
    std::vector<int> group_of;            // by rank
    std::vector<int> position;            // by rank: of its part in its group
    std::vector<std::vector<int>> parts;  // by group: groups of the level below, or ranks
  };
  static std::vector<Built> cut_groups(size_t count, const std::vector<Level>& levels);
  static void number_parts(Built& level, const Built* below, const std::vector<int>& met);
  // The part of a group that is number `position` in a call with this root.
  int part_at(int level, int group, int position, int root) const;
  void go_around(int level, int group);

  int ranks_ = 1;
  std::vector<Built> levels_;
  std::vector<int64_t> tails_;  // by level + 1
  bool ordered_ = false;
  std::vector<int> ring_, place_;
};

}  // namespace weft
