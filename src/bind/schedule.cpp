#include "bind/schedule.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace weft {

Schedule::Schedule(const Plan& plan, uint32_t window_tiles, Order order)
    : window(window_tiles), stride(std::max({plan.steps, order == Order::waves ? window_tiles : 1, 1u})) {
  std::map<std::pair<int, Verb>, size_t> places;
  for (uint32_t index = 0; index < plan.ops.size(); ++index) {
    const Op& op = plan.ops[index];
    if (op.verb == Verb::copy) continue;
    auto [place, fresh] = places.try_emplace({op.peer, op.verb}, queues.size());
    if (fresh) queues.push_back({.peer = op.peer, .verb = op.verb, .entries = {}});
    Queue& queue = queues[place->second];
    for (uint32_t tile = 0; tile < window; ++tile) {
      queue.entries.push_back({op.step + (order == Order::waves ? tile : 0), tile, index});
    }
  }
  for (Queue& queue : queues) {
    std::sort(queue.entries.begin(), queue.entries.end(), [](const Entry& a, const Entry& b) {
      return std::tie(a.place, a.tile, a.op) < std::tie(b.place, b.tile, b.op);
    });
  }
}

}  // namespace weft
