#include "transports/clash.hpp"

namespace weft {
namespace {

WireError foreign(int peer, const MessageId& ours, const MessageId& theirs) {
  return {WireError::Kind::mismatch, ours, theirs,
          fmt::format("message {}.{} belongs to another call at rank {}", ours.sequence, ours.index, peer)};
}

}  // namespace

std::optional<WireError> clash(int peer, const MessageId& ours, size_t bytes, const MessageId& theirs,
                               uint64_t their_bytes) {
  if (ours.signature != theirs.signature) return foreign(peer, ours, theirs);
  if (bytes == their_bytes) return std::nullopt;
  return WireError{WireError::Kind::length, ours, theirs,
                   fmt::format("message {}.{} has {} bytes here and {} at rank {}", ours.sequence, ours.index, bytes,
                               their_bytes, peer)};
}

WireError refusal(int peer, const MessageId& ours, const MessageId& theirs, uint64_t their_bytes) {
  if (ours.signature != theirs.signature) return foreign(peer, ours, theirs);
  return {WireError::Kind::length, ours, theirs,
          fmt::format("rank {} expects {} bytes as message {}.{}, we have another length", peer, their_bytes,
                      ours.sequence, ours.index)};
}

}  // namespace weft
