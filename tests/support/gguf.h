// GGUF files made in memory, right ones and wrong ones. Knows the format only, so that a test can break any rule of it
// on purpose.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace swiglu::testing {

inline std::string le(std::uint64_t value, std::size_t bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}
inline std::string gguf_string(std::string_view text) { return le(text.size(), 8) + std::string(text); }

/// Key, value type and the value's bytes.
inline std::string gguf_pair(std::string_view key, std::uint32_t type, std::string_view value) {
  return gguf_string(key) + le(type, 4) + std::string(value);
}
inline std::string gguf_u16(std::string_view key, std::uint16_t value) { return gguf_pair(key, 2, le(value, 2)); }
inline std::string gguf_u32(std::string_view key, std::uint32_t value) { return gguf_pair(key, 4, le(value, 4)); }
inline std::string gguf_i32(std::string_view key, std::int32_t value) {
  return gguf_pair(key, 5, le(static_cast<std::uint32_t>(value), 4));
}
inline std::string gguf_f32(std::string_view key, float value) {
  return gguf_pair(key, 6, le(std::bit_cast<std::uint32_t>(value), 4));
}
inline std::string gguf_text(std::string_view key, std::string_view value) {
  return gguf_pair(key, 8, gguf_string(value));
}
inline std::string gguf_array(std::string_view key, std::uint32_t element, std::uint64_t count,
                              std::string_view elements) {
  return gguf_pair(key, 9, le(element, 4) + le(count, 8) + std::string(elements));
}

/// Name, dimensions (fastest first), type and offset.
inline std::string gguf_info(std::string_view name, const std::vector<std::uint64_t>& dimensions, std::uint32_t type,
                             std::uint64_t offset) {
  std::string out = gguf_string(name) + le(dimensions.size(), 4);
  for (const auto extent : dimensions) out += le(extent, 8);
  return out + le(type, 4) + le(offset, 8);
}

/// Header, pairs and infos as they are given, padding and data.
struct GgufParts {
  std::uint32_t version = 3;
  std::vector<std::string> pairs;
  std::vector<std::string> infos;
  std::string data;
  std::size_t alignment = 32;

  [[nodiscard]] std::string bytes() const {
    std::string out = "GGUF" + le(version, 4) + le(infos.size(), 8) + le(pairs.size(), 8);
    for (const auto& pair : pairs) out += pair;
    for (const auto& info : infos) out += info;
    if (!infos.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data;
  }
  GgufParts& add_pair(std::string pair) {
    pairs.push_back(std::move(pair));
    return *this;
  }
  /// A tensor whose data follow those before it.
  GgufParts& add(std::string_view name, const std::vector<std::uint64_t>& dimensions, std::uint32_t type,
                 std::string_view tensor_data) {
    data.resize((data.size() + alignment - 1) / alignment * alignment, '\0');
    infos.push_back(gguf_info(name, dimensions, type, data.size()));
    data += tensor_data;
    return *this;
  }
  /// Elements of F32 that differ from each other.
  GgufParts& add_f32(std::string_view name, const std::vector<std::uint64_t>& dimensions) {
    std::uint64_t count = 1;
    for (const auto extent : dimensions) count *= extent;
    std::string bytes_of;
    for (std::uint64_t i = 0; i < count; ++i) {
      bytes_of += le(std::bit_cast<std::uint32_t>(static_cast<float>(i % 251) + static_cast<float>(infos.size())), 4);
    }
    return add(name, dimensions, 0, bytes_of);
  }
};

}  // namespace swiglu::testing
