#include "moe/moe.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/reduce.hpp"

namespace weft {
namespace {

constexpr size_t kBlock = 128;   // elements with one scale
constexpr float kLargest = 448;  // of e4m3

bool encodes(const weftMoeConfig_t& config) { return config.wire != config.datatype; }

size_t payload_bytes(const weftMoeConfig_t& config) {
  if (!encodes(config)) return config.hidden * type_bytes(config.datatype);
  return config.hidden + (config.hidden + kBlock - 1) / kBlock * sizeof(float);
}

size_t aligned(size_t bytes) { return (bytes + 15) & ~size_t{15}; }

Status result_of(weftResult_t result, weftComm_t comm) {
  return result == weftSuccess ? Status() : error(result, "{}", weftGetLastError(comm));
}

}  // namespace

MoeLayout::MoeLayout(const Hierarchy& hierarchy, int rank) {
  const int ranks = hierarchy.ranks();
  const bool one = hierarchy.levels() == 1;
  members_.resize(static_cast<size_t>(one ? 1 : hierarchy.groups(0)));
  for (int r = 0; r < ranks; ++r) {
    node_of_.push_back(one ? 0 : hierarchy.group(0, r));
    auto& members = members_[static_cast<size_t>(node_of_.back())];
    local_of_.push_back(static_cast<int>(members.size()));
    members.push_back(r);
  }
  const auto counterpart = [&](int from, int node) {
    if (node_of_[static_cast<size_t>(from)] == node) return from;
    const auto& members = members_[static_cast<size_t>(node)];
    return members[static_cast<size_t>(local_of_[static_cast<size_t>(from)]) % members.size()];
  };
  for (int n = 0; n < nodes(); ++n) towards_.push_back(counterpart(rank, n));
  for (int r = 0; r < ranks; ++r) {
    if (counterpart(r, node(rank)) == rank) sources_.push_back(r);
  }
}

void MoeRows::shape(std::vector<size_t> peer_counts, size_t row_bytes) {
  counts = std::move(peer_counts);
  offsets.clear();
  size_t rows = 0;
  for (const size_t count : counts) {
    offsets.push_back(rows);
    rows += count;
  }
  data.resize(rows * row_bytes);
}

Moe::Moe(weftComm_t comm, const Hierarchy& hierarchy, int rank, int ranks, const weftMoeConfig_t& config)
    : comm_(comm),
      rank_(rank),
      ranks_(ranks),
      config_(config),
      layout_(hierarchy, rank),
      token_bytes_(config.hidden * type_bytes(config.datatype)),
      row_bytes_(aligned(sizeof(Head) + sizeof(Entry) * static_cast<size_t>(config.topk) + payload_bytes(config))),
      local_experts_(config.experts / ranks),
      sum_(config.hidden),
      scratch_(config.hidden) {}

Status Moe::check_agreement() {
  if (agreed_) return {};
  const int64_t mine[] = {config_.experts, config_.topk, static_cast<int64_t>(config_.hidden), config_.datatype,
                          config_.wire};
  constexpr size_t kFields = std::size(mine);
  constexpr const char* kNames[kFields] = {"experts", "topk", "hidden", "datatype", "wire"};
  std::vector<int64_t> all(kFields * static_cast<size_t>(ranks_));
  WEFT_RETURN_IF_ERROR(result_of(weftAllGather(mine, all.data(), kFields, weftInt64, comm_, nullptr), comm_));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == mine[i % kFields]) continue;
    return error(weftInvalidUsage, "weftMoe: {} is {} on rank {} and {} on rank {}; legal: the same on all",
                 kNames[i % kFields], mine[i % kFields], rank_, all[i], i / kFields);
  }
  agreed_ = true;
  return {};
}

Status Moe::check_routing(const int32_t* experts, const float* weights, size_t count) const {
  const auto topk = static_cast<size_t>(config_.topk);
  for (size_t i = 0; i < count * topk; ++i) {
    if (experts[i] < -1 || experts[i] >= config_.experts) {
      return error(weftInvalidArgument, "experts[{}][{}] is {}; legal: 0 to {}, or -1 for none", i / topk, i % topk,
                   experts[i], config_.experts - 1);
    }
    if (experts[i] < 0) continue;
    if (!std::isfinite(weights[i])) {
      return error(weftInvalidArgument, "weights[{}][{}] is {}; legal: finite numbers", i / topk, i % topk, weights[i]);
    }
    const int32_t* token = experts + i / topk * topk;
    if (std::find(token, experts + i, experts[i]) != experts + i) {
      return error(weftInvalidArgument, "experts[{}] names expert {} twice", i / topk, experts[i]);
    }
  }
  return {};
}

