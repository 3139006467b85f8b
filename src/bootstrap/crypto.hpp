// The little cryptography that bootstrap needs; all of it is OpenSSL's.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "status/status.hpp"

namespace weft {

using Digest = std::array<uint8_t, 32>;

Status random_bytes(std::span<uint8_t> out);
Digest sha256(std::string_view text);
Digest hmac_sha256(std::span<const uint8_t> key, std::string_view text);
// In time that does not depend on where they differ.
bool equal_secrets(std::span<const uint8_t> a, std::span<const uint8_t> b);

}  // namespace weft
