// Little-endian fields of wire messages.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace weft {

template <typename T>
requires std::is_integral_v<T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(std::make_unsigned_t<T>(value) >> (8 * i)));
}

// Takes fields off the front; reading past the end gives zeros and makes ok() false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  requires std::is_integral_v<T> T get() {
    std::make_unsigned_t<T> value = 0;
    const std::string_view field = take(sizeof(T));
    for (size_t i = 0; i < field.size(); ++i) {
      value = static_cast<std::make_unsigned_t<T>>(value | std::make_unsigned_t<T>{static_cast<uint8_t>(field[i])}
                                                               << (8 * i));
    }
    return static_cast<T>(value);
  }
  std::string_view take(size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      size = 0;
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  // A text with its length (u32) before it.
  std::string_view text() { return take(get<uint32_t>()); }
  std::string_view rest() const { return rest_; }
  bool ok() const { return ok_; }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

inline void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint32_t>(text.size()));
  out += text;
}

}  // namespace weft
