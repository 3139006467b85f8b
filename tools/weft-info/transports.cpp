#include "transports.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "transports/transport.hpp"

namespace weft::info {
namespace {

struct Line {
  std::string name, problem;  // problem: empty where it is usable
  Capability capability;
};

// Each transport is made as for a communicator of one rank, and asked.
std::vector<Line> examine(const Config& config) {
  std::vector<Line> lines;
  auto poller = Poller::create();
  for (const TransportEntry& entry : transports()) {
    Line line{std::string(entry.name), "", {}};
    if (poller.ok()) {
      TransportContext context;
      context.config = &config;
      context.poller = &poller.value();
      auto made = entry.create(context);
      if (made.ok())
        line.capability = made.value()->capability();
      else
        line.problem = made.status().message();
    } else {
      line.problem = poller.status().message();
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

const char* reach(const Capability& capability) {
  return capability.same_process_only ? "one process" : capability.same_host_only ? "one host" : "any host";
}

}  // namespace

std::string transports_text(const Config& config) {
  std::string text;
  for (const Line& line : examine(config)) {
    if (!line.problem.empty())
      text += fmt::format("{:<6} not usable here: {}\n", line.name, line.problem);
    else
      text += fmt::format("{:<6} {:<12} assumed {} us, {} GB/s; eager up to {} B\n", line.name, reach(line.capability),
                          line.capability.latency_us, line.capability.bandwidth_gbs, line.capability.eager_bytes);
  }
  return text;
}

std::string transports_json(const Config& config) {
  auto list = nlohmann::json::array();
  for (const Line& line : examine(config)) {
    list.push_back({{"name", line.name}, {"usable", line.problem.empty()}});
    if (!line.problem.empty()) {
      list.back()["problem"] = line.problem;
      continue;
    }
    list.back()["reach"] = reach(line.capability);
    list.back()["latency_us"] = line.capability.latency_us;
    list.back()["bandwidth_gbs"] = line.capability.bandwidth_gbs;
    list.back()["eager_bytes"] = line.capability.eager_bytes;
  }
  return list.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace weft::info