Status Moe::exchange_counts(const std::vector<int>& send_peers, const std::vector<size_t>& counts,
                            const std::vector<int>& receive_peers, std::vector<size_t>& received) const {
  std::vector<uint64_t> to(counts.begin(), counts.end()), from(receive_peers.size());
  WEFT_RETURN_IF_ERROR(result_of(weftGroupStart(), nullptr));
  weftResult_t result = weftSuccess;
  for (size_t i = 0; i < receive_peers.size() && result == weftSuccess; ++i) {
    result = weftRecv(&from[i], 1, weftUint64, receive_peers[i], comm_, nullptr);
  }
  for (size_t i = 0; i < send_peers.size() && result == weftSuccess; ++i) {
    result = weftSend(&to[i], 1, weftUint64, send_peers[i], comm_, nullptr);
  }
  const weftResult_t end = weftGroupEnd();
  WEFT_RETURN_IF_ERROR(result_of(result != weftSuccess ? result : end, comm_));
  received.assign(from.begin(), from.end());
  return {};
}

Status Moe::exchange(const std::vector<int>& send_peers, const MoeRows& to, const std::vector<int>& receive_peers,
                     MoeRows& from, size_t row_bytes) const {
  WEFT_RETURN_IF_ERROR(result_of(weftGroupStart(), nullptr));
  weftResult_t result = weftSuccess;
  const auto own = std::find(send_peers.begin(), send_peers.end(), rank_);
  for (size_t i = 0; i < receive_peers.size() && result == weftSuccess; ++i) {
    std::byte* place = from.data.data() + from.offsets[i] * row_bytes;
    const size_t bytes = from.counts[i] * row_bytes;
    if (receive_peers[i] == rank_ && own != send_peers.end()) {
      const auto at = static_cast<size_t>(own - send_peers.begin());
      if (bytes > 0) copy(place, to.data.data() + to.offsets[at] * row_bytes, bytes);
    } else if (bytes > 0) {
      result = weftRecv(place, bytes, weftUint8, receive_peers[i], comm_, nullptr);
    }
  }
  for (size_t i = 0; i < send_peers.size() && result == weftSuccess; ++i) {
    if (send_peers[i] == rank_ || to.counts[i] == 0) continue;
    result = weftSend(to.data.data() + to.offsets[i] * row_bytes, to.counts[i] * row_bytes, weftUint8, send_peers[i],
                      comm_, nullptr);
  }
  const weftResult_t end = weftGroupEnd();
  return result_of(result != weftSuccess ? result : end, comm_);
}

void Moe::encode(std::byte* to, const std::byte* token) {
  if (!encodes(config_)) {
    std::memcpy(to, token, token_bytes_);
    return;
  }
  widen(scratch_.data(), token, config_.hidden, config_.datatype);
  auto* scales = reinterpret_cast<float*>(to + config_.hidden);
  for (size_t begin = 0, block = 0; begin < config_.hidden; begin += kBlock, ++block) {
    const size_t count = std::min(kBlock, config_.hidden - begin);
    float largest = 0;
    for (size_t i = begin; i < begin + count; ++i) {
      const float size = std::fabs(scratch_[i]);
      if (size > largest && std::isfinite(size)) largest = size;
    }
    const float scale = largest > 0 ? largest / kLargest : 1;
    std::memcpy(reinterpret_cast<std::byte*>(scales) + block * sizeof(float), &scale, sizeof scale);
    for (size_t i = begin; i < begin + count; ++i) scratch_[i] /= scale;
  }
  narrow(to, scratch_.data(), config_.hidden, config_.wire);
}

void Moe::decode(std::byte* to, const std::byte* from) {
  if (!encodes(config_)) {
    std::memcpy(to, from, token_bytes_);
    return;
  }
  widen(scratch_.data(), from, config_.hidden, config_.wire);
  for (size_t begin = 0, block = 0; begin < config_.hidden; begin += kBlock, ++block) {
    float scale;
    std::memcpy(&scale, from + config_.hidden + block * sizeof(float), sizeof scale);
    const size_t end = std::min(begin + kBlock, config_.hidden);
    for (size_t i = begin; i < end; ++i) scratch_[i] *= scale;
  }
  if (config_.datatype == weftFloat32) {
    std::memcpy(to, scratch_.data(), token_bytes_);
  } else {
    narrow(to, scratch_.data(), config_.hidden, config_.datatype);
  }
}

void Moe::add(const std::byte* row, float weight) {
  widen(scratch_.data(), row, config_.hidden, config_.datatype);
  for (size_t i = 0; i < config_.hidden; ++i) sum_[i] += weight * scratch_[i];
}

