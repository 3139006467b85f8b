#include "plan/print.hpp"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

nlohmann::ordered_json json_of(std::span<const Region> regions) {
  auto list = nlohmann::ordered_json::array();
  for (const Region& region : regions) {
    list.push_back({{"buffer", name_of(region.buffer)}, {"first", region.first}, {"count", region.count}});
  }
  return list;
}

nlohmann::ordered_json json_of(const Plan& plan, const Op& op, size_t index) {
  nlohmann::ordered_json object = {{"step", op.step}, {"verb", name_of(op.verb)}};
  if (op.reduce) object["reduce"] = true;
  if (op.line > 0) object["line"] = op.line;
  if (op.verb != Verb::copy) {
    object["peer"] = op.peer;
    object["lane"] = op.lane;
  }
  if (op.dst_regions > 0) object["dst"] = json_of(plan.dst(op));
  if (op.src_regions > 0) {
    auto sources = nlohmann::ordered_json::array();
    const uint32_t length = op.src_regions / op.sources;
    for (uint32_t s = 0; s < op.sources; ++s) sources.push_back(json_of(plan.src(op).subspan(s * length, length)));
    object["sources"] = std::move(sources);
  }
  if (!plan.successor_begin.empty()) {
    const auto begin = plan.successors.begin() + static_cast<std::ptrdiff_t>(plan.successor_begin[index]);
    const auto end = plan.successors.begin() + static_cast<std::ptrdiff_t>(plan.successor_begin[index + 1]);
    object["predecessors"] = plan.predecessors[index];
    object["successors"] = std::vector<uint32_t>(begin, end);
  }
  return object;
}

nlohmann::ordered_json json_of(const Plan& plan) {
  nlohmann::ordered_json object = {{"collective", name_of(plan.collective)},
                                   {"algorithm", plan.algorithm},
                                   {"ranks", plan.ranks},
                                   {"rank", plan.rank},
                                   {"root", plan.root},
                                   {"in_place", plan.in_place},
                                   {"chunks_per_block", plan.chunks_per_block},
                                   {"in_blocks", plan.in_blocks},
                                   {"out_blocks", plan.out_blocks},
                                   {"scratch_chunks", plan.scratch_chunks},
                                   {"steps", plan.steps},
                                   {"lanes", plan.lanes}};
  auto ops = nlohmann::ordered_json::array();
  for (size_t i = 0; i < plan.ops.size(); ++i) ops.push_back(json_of(plan, plan.ops[i], i));
  object["ops"] = std::move(ops);
  return object;
}

constexpr int kLeft = 60, kTop = 46, kColumn = 64, kRow = 34;
int column_x(uint32_t step) { return kLeft + static_cast<int>(step) * kColumn; }
int row_y(int rank) { return kTop + rank * kRow + kRow / 2; }

// A message leaves early in its step's column and arrives late in it.
void draw(std::string& svg, const Plan& plan, const Op& op) {
  const auto to = std::back_inserter(svg);
  const std::string title = fmt::format("rank {}, step {}: {}", plan.rank, op.step, to_text(plan, op));
  if (op.verb == Verb::copy) {
    fmt::format_to(to, "<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"4\"><title>{}</title></circle>\n",
                   op.reduce ? "reduce" : "plain", column_x(op.step) + kColumn / 2, row_y(plan.rank), title);
  } else if (op.verb == Verb::recv) {
    const char* kind = op.reduce ? "reduce" : "plain";
    fmt::format_to(to,
                   "<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" marker-end=\"url(#{}-tip)\"><title>{}"
                   "</title></line>\n",
                   kind, column_x(op.step) + 6, row_y(op.peer), column_x(op.step) + kColumn - 8, row_y(plan.rank), kind,
                   title);
  }
}

}  // namespace

const char* name_of(Buffer buffer) { return buffer == Buffer::in ? "in" : buffer == Buffer::out ? "out" : "scratch"; }

const char* name_of(Verb verb) { return verb == Verb::send ? "send" : verb == Verb::recv ? "recv" : "copy"; }

