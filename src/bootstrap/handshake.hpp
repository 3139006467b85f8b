// How two processes of a job prove to each other that they know its secret, before a byte from the other is believed.
// A pure state machine over bytes, so that every connection (bootstrap, tcp streams, shm's unix sockets) shares it and
// a fuzzer can drive it.
//
//   initiator -> acceptor   hello: magic, protocol version, purpose, group, from rank, to rank, channel, nonce
//   acceptor  -> initiator  reply: magic, version, nonce, HMAC-SHA-256(secret, both nonces and the hello, "accept")
//   initiator -> acceptor   proof: HMAC-SHA-256(secret, both nonces and the hello, "connect")
//
// hello and reply begin with 12 bytes that no version may change: magic (8), version (2) and a status (2) that is 0 in
// a hello. A reply with another status is a refusal, says why, and ends there. Nothing that a refusal says is believed
// for more than an error message.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "status/status.hpp"

namespace weft {

using Secret = std::array<uint8_t, 16>;

struct Hello {
  uint8_t purpose = 0;  // 'b' bootstrap, 's' shm, 't' tcp stream, 'u' ucx, 'v' verbs
  uint64_t group = 0;   // the communicator: a connection for another one is refused
  int32_t from = 0, to = 0;
  uint32_t channel = 0;  // e.g. which of several streams
};

class Handshake {
 public:
  static constexpr uint16_t kVersion = 1;

  static Handshake connect(const Secret& secret, const Hello& hello);
  // The acceptor takes hellos for `group` and rank `self` only.
  static Handshake accept(const Secret& secret, uint64_t group, int32_t self);

  // Bytes to write to the peer now; the caller has sent all of them before it asks again. After an error of an acceptor
  // they are a refusal that tells the peer why: send it if it goes without waiting, then close.
  std::string take_output();
  // How many bytes it wants next; 0 when done. Never more than one handshake message, so that bytes that follow the
  // handshake stay in the socket.
  size_t wants() const;
  // Exactly wants() bytes that came from the peer. An error (not ours, other version, other job, wrong group) ends it:
  // close the connection. The message says which, with both values.
  Status feed(std::span<const uint8_t> bytes);
  bool done() const;
  // The peer's hello, valid once done.
  const Hello& hello() const { return hello_; }

 private:
  enum class State : uint8_t { want_hello, want_reply, want_proof, done, failed };
  Handshake() = default;
  Status feed_hello(std::span<const uint8_t> bytes);
  Status feed_reply(std::span<const uint8_t> bytes);
  Status feed_proof(std::span<const uint8_t> bytes);
  Status refuse(uint16_t status, Status why);
  std::array<uint8_t, 32> proof_of(const char* role) const;

  State state_ = State::failed;
  Secret secret_{};
  Hello hello_;
  uint64_t group_ = 0;
  int32_t self_ = 0;
  std::array<uint8_t, 16> connect_nonce_{}, accept_nonce_{};
  std::string output_;
  std::string hello_bytes_;
  std::string header_;  // the reply's, once it is here
};

}  // namespace weft
