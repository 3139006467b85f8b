#include "transports/verbs/gid.hpp"

#include <arpa/inet.h>

#include <algorithm>

namespace weft::verbs {

bool is_empty(const RawGid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; });
}
bool is_link_local(const RawGid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }
bool is_ipv4_mapped(const RawGid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t byte) { return byte == 0; }) && gid[10] == 0xff &&
         gid[11] == 0xff;
}

std::string to_text(const RawGid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  return text;
}

int choose_gid(std::span<const Gid> table, const std::string& family) {
  int best = -1, best_rank = 0;
  for (const Gid& gid : table) {
    if (is_empty(gid.raw) || is_link_local(gid.raw)) continue;
    const bool v4 = is_ipv4_mapped(gid.raw);
    if (v4 ? family == "inet6" : family == "inet") continue;
    const int rank = 1 + (gid.type == GidType::roce_v2 ? 2 : 0) + (v4 ? 1 : 0);
    if (rank <= best_rank) continue;
    best = gid.index;
    best_rank = rank;
  }
  return best;
}

}  // namespace weft::verbs
