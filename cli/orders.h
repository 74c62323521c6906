// What rank 0 tells the others, as bytes and back. Both ends are the same version of the same program.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "swiglu/tensors.hpp"

namespace swiglu::cli {

class OrderWriter {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  OrderWriter& put(const T& value) {
    return put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  OrderWriter& put_text(std::string_view text) {
    put(text.size());
    return put_bytes(std::as_bytes(std::span(text)));
  }
  OrderWriter& put_bytes(std::span<const std::byte> bytes) {
    if (bytes.empty()) return *this;
    const std::size_t before = bytes_.size();
    bytes_.resize(before + bytes.size());
    std::memcpy(bytes_.data() + before, bytes.data(), bytes.size());
    return *this;
  }
  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class OrderReader {
 public:
  explicit OrderReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] T get() {
    T value;
    const auto from = get_bytes(sizeof value);
    std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  [[nodiscard]] std::string get_text() {
    const auto from = get_bytes(get<std::size_t>());
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  [[nodiscard]] std::span<const std::byte> get_bytes(std::size_t count) {
    if (count > bytes_.size()) throw Error(ErrorCode::internal, "an order from rank 0 is too short");
    const auto found = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return found;
  }
  [[nodiscard]] std::span<const std::byte> rest() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace swiglu::cli