// One row for each token and node.
void Moe::pack(const std::byte* tokens, const int32_t* experts, const float* weights, size_t count) {
  const auto topk = static_cast<size_t>(config_.topk);
  const auto nodes = static_cast<size_t>(layout_.nodes());
  const auto node_of = [&](int32_t expert) { return static_cast<size_t>(layout_.node(expert / local_experts_)); };
  std::vector<size_t> counts(nodes);
  std::vector<size_t> seen(nodes, SIZE_MAX);  // the last token that goes to a node
  for (size_t token = 0; token < count; ++token) {
    for (size_t k = 0; k < topk; ++k) {
      const int32_t expert = experts[token * topk + k];
      if (expert >= 0 && std::exchange(seen[node_of(expert)], token) != token) ++counts[node_of(expert)];
    }
  }
  to_nodes_.shape(std::move(counts), row_bytes_);
  token_of_.resize(to_nodes_.total());
  std::vector<size_t> next = to_nodes_.offsets;
  std::vector<std::byte*> row(nodes, nullptr);
  std::vector<size_t> used(nodes);
  std::fill(seen.begin(), seen.end(), SIZE_MAX);
  for (size_t token = 0; token < count; ++token) {
    const std::byte* encoded = nullptr;
    for (size_t k = 0; k < topk; ++k) {
      const int32_t expert = experts[token * topk + k];
      if (expert < 0) continue;
      const size_t node = node_of(expert);
      if (std::exchange(seen[node], token) != token) {
        token_of_[next[node]] = static_cast<uint32_t>(token);
        row[node] = to_nodes_.data.data() + next[node]++ * row_bytes_;
        used[node] = 0;
        head(row[node]) = {static_cast<uint32_t>(rank_), static_cast<uint32_t>(token)};
        std::fill(entries(row[node]).begin(), entries(row[node]).end(), Entry{});
        if (encoded == nullptr) {
          encode(payload(row[node]), tokens + token * token_bytes_);
          encoded = payload(row[node]);
        } else {
          std::memcpy(payload(row[node]), encoded, payload_bytes(config_));
        }
      }
      entries(row[node])[used[node]++] = {static_cast<int16_t>(layout_.local(expert / local_experts_)),
                                          static_cast<int16_t>(expert % local_experts_), weights[token * topk + k]};
    }
  }
}

// One row for each row that came to this node and rank of the node that has experts of it.
void Moe::fan_out() {
  const auto members = layout_.members(layout_.node(rank_)).size();
  const size_t rows = from_ranks_.total();
  std::vector<size_t> counts(members);
  fanned_.assign(rows, {});
  const auto each = [&](auto&& visit) {
    for (size_t i = 0; i < rows; ++i) {
      std::byte* row = from_ranks_.data.data() + i * row_bytes_;
      const auto all = entries(row);
      for (size_t k = 0; k < all.size() && all[k].local >= 0; ++k) {
        const int16_t local = all[k].local;
        const bool first = std::none_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(k),
                                        [&](const Entry& entry) { return entry.local == local; });
        if (first) visit(i, row, static_cast<size_t>(local));
      }
    }
  };
  each([&](size_t, std::byte*, size_t local) { ++counts[local]; });
  to_ranks_.shape(std::move(counts), row_bytes_);
  std::vector<size_t> next = to_ranks_.offsets;
  each([&](size_t i, std::byte* row, size_t local) {
    std::byte* to = to_ranks_.data.data() + next[local] * row_bytes_;
    fanned_[i].push_back(next[local]++);
    std::memcpy(to, row, row_bytes_);
    auto kept = entries(to);
    const auto end = std::remove_if(kept.begin(), kept.end(),
                                    [&](const Entry& entry) { return entry.local != static_cast<int16_t>(local); });
    std::fill(end, kept.end(), Entry{});
  });
}

// Where the rows that arrived stand among those of their experts.
void Moe::place(size_t* counts) {
  const auto experts = static_cast<size_t>(local_experts_);
  std::fill(counts, counts + experts, 0);
  slots_.assign(arrived_.total(), {});
  for (size_t i = 0; i < slots_.size(); ++i) {
    for (const Entry& entry : entries(arrived_.data.data() + i * row_bytes_)) {
      if (entry.local >= 0) ++counts[entry.expert];
    }
  }
  std::vector<size_t> next(experts);
  for (size_t expert = 1; expert < experts; ++expert) next[expert] = next[expert - 1] + counts[expert - 1];
  total_ = next[experts - 1] + counts[experts - 1];
  for (size_t i = 0; i < slots_.size(); ++i) {
    for (const Entry& entry : entries(arrived_.data.data() + i * row_bytes_)) {
      if (entry.local >= 0) slots_[i].push_back({next[static_cast<size_t>(entry.expert)]++, entry.weight});
    }
  }
}

