// A pair of rails of a wire, one at each end: the queue pairs between them, and its lives. A life (epoch) begins when
// both ends have made their queue pairs and ends when both have destroyed them; only then is known what came over it,
// and what did not goes over another pair.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "transports/note_stream.hpp"
#include "transports/verbs/fabric.hpp"
#include "transports/verbs/notes.hpp"

namespace weft::verbs {

// A large message that is being sent.
struct Outgoing {
  SendRequest* request = nullptr;
  Clear clear;
  uint32_t fragments = 0;
  uint32_t next = 0;            // the first that was never posted
  uint32_t done = 0;            // how many are over there
  std::vector<uint32_t> again;  // to be posted once more
  bool listed = false;          // in a flow: something is to be posted
  // The registrations of its pieces with each rail; empty: not asked for yet.
  std::array<std::vector<Registrations::Entry*>, kMostRails> pieces;
  std::array<bool, kMostRails> bounced{};  // cannot be registered there

  size_t offset(uint32_t fragment) const { return size_t{fragment} * clear.unit; }
  size_t length(uint32_t fragment) const {
    return std::min<size_t>(clear.unit, request->source.bytes - offset(fragment));
  }
};

// A large message that is being received.
struct Incoming {
  RecvRequest* request = nullptr;  // null: the slot is free
  uint32_t generation = 0;
  uint32_t unit = 0, fragments = 0, came = 0;
  std::string bits;           // of the fragments that came
  Block* landing = nullptr;   // null: it lands where it belongs
  std::byte* base = nullptr;  // of where it lands
  std::array<Registrations::Entry*, kMostRails> entries{};

  bool has(uint32_t fragment) const { return (bits[fragment / 8] >> (fragment % 8) & 1) != 0; }
};

struct Pair {
  enum class State : uint8_t { idle, connecting, up, down };
  struct Limbo {
    Outgoing* message = nullptr;
    uint32_t fragment = 0;
  };

  int number = 0;
  int rail = -1;  // of the fabric's
  RailAddress theirs;
  State state = State::idle;
  uint32_t epoch = 0;
  std::vector<std::unique_ptr<Lane>> lanes;
  uint64_t token = 0;
  std::optional<UpNote> their_up;  // of this epoch or the next one
  bool connected = false;          // ours can receive
  bool they_are = false;           // theirs can
  std::optional<DownNote> heard;   // the peer's end of this epoch
  bool told = false;               // ours was sent
  std::vector<Limbo> limbo;
  std::string trouble;
  Clock::time_point retry_at{};
  Clock::time_point begun_at{};  // connecting, both ends having their queue pairs

  bool living() const { return state == State::connecting || state == State::up; }
};

}  // namespace weft::verbs
