#include "bootstrap/crypto.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace weft {

Status random_bytes(std::span<uint8_t> out) {
  if (RAND_bytes(out.data(), static_cast<int>(out.size())) != 1) {
    return error(weftSystemError, "the system gave no random bytes for a secret");
  }
  return {};
}

Digest sha256(std::string_view text) {
  Digest digest{};
  unsigned size = digest.size();
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  return digest;
}

Digest hmac_sha256(std::span<const uint8_t> key, std::string_view text) {
  Digest digest{};
  unsigned size = digest.size();
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const uint8_t*>(text.data()),
       text.size(), digest.data(), &size);
  return digest;
}

bool equal_secrets(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace weft
