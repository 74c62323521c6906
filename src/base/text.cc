// See text.h.
#include "base/text.h"

#include <cstddef>

#include <fmt/format.h>

namespace swiglu {
namespace {

// Length of the well-formed, printable UTF-8 sequence at `i`, or 0.
std::size_t printable_length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned lead = byte(i);
  if (lead >= 0x20 && lead < 0x7f) return 1;
  const std::size_t length = lead >= 0xf0 && lead <= 0xf4 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
  if (lead > 0xf4 || length == 0 || i + length > text.size()) return 0;
  unsigned code = lead & (0xffU >> (length + 1));
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xc0U) != 0x80U) return 0;
    code = code << 6 | (byte(i + k) & 0x3fU);
  }
  constexpr unsigned kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  const bool control = code < 0xa0 || (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e);
  return code < kSmallest[length] || code > 0x10ffff || surrogate || control ? 0 : length;
}

}  // namespace

std::string escaped(std::string_view text) {
  constexpr std::size_t kLimit = 200;
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (out.size() >= kLimit) return out + "…";
    const std::size_t length = printable_length(text, i);
    if (length == 0) {
      const auto value = static_cast<unsigned char>(text[i]);
      out += value == '\n' ? "\\n" : value == '\t' ? "\\t" : value == '\r' ? "\\r" : fmt::format("\\x{:02x}", value);
      ++i;
    } else {
      if (text[i] == '\\') out += '\\';
      out += text.substr(i, length);
      i += length;
    }
  }
  return out;
}

}  // namespace swiglu
