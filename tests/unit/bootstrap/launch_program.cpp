// A rank under a real launcher: joins, gathers and leaves twice, and says so in one line. With an argument it then
// stays for rank times so many milliseconds: launchers mind how others behave that end before.
#include <unistd.h>

#include <cstdlib>
#include <thread>

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

int main(int count, char** arguments) {
  const auto& config = weft::config();
  std::string line;
  weft::Status status = config.status();
  for (int i = 0; status.ok() && i < 2; ++i) status = weft::run_once(config.value(), &line);
  if (!status.ok()) line = "error: " + status.message();
  line += "\n";
  if (const auto at = line.find(' '); status.ok() && count > 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(line.c_str() + at) * std::atoi(arguments[1])));
  }
  return ::write(1, line.data(), line.size()) > 0 && status.ok() ? 0 : 1;
}
