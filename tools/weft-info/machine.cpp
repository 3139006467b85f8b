#include "machine.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "hardware.hpp"
#include "topology/machine_detect.hpp"

namespace weft::info {
namespace {

struct Limit {
  const char* name;
  const char* why;
  uint64_t value;
  bool unlimited;
};

std::vector<Limit> limits() {
  std::vector<Limit> list;
  const auto add = [&](const char* name, const char* why, __rlimit_resource which) {
    rlimit limit{};
    if (::getrlimit(which, &limit) == 0) list.push_back({name, why, limit.rlim_cur, limit.rlim_cur == RLIM_INFINITY});
  };
  add("memlock", "bytes that RDMA may register", RLIMIT_MEMLOCK);
  add("nofile", "open files: a connection or two to each peer", RLIMIT_NOFILE);
  add("nproc", "processes and threads of this user", RLIMIT_NPROC);
  return list;
}

}  // namespace

std::string machine_text() {
  std::string text = hardware_text(this_machine()) + "limits\n";
  for (const Limit& limit : limits()) {
    text += fmt::format("  {:<8} {} ({})\n", limit.name,
                        limit.unlimited ? std::string("unlimited") : std::to_string(limit.value), limit.why);
  }
  return text;
}

nlohmann::json machine_json() {
  nlohmann::json json = hardware_json(this_machine());
  for (const Limit& limit : limits()) {
    json["limits"][limit.name] = limit.unlimited ? nlohmann::json(nullptr) : nlohmann::json(limit.value);
  }
  return json;
}

}  // namespace weft::info