Status Moe::dispatch(const void* tokens, const int32_t* experts, const float* weights, size_t count, void* rows,
                     size_t capacity, size_t* counts, size_t* total) {
  dispatched_ = false;
  WEFT_RETURN_IF_ERROR(check_agreement());
  WEFT_RETURN_IF_ERROR(check_routing(experts, weights, count));
  pack(static_cast<const std::byte*>(tokens), experts, weights, count);
  tokens_ = count;

  std::vector<int> towards;
  for (int node = 0; node < layout_.nodes(); ++node) towards.push_back(layout_.towards(node));
  std::vector<size_t> incoming;
  WEFT_RETURN_IF_ERROR(exchange_counts(towards, to_nodes_.counts, layout_.sources(), incoming));
  from_ranks_.shape(std::move(incoming), row_bytes_);
  WEFT_RETURN_IF_ERROR(exchange(towards, to_nodes_, layout_.sources(), from_ranks_, row_bytes_));

  fan_out();
  const std::vector<int>& members = layout_.members(layout_.node(rank_));
  incoming.clear();
  WEFT_RETURN_IF_ERROR(exchange_counts(members, to_ranks_.counts, members, incoming));
  arrived_.shape(std::move(incoming), row_bytes_);
  WEFT_RETURN_IF_ERROR(exchange(members, to_ranks_, members, arrived_, row_bytes_));

  place(counts);
  *total = total_;
  dispatched_ = true;
  return this->rows(rows, capacity);
}

Status Moe::rows(void* rows, size_t capacity) const {
  if (!dispatched_) return error(weftInvalidUsage, "weftMoe: nothing was dispatched");
  if (capacity < total_) {
    return error(weftInvalidUsage,
                 "capacity is {}; this rank's experts have {} rows. weftMoeRows gives them, with room", capacity,
                 total_);
  }
  auto& self = const_cast<Moe&>(*this);  // decode() uses scratch memory
  for (size_t i = 0; i < slots_.size(); ++i) {
    std::byte* from = payload(self.arrived_.data.data() + i * row_bytes_);
    const std::byte* first = nullptr;
    for (const Slot& slot : slots_[i]) {
      std::byte* to = static_cast<std::byte*>(rows) + slot.row * token_bytes_;
      if (first == nullptr) {
        self.decode(to, from);
        first = to;
      } else {
        std::memcpy(to, first, token_bytes_);
      }
    }
  }
  return {};
}

Status Moe::combine(const void* rows, void* out) {
  if (!dispatched_) return error(weftInvalidUsage, "weftMoeCombine without a dispatch before it");
  const auto store = [&](std::byte* to) {
    if (config_.datatype == weftFloat32) {
      std::memcpy(to, sum_.data(), token_bytes_);
    } else {
      narrow(to, sum_.data(), config_.hidden, config_.datatype);
    }
  };
  // The rank's experts.
  MoeRows made, back;
  made.shape(arrived_.counts, token_bytes_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    clear();
    for (const Slot& slot : slots_[i]) add(static_cast<const std::byte*>(rows) + slot.row * token_bytes_, slot.weight);
    store(made.data.data() + i * token_bytes_);
  }
  const std::vector<int>& members = layout_.members(layout_.node(rank_));
  back.shape(to_ranks_.counts, token_bytes_);
  WEFT_RETURN_IF_ERROR(exchange(members, made, members, back, token_bytes_));
  // The node's ranks.
  made.shape(from_ranks_.counts, token_bytes_);
  for (size_t i = 0; i < fanned_.size(); ++i) {
    clear();
    for (const size_t row : fanned_[i]) add(back.data.data() + row * token_bytes_, 1);
    store(made.data.data() + i * token_bytes_);
  }
  std::vector<int> towards;
  for (int node = 0; node < layout_.nodes(); ++node) towards.push_back(layout_.towards(node));
  back.shape(to_nodes_.counts, token_bytes_);
  WEFT_RETURN_IF_ERROR(exchange(layout_.sources(), made, towards, back, token_bytes_));
  // All nodes.
  std::vector<std::vector<size_t>> parts(tokens_);
  for (size_t i = 0; i < token_of_.size(); ++i) parts[token_of_[i]].push_back(i);
  for (size_t token = 0; token < tokens_; ++token) {
    clear();
    for (const size_t row : parts[token]) add(back.data.data() + row * token_bytes_, 1);
    store(static_cast<std::byte*>(out) + token * token_bytes_);
  }
  return {};
}

}  // namespace weft
