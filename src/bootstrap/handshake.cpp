#include "bootstrap/handshake.hpp"

#include <algorithm>
#include <cstring>

#include "bootstrap/bytes.hpp"
#include "bootstrap/crypto.hpp"

namespace weft {
namespace {

constexpr std::string_view kMagic{"WEFT\xf7hs\n", 8};
constexpr size_t kHeaderBytes = 12;
constexpr size_t kNonceBytes = 16;
constexpr size_t kProofBytes = 32;
constexpr size_t kHelloBytes = kHeaderBytes + 1 + 8 + 4 + 4 + 4 + kNonceBytes;
constexpr size_t kReplyBodyBytes = kNonceBytes + kProofBytes;
constexpr size_t kRefusalBodyBytes = 8 + 4;

// A reply's status. kOtherVersion has no body: its layout is not known to the other side.
enum : uint16_t { kAccepted = 0, kOtherVersion = 1, kWrongGroup = 2, kWrongRank = 3 };

std::string header(uint16_t status) {
  std::string out(kMagic);
  put(out, Handshake::kVersion);
  put(out, status);
  return out;
}

std::string_view view(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void append(std::string& out, std::span<const uint8_t> bytes) { out += view(bytes); }

template <size_t N>
void copy_to(std::array<uint8_t, N>& out, std::string_view bytes) {
  std::memcpy(out.data(), bytes.data(), std::min(N, bytes.size()));
}

Status check_header(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.take(kMagic.size()) != kMagic) {
    return error(weftRemoteError, "the other end is not a Weft peer: its first bytes are not Weft's");
  }
  if (const auto version = reader.get<uint16_t>(); version != Handshake::kVersion) {
    return error(weftRemoteError,
                 "the peer speaks protocol version {}, this process version {}: use the same Weft everywhere", version,
                 Handshake::kVersion);
  }
  return {};
}

}  // namespace

Handshake Handshake::connect(const Secret& secret, const Hello& hello) {
  Handshake self;
  self.secret_ = secret;
  self.hello_ = hello;
  if (!random_bytes(self.connect_nonce_).ok()) return self;
  self.hello_bytes_ = header(kAccepted);
  put(self.hello_bytes_, hello.purpose);
  put(self.hello_bytes_, hello.group);
  put(self.hello_bytes_, hello.from);
  put(self.hello_bytes_, hello.to);
  put(self.hello_bytes_, hello.channel);
  append(self.hello_bytes_, self.connect_nonce_);
  self.output_ = self.hello_bytes_;
  self.state_ = State::want_reply;
  return self;
}

Handshake Handshake::accept(const Secret& secret, uint64_t group, int32_t self_rank) {
  Handshake self;
  self.secret_ = secret;
  self.group_ = group;
  self.self_ = self_rank;
  self.state_ = State::want_hello;
  return self;
}

std::string Handshake::take_output() { return std::exchange(output_, {}); }

bool Handshake::done() const { return state_ == State::done; }

size_t Handshake::wants() const {
  switch (state_) {
    case State::want_hello:
      return hello_bytes_.empty() ? kHeaderBytes : kHelloBytes - kHeaderBytes;
    case State::want_reply:
      if (header_.empty()) return kHeaderBytes;
      return ByteReader(std::string_view(header_).substr(10)).get<uint16_t>() == kAccepted ? kReplyBodyBytes
                                                                                           : kRefusalBodyBytes;
    case State::want_proof:
      return kProofBytes;
    case State::done:
    case State::failed:
      break;
  }
  return 0;
}

Status Handshake::feed(std::span<const uint8_t> bytes) {
  if (state_ == State::failed || state_ == State::done || bytes.size() != wants()) {
    state_ = State::failed;
    return error(weftInternalError, "handshake: {} bytes were not asked for", bytes.size());
  }
  Status status;
  if (state_ == State::want_hello)
    status = feed_hello(bytes);
  else if (state_ == State::want_reply)
    status = feed_reply(bytes);
  else
    status = feed_proof(bytes);
  if (!status.ok()) state_ = State::failed;
  return status;
}

Status Handshake::refuse(uint16_t status, Status why) {
  output_ = header(status);
  if (status != kOtherVersion) {
    put(output_, group_);
    put(output_, self_);
  }
  return why;
}

Status Handshake::feed_hello(std::span<const uint8_t> bytes) {
  if (hello_bytes_.empty()) {
    if (Status status = check_header(view(bytes)); !status.ok()) {
      // A stranger gets no answer, a Weft of another version gets ours.
      return view(bytes).starts_with(kMagic) ? refuse(kOtherVersion, std::move(status)) : status;
    }
    hello_bytes_ = view(bytes);
    return {};
  }
  hello_bytes_ += view(bytes);
  ByteReader reader(view(bytes));
  hello_.purpose = reader.get<uint8_t>();
  hello_.group = reader.get<uint64_t>();
  hello_.from = reader.get<int32_t>();
  hello_.to = reader.get<int32_t>();
  hello_.channel = reader.get<uint32_t>();
  copy_to(connect_nonce_, reader.take(kNonceBytes));
  if (hello_.group != group_) {
    return refuse(kWrongGroup, error(weftRemoteError,
                                     "the peer belongs to another job or communicator (group {:016x}, ours is {:016x})",
                                     hello_.group, group_));
  }
  if (hello_.to != self_) {
    return refuse(kWrongRank, error(weftRemoteError, "the peer wants rank {}, this is rank {}", hello_.to, self_));
  }
  WEFT_RETURN_IF_ERROR(random_bytes(accept_nonce_));
  output_ = header(kAccepted);
  append(output_, accept_nonce_);
  append(output_, proof_of("accept"));
  state_ = State::want_proof;
  return {};
}

Status Handshake::feed_reply(std::span<const uint8_t> bytes) {
  if (header_.empty()) {
    WEFT_RETURN_IF_ERROR(check_header(view(bytes)));
    header_ = view(bytes);
    return {};
  }
  ByteReader reader(view(bytes));
  const auto status = ByteReader(std::string_view(header_).substr(10)).get<uint16_t>();
  if (status != kAccepted) {
    const auto group = reader.get<uint64_t>();
    const auto rank = reader.get<int32_t>();
    if (status == kWrongRank) {
      return error(weftRemoteError, "the peer is rank {}, not rank {}", rank, hello_.to);
    }
    return error(weftRemoteError, "the peer belongs to another job or communicator (group {:016x}, ours is {:016x})",
                 group, hello_.group);
  }
  copy_to(accept_nonce_, reader.take(kNonceBytes));
  Digest proof;
  copy_to(proof, reader.take(kProofBytes));
  if (!equal_secrets(proof, proof_of("accept"))) {
    return error(weftRemoteError, "the peer has another secret: it belongs to another job, or WEFT_SECRET differs");
  }
  append(output_, proof_of("connect"));
  state_ = State::done;
  return {};
}

Status Handshake::feed_proof(std::span<const uint8_t> bytes) {
  if (!equal_secrets(bytes, proof_of("connect"))) {
    return error(weftRemoteError, "the peer has another secret: it belongs to another job, or WEFT_SECRET differs");
  }
  state_ = State::done;
  return {};
}

std::array<uint8_t, 32> Handshake::proof_of(const char* role) const {
  std::string text(role);
  append(text, connect_nonce_);
  append(text, accept_nonce_);
  text += hello_bytes_;
  return hmac_sha256(secret_, text);
}

}  // namespace weft
