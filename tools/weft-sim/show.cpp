#include "show.hpp"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "plan/plan.hpp"

namespace weft {
namespace {

using nlohmann::ordered_json;

constexpr int kLeft = 70, kTop = 40, kRow = 22, kWidth = 1100;

// Of the collective, as nccl-tests have it: what the busiest link of an ideal ring would carry.
double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::allreduce:
      return 2 * (n - 1) / n;
    case Collective::allgather:
    case Collective::reducescatter:
    case Collective::alltoall:
    case Collective::gather:
    case Collective::scatter:
      return (n - 1) / n;
    default:
      return 1;
  }
}

double bus_bandwidth(const SimulatedCall& call) {
  if (call.result.microseconds <= 0) return 0;
  return static_cast<double>(call.bytes) / call.result.microseconds / 1000 *
         bus_factor(call.program->collective(), call.ranks);
}

std::string what(const SimulatedSpan& span) {
  if (span.peer < 0) return span.reduce ? "combine" : "copy";
  return fmt::format("{}{} -> {}", span.reduce ? "reduce " : "", span.peer, span.rank);
}

}  // namespace

std::string to_text(const std::vector<SimulatedCall>& calls) {
  std::string text =
      fmt::format("# simulated, not measured\n{:20}{:14}{:20}{:>9}{:>12}{:>14}{:>12}{:>10}{:>9}{:>10}  {}\n",
                  "topology", "collective", "algorithm", "ranks", "bytes", "us", "busbw GB/s", "simulated", "classes",
                  "events", "busiest link of each level");
  for (const SimulatedCall& call : calls) {
    text += fmt::format("{:20}{:14}{:20}{:>9}{:>12}", call.topology, name_of(call.program->collective()),
                        call.program->name(), call.ranks, call.bytes);
    if (!call.failure.empty()) {
      text += fmt::format("{:>14}  {}\n", "-", call.failure);
      continue;
    }
    text += fmt::format("{:>14.5g}{:>12.4g}{:>10}{:>9}{:>10} ", call.result.microseconds, bus_bandwidth(call),
                        call.result.simulated_ranks,
                        fmt::format("{}{}", call.result.sampled ? "~" : "", call.result.classes), call.result.events);
    for (const auto& level : call.result.levels) text += fmt::format(" {:3.0f}%", 100 * level.busiest);
    text += fmt::format("{}{}\n", call.best ? " *" : "", call.chosen ? " chosen" : "");
  }
  return text;
}

std::string to_json(const std::vector<SimulatedCall>& calls) {
  ordered_json all = ordered_json::array();
  for (const SimulatedCall& call : calls) {
    ordered_json one{{"simulated", true},
                     {"topology", call.topology},
                     {"collective", name_of(call.program->collective())},
                     {"algorithm", call.program->name()},
                     {"ranks", call.ranks},
                     {"bytes", call.bytes}};
    if (!call.failure.empty()) {
      one["failure"] = call.failure;
    } else {
      one["microseconds"] = call.result.microseconds;
      one["busbw_GBs"] = bus_bandwidth(call);
      one["simulated_ranks"] = call.result.simulated_ranks;
      one["classes"] = call.result.classes;
      one["classes_from"] = call.result.sampled ? "a sample of plans" : "all plans";
      one["events"] = call.result.events;
      ordered_json levels = ordered_json::array();
      for (const auto& level : call.result.levels) {
        levels.push_back({{"bytes", level.bytes}, {"messages", level.messages}, {"busiest", level.busiest}});
      }
      one["levels"] = std::move(levels);
      one["best"] = call.best;
      one["chosen"] = call.chosen;
    }
    all.push_back(std::move(one));
  }
  return all.dump(1);
}

std::string to_svg(const SimulatedCall& call) {
  const double scale = (kWidth - kLeft - 20) / std::max(call.result.microseconds, 1e-9);
  const auto x = [&](double time) { return kLeft + time * scale; };
  const auto y = [](int rank) { return kTop + kRow * rank; };
  std::vector<bool> critical(call.result.spans.size());
  for (const uint32_t at : call.result.critical_path) critical[at] = true;
  std::string svg;
  const auto to = std::back_inserter(svg);
  fmt::format_to(
      to,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>text {{ font: 12px sans-serif; fill: #333 }} rect.m {{ fill: #4a90d9 }} rect.r {{ fill: #7b61c4 }} "
      "rect.c {{ fill: #999 }}\nline {{ stroke: #4a90d9; stroke-width: 0.5; opacity: 0.5 }} .x {{ stroke: #d33; "
      "stroke-width: 1.5; opacity: 1 }}</style>\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, y(call.ranks) + 10);
  fmt::format_to(to, "<text x=\"8\" y=\"16\">{} {}, {} ranks of {}, {} bytes: {:.5g} us, simulated</text>\n",
                 name_of(call.program->collective()), call.program->name(), call.ranks, call.topology, call.bytes,
                 call.result.microseconds);
  for (int rank = 0; rank < call.ranks; ++rank) {
    fmt::format_to(to, "<text x=\"8\" y=\"{}\">rank {}</text>\n", y(rank) + 13, rank);
  }
  for (size_t i = 0; i < call.result.spans.size(); ++i) {
    const SimulatedSpan& span = call.result.spans[i];
    const char* mark = critical[i] ? " x" : "";
    if (span.peer >= 0) {
      fmt::format_to(to, "<line class=\"{}\" x1=\"{:.2f}\" y1=\"{}\" x2=\"{:.2f}\" y2=\"{}\"/>\n", mark, x(span.begin),
                     y(span.peer) + 8, x(span.begin), y(span.rank) + 8);
    }
    fmt::format_to(to,
                   "<rect class=\"{}{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"><title>{} step {} tile "
                   "{}: {:.4g} to {:.4g} us</title></rect>\n",
                   span.peer < 0 ? "c"
                   : span.reduce ? "r"
                                 : "m",
                   mark, x(span.begin), y(span.rank) + 2, std::max(0.5, (span.end - span.begin) * scale), kRow - 8,
                   what(span), span.step, span.tile, span.begin, span.end);
  }
  return svg + "</svg>\n";
}

std::string to_perfetto(const SimulatedCall& call) {
  ordered_json events = ordered_json::array();
  for (int rank = 0; rank < call.ranks; ++rank) {
    events.push_back(
        {{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", fmt::format("rank {}", rank)}}}});
  }
  for (size_t i = 0; i < call.result.spans.size(); ++i) {
    const SimulatedSpan& span = call.result.spans[i];
    // Overlapping spans of one rank need lanes of their own: one for each sender.
    events.push_back({{"name", what(span)},
                      {"ph", "X"},
                      {"pid", span.rank},
                      {"tid", span.peer + 1},
                      {"ts", span.begin},
                      {"dur", span.end - span.begin},
                      {"args", {{"step", span.step}, {"tile", span.tile}, {"op", span.op}}}});
  }
  return ordered_json{{"traceEvents", std::move(events)}, {"otherData", {{"simulated", true}}}}.dump();
}

std::string path_to_text(const SimulatedCall& call) {
  std::string text = fmt::format("# simulated; what the {:.5g} us of {} {} waited for, one after the other\n",
                                 call.result.microseconds, name_of(call.program->collective()), call.program->name());
  for (const uint32_t at : call.result.critical_path) {
    const SimulatedSpan& span = call.result.spans[at];
    text += fmt::format("{:>12.5g} to {:>12.5g} us  step {:>4} tile {:>4}  {}\n", span.begin, span.end, span.step,
                        span.tile, what(span));
  }
  return text;
}

}  // namespace weft
