// See text.h.
#include "base/text.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace swiglu {
namespace {

// What a terminal obeys or does not show: control characters, and the format characters that turn the direction of
// text, join letters or take no room. With them a name can look like another one.
bool invisible(unsigned code) {
  constexpr unsigned kRanges[][2] = {{0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},      {0x34f, 0x34f},
                                     {0x61c, 0x61c},     {0x115f, 0x1160},   {0x17b4, 0x17b5},  {0x180b, 0x180f},
                                     {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},  {0x3164, 0x3164},
                                     {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},  {0xfff0, 0xfffb},
                                     {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [&](const auto& range) { return code >= range[0] && code <= range[1]; });
}

}  // namespace

Utf8 utf8_at(std::string_view text, std::size_t i) noexcept {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned lead = byte(i);
  if (lead < 0x80) return {lead, 1};
  const std::size_t length = lead >= 0xf0 && lead <= 0xf4 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc2 ? 2 : 0;
  if (lead > 0xf4 || length == 0 || length > text.size() - i) return {};
  unsigned code = lead & (0xffU >> (length + 1));
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xc0U) != 0x80U) return {};
    code = code << 6 | (byte(i + k) & 0x3fU);
  }
  constexpr unsigned kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kSmallest[length] || code > 0x10ffff || surrogate) return {};
  return {code, length};
}

std::string escaped(std::string_view text) {
  constexpr std::size_t kLimit = 200;
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (out.size() >= kLimit) return out + "…";
    const auto [code, length] = utf8_at(text, i);
    if (length == 0 || invisible(code)) {
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
