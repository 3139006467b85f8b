// The report of `weft-info --job`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "trace/status_file.hpp"

namespace weft {
namespace {

constexpr uint64_t kStuckNs = 1'000'000'000;  // an operation that runs for longer is pointed out

bool is_pair(const OpSnapshot& op) { return (op.sequence & FlightRecorder::kPointToPoint) != 0; }

// The ranks of one communicator.
struct Group {
  std::span<const RankStatus> ranks;
  std::optional<uint32_t> newest;  // the highest sequence number of a collective that any rank has begun
  std::vector<int> missing, behind, waiting;
};

std::optional<uint32_t> last_collective(const RankStatus& rank) {
  std::optional<uint32_t> last;
  for (const OpSnapshot& op : rank.ops) {
    if (!is_pair(op)) last = std::max(last.value_or(0), op.sequence);
  }
  return last;
}

const OpSnapshot* last_op(const RankStatus& rank) { return rank.ops.empty() ? nullptr : &rank.ops.back(); }

Group examine(std::span<const RankStatus> ranks, uint64_t now_ns) {
  Group group{ranks, {}, {}, {}, {}};
  std::set<int> present;
  for (const RankStatus& rank : ranks) {
    present.insert(rank.identity.rank);
    group.newest = std::max(group.newest, last_collective(rank));
  }
  for (int rank = 0; rank < ranks[0].identity.size; ++rank) {
    if (!present.contains(rank)) group.missing.push_back(rank);
  }
  for (const RankStatus& rank : ranks) {
    if (last_collective(rank) < group.newest) group.behind.push_back(rank.identity.rank);
    const OpSnapshot* op = last_op(rank);
    if (op != nullptr && op->state == OpState::running && op->start_ns != 0 && now_ns > op->start_ns + kStuckNs)
      group.waiting.push_back(rank.identity.rank);
  }
  return group;
}

std::vector<Group> groups(const std::vector<RankStatus>& ranks, const std::string& job, uint64_t now_ns) {
  std::vector<Group> result;
  for (size_t first = 0, last = 0; first < ranks.size(); first = last) {
    const StatusIdentity& identity = ranks[first].identity;
    while (last < ranks.size() && ranks[last].identity.job == identity.job &&
           ranks[last].identity.group == identity.group)
      ++last;
    if (job.empty() || identity.job == job) result.push_back(examine({&ranks[first], last - first}, now_ns));
  }
  return result;
}

std::string list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string verdict(const Group& group) {
  std::string text;
  if (!group.missing.empty())
    text += fmt::format("  missing: {} (dead, left, not started, or on another host)\n", list(group.missing));
  for (const RankStatus& rank : group.ranks) {
    const auto last = last_collective(rank);
    if (last == group.newest) continue;
    text += fmt::format("  behind: rank {} has begun {}; others are at #{}\n", rank.identity.rank,
                        last ? fmt::format("#{}", *last) : std::string("no collective"), *group.newest);
  }
  if (!group.waiting.empty())
    text += fmt::format("  waiting: {} for more than a second in the same operation\n", list(group.waiting));
  return text;
}

}  // namespace

std::string status_text(const std::vector<RankStatus>& ranks, const std::string& job, uint64_t now_ns) {
  std::string text;
  for (const Group& group : groups(ranks, job, now_ns)) {
    const StatusIdentity& identity = group.ranks[0].identity;
    text += fmt::format("job {}  communicator {:016x}{}  {} of {} ranks here\n", identity.job, identity.group,
                        identity.label.empty() ? "" : fmt::format(" \"{}\"", identity.label), group.ranks.size(),
                        identity.size);
    for (const RankStatus& rank : group.ranks) {
      const OpSnapshot* op = last_op(rank);
      text += fmt::format("  rank {:>4}  {}:{}  {:<10}  {}\n", rank.identity.rank, rank.host, rank.pid,
                          name_of(rank.phase), op != nullptr ? describe(*op, now_ns) : "no operation yet");
    }
    text += verdict(group);
  }
  if (text.empty()) text = job.empty() ? "no job of this user runs here\n" : fmt::format("no job {} runs here\n", job);
  return text;
}

std::string status_json(const std::vector<RankStatus>& ranks, const std::string& job, uint64_t now_ns) {
  auto all = nlohmann::json::array();
  for (const Group& group : groups(ranks, job, now_ns)) {
    const StatusIdentity& identity = group.ranks[0].identity;
    nlohmann::json one = {
        {"job", identity.job},      {"label", identity.label},  {"group", fmt::format("{:016x}", identity.group)},
        {"size", identity.size},    {"missing", group.missing}, {"behind", group.behind},
        {"waiting", group.waiting}, {"now_ns", now_ns},         {"ranks", nlohmann::json::array()}};
    one["newest_sequence"] = group.newest ? nlohmann::json(*group.newest) : nlohmann::json(nullptr);
    for (const RankStatus& rank : group.ranks) {
      one["ranks"].push_back({{"rank", rank.identity.rank},
                              {"host", rank.host},
                              {"pid", rank.pid},
                              {"phase", name_of(rank.phase)},
                              {"age_ns", rank.age_ns},
                              {"operations", nlohmann::json::parse(snapshots_json(rank.ops))}});
    }
    all.push_back(std::move(one));
  }
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace weft
