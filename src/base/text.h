// Text that goes into messages.
#pragma once

#include <string>
#include <string_view>

namespace swiglu {

/// Control bytes, bytes of broken UTF-8, characters that turn the direction of text or cannot be seen, and
/// backslashes escaped (\n, \x1b), and cut after 200 characters with an ellipsis: safe to print whatever a file
/// contained.
[[nodiscard]] std::string escaped(std::string_view text);

}  // namespace swiglu