std::string to_text(std::span<const Region> regions) {
  std::string text;
  for (const Region& region : regions) {
    if (!text.empty()) text += ' ';
    if (region.count == 1) {
      text += fmt::format("{}[{}]", name_of(region.buffer), region.first);
    } else {
      text += fmt::format("{}[{}..{}]", name_of(region.buffer), region.first, region.first + region.count);
    }
  }
  return text;
}

std::string to_text(const Plan& plan, const Op& op) {
  std::string text = fmt::format("{}{}", name_of(op.verb), op.reduce ? " reduce" : "");
  if (op.verb != Verb::copy) text += fmt::format(" {} {}", op.verb == Verb::send ? "to" : "from", op.peer);
  if (op.verb != Verb::copy && plan.lanes > 1) text += fmt::format(" lane {}", op.lane);
  text += op.verb == Verb::copy ? " " : ": ";
  if (op.verb == Verb::send) return text + to_text(plan.src(op));
  text += to_text(plan.dst(op));
  const uint32_t length = op.src_regions / op.sources;
  for (uint32_t s = 0; op.src_regions > 0 && s < op.sources; ++s) {
    text += s > 0 ? ", " : op.verb == Verb::copy ? " from " : " with ";
    text += to_text(plan.src(op).subspan(s * length, length));
  }
  return text;
}

std::string to_text(const Plan& plan) {
  std::string text =
      fmt::format("{} {}: rank {} of {}, root {}, {}, {} chunk(s) per block, {} scratch chunk(s), {} step(s)\n",
                  name_of(plan.collective), plan.algorithm, plan.rank, plan.ranks, plan.root,
                  plan.in_place ? "in place" : "out of place", plan.chunks_per_block, plan.scratch_chunks, plan.steps);
  for (const Op& op : plan.ops) text += fmt::format("{:5}  {}\n", op.step, to_text(plan, op));
  return text;
}

std::string to_json(const Plan& plan) { return json_of(plan).dump(2); }

std::string to_json(PlanList plans) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& plan : plans) list.push_back(json_of(*plan));
  return list.dump(2);
}

std::string to_svg(PlanList plans) {
  if (plans.empty()) return {};
  const Plan& first = *plans[0];
  const int width = column_x(first.steps) + 20, height = row_y(first.ranks) + 10;
  std::string svg;
  const auto to = std::back_inserter(svg);
  fmt::format_to(
      to,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>text {{ font: 12px sans-serif; fill: #333 }} line.grid {{ stroke: #ddd }}\n"
      "line.plain {{ stroke: #4a90d9; stroke-width: 1.5 }} line.reduce {{ stroke: #a33; stroke-width: 1.5 }}\n"
      "circle.plain {{ fill: #4a90d9 }} circle.reduce {{ fill: #a33 }}</style>\n<defs>\n",
      width, height);
  for (const auto& [name, colour] : {std::pair("plain", "#4a90d9"), std::pair("reduce", "#a33")}) {
    fmt::format_to(
        to,
        "<marker id=\"{}-tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"6\" markerHeight=\"6\" "
        "orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"{}\"/></marker>\n",
        name, colour);
  }
  fmt::format_to(to,
                 "</defs>\n<rect width=\"{}\" height=\"{}\" fill=\"white\"/>\n<text x=\"8\" y=\"16\">{} {}, {} ranks{}"
                 "</text>\n",
                 width, height, name_of(first.collective), first.algorithm, first.ranks,
                 first.root != 0 ? fmt::format(", root {}", first.root) : "");
  for (uint32_t step = 0; step < first.steps; ++step) {
    fmt::format_to(to, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", column_x(step) + kColumn / 2,
                   kTop - 8, step);
  }
  for (const auto& plan : plans) {
    fmt::format_to(to,
                   "<text x=\"8\" y=\"{0}\">rank {1}</text><line class=\"grid\" x1=\"{2}\" y1=\"{3}\" x2=\"{4}\" "
                   "y2=\"{3}\"/>\n",
                   row_y(plan->rank) + 4, plan->rank, kLeft, row_y(plan->rank), width - 20);
  }
  for (const auto& plan : plans) {
    for (const Op& op : plan->ops) draw(svg, *plan, op);
  }
  return svg + "</svg>\n";
}

}  // namespace weft
