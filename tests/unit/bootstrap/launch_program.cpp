// A rank under a real launcher: joins, gathers and leaves twice, and says so in one line.
#include <unistd.h>

#include <cstdio>

#include "bootstrap/launch.hpp"

namespace weft {
namespace {

Status run_once(const Config& config, std::string* line) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(15));
  auto launch = detect_launch(config, deadline);
  if (!launch.ok()) return launch.status();
  auto joined = join({.id = launch->id,
                      .rank = launch->rank,
                      .size = launch->size,
                      .listener = launch->listener,
                      .deadline = deadline,
                      .config = &config});
  if (!joined.ok()) return joined.status();
  auto all = (*joined)->all_gather(std::to_string(launch->rank), deadline);
  if (!all.ok()) return all.status();
  *line = fmt::format("{} {}/{} local {}/{}:", launch->launcher, launch->rank, launch->size, launch->local_rank,
                      launch->local_size);
  for (const std::string& text : *all) *line += " " + text;
  (*joined)->leave();
  return {};
}

}  // namespace
}  // namespace weft

int main() {
  const auto& config = weft::config();
  std::string line;
  weft::Status status = config.status();
  for (int i = 0; status.ok() && i < 2; ++i) status = weft::run_once(config.value(), &line);
  if (!status.ok()) line = "error: " + status.message();
  line += "\n";
  return ::write(1, line.data(), line.size()) > 0 && status.ok() ? 0 : 1;
}
