#include "transports.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "transports/transport.hpp"

namespace weft::info {
namespace {

struct Line {
  std::string name, problem;  // problem: empty where it is usable
  bool on_request = false;
  Capability capability;
  std::vector<DeviceReport> devices;
};

// Each transport is made as for a communicator of one rank, and asked.
std::vector<Line> examine(const Config& config) {
  std::vector<Line> lines;
  auto poller = Poller::create();
  for (const TransportEntry& entry : transports()) {
    Line line{.name = std::string(entry.name), .on_request = entry.on_request};
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
    if (entry.devices != nullptr) line.devices = entry.devices(config);
    lines.push_back(std::move(line));
  }
  return lines;
}

const char* reach(const Capability& capability) {
  return capability.same_process_only ? "one process" : capability.same_host_only ? "one host" : "any host";
}

std::string describe(const DeviceReport& device) {
  std::string text =
      fmt::format("         {} {}: {}", device.name, device.used ? "is used" : "is not used", device.reason);
  for (const auto& [name, value] : device.facts) text += fmt::format("; {} {}", name, value);
  return text + "\n";
}

}  // namespace

std::string transports_text(const Config& config) {
  std::string text;
  for (const Line& line : examine(config)) {
    if (!line.problem.empty())
      text += fmt::format("{:<6} not usable here: {}\n", line.name, line.problem);
    else
      text += fmt::format("{:<6} {:<12} assumed {} us, {:.3g} GB/s; eager up to {} B{}\n", line.name,
                          reach(line.capability), line.capability.latency_us, line.capability.bandwidth_gbs,
                          line.capability.eager_bytes, line.on_request ? "; only where WEFT_TRANSPORT names it" : "");
    for (const DeviceReport& device : line.devices) text += describe(device);
  }
  return text;
}

nlohmann::json transports_json(const Config& config) {
  auto list = nlohmann::json::array();
  for (const Line& line : examine(config)) {
    list.push_back({{"name", line.name}, {"usable", line.problem.empty()}, {"on_request", line.on_request}});
    nlohmann::json& entry = list.back();
    for (const DeviceReport& device : line.devices) {
      nlohmann::json facts = {{"name", device.name}, {"used", device.used}, {"reason", device.reason}};
      for (const auto& [name, value] : device.facts) facts[name] = value;
      entry["devices"].push_back(std::move(facts));
    }
    if (!line.problem.empty()) {
      entry["problem"] = line.problem;
      continue;
    }
    entry["reach"] = reach(line.capability);
    entry["latency_us"] = line.capability.latency_us;
    entry["bandwidth_gbs"] = line.capability.bandwidth_gbs;
    entry["eager_bytes"] = line.capability.eager_bytes;
  }
  return list;
}

}  // namespace weft::info
