// Messages that are not what waits for them, in the words of every transport that tells both ends.
#pragma once

#include <optional>

#include "transports/transport.hpp"

namespace weft {

// What is wrong when a message of the peer's has come for one of ours, of `bytes`; nothing when they match.
std::optional<WireError> clash(int peer, const MessageId& ours, size_t bytes, const MessageId& theirs,
                               uint64_t their_bytes);
// The same, found out and told by the peer, whose message has `their_bytes`.
WireError refusal(int peer, const MessageId& ours, const MessageId& theirs, uint64_t their_bytes);

}  // namespace weft
