// Safetensors files made in memory, right ones and wrong ones, and the check that an Error says what a
// user needs. Knows the format only, so that a test can break any rule of it on purpose.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "swiglu/swiglu.hpp"

namespace swiglu::testing {

/// Header length, header, data: nothing is checked.
inline std::string container(std::string_view header, std::string_view data = "") {
  std::string out;
  for (std::size_t i = 0; i < 8; ++i) out += static_cast<char>(header.size() >> (8 * i) & 0xff);
  out += header;
  out += data;
  return out;
}

inline std::string little_endian(std::uint64_t value) {
  std::string out;
  for (std::size_t i = 0; i < 8; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

/// A valid file of the tensors that were added.
class SafetensorsBuilder {
 public:
  SafetensorsBuilder& add(std::string_view name, std::string_view dtype, const std::vector<std::int64_t>& shape,
                          std::string_view bytes) {
    header_ +=
        fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", header_.empty() ? "" : ",",
                    name, dtype, fmt::join(shape, ","), data_.size(), data_.size() + bytes.size());
    data_ += bytes;
    return *this;
  }
  /// Elements that differ from each other; `bytes_each` is the size of the type.
  SafetensorsBuilder& add(std::string_view name, std::string_view dtype, const std::vector<std::int64_t>& shape,
                          std::int64_t bytes_each) {
    std::int64_t count = bytes_each;
    for (const auto extent : shape) count *= extent;
    std::string bytes;
    for (std::int64_t i = 0; i < count; ++i) bytes += static_cast<char>((i * 7 + std::ssize(header_)) & 0x3f);
    return add(name, dtype, shape, bytes);
  }
  /// gate, up, down and norm of layer `n` with Hugging Face names, in F32.
  SafetensorsBuilder& add_layer(std::int64_t n, std::int64_t dim, std::int64_t hidden,
                                std::string_view prefix = "model.") {
    add(fmt::format("{}layers.{}.mlp.gate_proj.weight", prefix, n), "F32", {hidden, dim}, 4);
    add(fmt::format("{}layers.{}.mlp.up_proj.weight", prefix, n), "F32", {hidden, dim}, 4);
    add(fmt::format("{}layers.{}.mlp.down_proj.weight", prefix, n), "F32", {dim, hidden}, 4);
    return add(fmt::format("{}layers.{}.post_attention_layernorm.weight", prefix, n), "F32", {dim}, 4);
  }
  [[nodiscard]] std::string bytes() const { return container("{" + header_ + "}", data_); }

 private:
  std::string header_;
  std::string data_;
};

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}

/// Changes one byte in place: much cheaper than writing the file anew.
inline void change_byte(const std::filesystem::path& path, std::size_t at, char value) {
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(at));
  out.put(value);
  ASSERT_TRUE(out.good()) << path;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// `action` throws Error with this code and all of these parts in its text, which is safe to print.
template <class Action>
void expect_error(ErrorCode code, std::initializer_list<std::string_view> parts, const Action& action) {
  try {
    action();
    ADD_FAILURE() << "nothing was refused; expected an error with " << fmt::format("{}", fmt::join(parts, ", "));
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.text();
    for (const auto part : parts) {
      EXPECT_NE(error.text().find(part), std::string::npos) << "\"" << part << "\" is not in: " << error.text();
    }
    for (const char c : error.text()) EXPECT_FALSE(static_cast<unsigned char>(c) < 0x20 || c == 0x7f) << error.text();
    EXPECT_LT(error.text().size(), 2000U);
  }
}

}  // namespace swiglu::testing
