// What two ranks say to each other beside their queue pairs, over a NoteStream: it brings up pairs of rails, and tells
// of those that died; its end is the peer's end, noticed at once.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/bytes.hpp"
#include "transports/verbs/frame.hpp"
#include "transports/verbs/gid.hpp"

namespace weft::verbs {

// A rail as the peer needs to know it.
struct RailAddress {
  std::string name;  // for messages
  RawGid gid{};
  uint16_t lid = 0;
  uint8_t mtu = 0;  // ibv_mtu
  bool ethernet = true;
  uint16_t cm_port = 0;  // where its connection manager listens, on the address in `gid`
};

struct HelloNote {
  uint32_t eager = kEagerBytes, credits = kCredits;
  uint32_t queue_pairs = 1;
  bool cm = false;
  std::vector<RailAddress> rails;
};

// The queue pairs of a pair of rails, for one life of it.
struct UpNote {
  uint32_t pair = 0, epoch = 0;
  uint64_t token = 0;                      // what a connection request of the connection manager must bring
  RailAddress rail;                        // as it is now
  std::vector<uint32_t> numbers, packets;  // queue pair number and first packet number of each
};

struct ReadyNote {
  uint32_t pair = 0, epoch = 0;
};

// The end of a life: what has come until then.
struct DownNote {
  uint32_t pair = 0, epoch = 0;
  std::string reason;
  Taken taken;
  struct Partial {
    uint32_t slot = 0, generation = 0;
    std::string bits;  // of the fragments that came
  };
  std::vector<Partial> partial;  // of every message that is being received; other ones are complete
};

// A message of the peer's does not match ours.
struct RefuseNote {
  MessageId ours, theirs;
  uint64_t bytes = 0;  // that ours has
};

struct ByeNote {
  uint32_t frames = 0;  // that were sent altogether
};

std::string pack(const HelloNote& note);
std::string pack(const UpNote& note);
std::string pack(const ReadyNote& note);
std::string pack(const DownNote& note);
std::string pack(const RefuseNote& note);
std::string pack(const ByeNote& note);
enum class NoteKind : uint8_t { hello = 1, up, ready, down, refuse, bye };
// Parses the body of a note of that kind; false when it is not one.
bool unpack(std::string_view body, HelloNote* note);
bool unpack(std::string_view body, UpNote* note);
bool unpack(std::string_view body, ReadyNote* note);
bool unpack(std::string_view body, DownNote* note);
bool unpack(std::string_view body, RefuseNote* note);
bool unpack(std::string_view body, ByeNote* note);

// Which rails make pairs: {of the lower rank, of the higher rank}. The same at both ends. Rails of one subnet first,
// the others in order.
std::vector<std::pair<int, int>> pair_rails(const std::vector<RailAddress>& lower,
                                            const std::vector<RailAddress>& higher);

}  // namespace weft::verbs
