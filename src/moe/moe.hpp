// Tokens to experts and back: see weft.h. Works by point-to-point messages of a communicator, in two hops: from a rank
// to its counterpart in another node, and inside the node to the ranks of the experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "status/status.hpp"
#include "topology/hierarchy.hpp"
#include "weft/weft.h"

namespace weft {

// Who meets whom.
class MoeLayout {
 public:
  MoeLayout(const Hierarchy& hierarchy, int rank);
  int nodes() const { return static_cast<int>(members_.size()); }
  int node(int rank) const { return node_of_[static_cast<size_t>(rank)]; }
  int local(int rank) const { return local_of_[static_cast<size_t>(rank)]; }
  const std::vector<int>& members(int node) const { return members_[static_cast<size_t>(node)]; }
  // To whom this rank sends what is for a node: its counterpart there; for the own node itself.
  int towards(int node) const { return towards_[static_cast<size_t>(node)]; }
  // Who sends to this rank what is for its node, by rising rank; itself among them.
  const std::vector<int>& sources() const { return sources_; }

 private:
  std::vector<int> node_of_, local_of_, towards_, sources_;
  std::vector<std::vector<int>> members_;
};

// Rows of one size, peer by peer.
struct MoeRows {
  std::vector<std::byte> data;
  std::vector<size_t> counts, offsets;  // by peer, in rows

  size_t total() const { return offsets.empty() ? 0 : offsets.back() + counts.back(); }
  void shape(std::vector<size_t> peer_counts, size_t row_bytes);
};

class Moe {
 public:
  Moe(weftComm_t comm, const Hierarchy& hierarchy, int rank, int ranks, const weftMoeConfig_t& config);

  Status dispatch(const void* tokens, const int32_t* experts, const float* weights, size_t count, void* rows,
                  size_t capacity, size_t* counts, size_t* total);
  Status rows(void* rows, size_t capacity) const;
  Status combine(const void* rows, void* out);

 private:
  // What is known of a row: which token of which rank it is, and where on this node it goes.
  struct Entry {
    int16_t local = -1, expert = -1;  // rank of the node, expert of the rank
    float weight = 0;
  };
  struct Head {
    uint32_t origin = 0, token = 0;
  };
  Head& head(std::byte* row) const { return *reinterpret_cast<Head*>(row); }
  std::span<Entry> entries(std::byte* row) const {
    return {reinterpret_cast<Entry*>(row + sizeof(Head)), static_cast<size_t>(config_.topk)};
  }
  std::byte* payload(std::byte* row) const {
    return row + sizeof(Head) + sizeof(Entry) * static_cast<size_t>(config_.topk);
  }

  Status check_agreement();
  Status check_routing(const int32_t* experts, const float* weights, size_t count) const;
  void pack(const std::byte* tokens, const int32_t* experts, const float* weights, size_t count);
  void fan_out();
  void place(size_t* counts);
  void encode(std::byte* to, const std::byte* token);
  void decode(std::byte* to, const std::byte* from);
  // acc += weight * row
  void add(const std::byte* row, float weight);
  void clear() { std::fill(sum_.begin(), sum_.end(), 0.0F); }

  // Sends counts, then rows; peers(i) has what is to go to it in `to`. What is for oneself is copied.
  Status exchange_counts(const std::vector<int>& send_peers, const std::vector<size_t>& counts,
                         const std::vector<int>& receive_peers, std::vector<size_t>& received) const;
  Status exchange(const std::vector<int>& send_peers, const MoeRows& to, const std::vector<int>& receive_peers,
                  MoeRows& from, size_t row_bytes) const;

  weftComm_t comm_;
  const int rank_, ranks_;
  const weftMoeConfig_t config_;
  const MoeLayout layout_;
  const size_t token_bytes_, row_bytes_;  // of a row on its way out; back it is a token alone
  const int local_experts_;
  bool agreed_ = false, dispatched_ = false;
  size_t tokens_ = 0, total_ = 0;

  MoeRows to_nodes_, from_ranks_, to_ranks_, arrived_;
  // Of each row of from_ranks_: where it went, as rows of to_ranks_.
  std::vector<std::vector<size_t>> fanned_;
  // Of each row of to_nodes_: its token.
  std::vector<uint32_t> token_of_;
  struct Slot {
    size_t row;
    float weight;
  };
  std::vector<std::vector<Slot>> slots_;  // of each row of arrived_: rows of the caller
  std::vector<float> sum_, scratch_;
};

}  // namespace weft
