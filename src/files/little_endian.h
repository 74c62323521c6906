// Little-endian integers: read, and collected with text, as the writers of headers do. Knows no format.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace swiglu::files {

/// At most 8 bytes.
[[nodiscard]] inline std::uint64_t from_little_endian(std::span<const std::byte> bytes) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

class Bytes {
 public:
  Bytes& number(std::uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xffU);
    return *this;
  }
  Bytes& put(std::string_view text) {
    text_ += text;
    return *this;
  }
  Bytes& u8(std::uint64_t value) { return number(value, 1); }
  Bytes& u16(std::uint64_t value) { return number(value, 2); }
  Bytes& u32(std::uint64_t value) { return number(value, 4); }
  Bytes& u64(std::uint64_t value) { return number(value, 8); }
  Bytes& f32(float value) { return u32(std::bit_cast<std::uint32_t>(value)); }
  [[nodiscard]] std::size_t size() const noexcept { return text_.size(); }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace swiglu::files
