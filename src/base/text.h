// Text that goes into messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace swiglu {

/// Control bytes, bytes of broken UTF-8, characters that turn the direction of text or cannot be seen, and
/// backslashes escaped (\n, \x1b), and cut after 200 characters with an ellipsis: safe to print whatever a file
/// contained.
[[nodiscard]] std::string escaped(std::string_view text);

/// A character of well-formed UTF-8 and the bytes it takes; of what is not well-formed, no bytes.
struct Utf8 {
  unsigned code = 0;
  std::size_t length = 0;
};
/// The character that begins at byte `i` of `text`, which has one.
[[nodiscard]] Utf8 utf8_at(std::string_view text, std::size_t i) noexcept;

}  // namespace swiglu
