// How results look. The JSON writer is ours because it only has to write: escaping, commas and doubles
// that round-trip are the whole of it.
#include "report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace swiglu::cli {

namespace {

bool colourful() {
  static const bool yes = isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr;
  return yes;
}

/// Characters, not bytes: UTF-8 continuation bytes take no room.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

/// How many bytes the well-formed UTF-8 character at the start of `text` has; 0 if it is not one.
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return follows(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool overlong = lead == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = lead == 0xED && byte(1) > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool outside = (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F);
    return follows(1) && follows(2) && follows(3) && !outside ? 4 : 0;
  }
  return 0;
}

/// Three digits or more: 1.23, 12.3, 123.
std::string three_digits(double x) { return fmt::format("{:.{}f}", x, x < 9.995 ? 2 : x < 99.95 ? 1 : 0); }

}  // namespace

void say(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }
void tell(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} bytes", bytes) : fmt::format("{} {}", three_digits(bytes), kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds >= 119.5) return fmt::format("{:.0f} min {:02.0f} s", std::floor(seconds / 60), std::fmod(seconds, 60));
  if (seconds >= 0.9995) return three_digits(seconds) + " s";
  if (seconds >= 0.9995e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds * 1e6) + " µs";
}

std::string format_error(double error) {
  if (error == 0) return "0";
  return std::isfinite(error) ? fmt::format("{:.1e}", error) : fmt::format("{}", error);
}

std::string format_shape(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string plural(std::int64_t n, std::string_view noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

std::string mark(bool good) {
  const char* sign = good ? "✓" : "✗";
  return colourful() ? fmt::format("\x1b[{}m{}\x1b[0m", good ? 32 : 31, sign) : sign;
}

std::string headline(std::string_view text) {
  return colourful() ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text);
}

void Table::column(std::string title, Align align) {
  align_.push_back(align);
  rows_.front().push_back(std::move(title));
}

void Table::row(std::vector<std::string> cells) {
  cells.resize(align_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text(std::size_t indent) const {
  std::vector<std::size_t> widths(align_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line(indent, ' ');
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - width_of(row[c]), ' ');
      if (c > 0) line += "  ";
      line += align_[c] == Align::left ? row[c] + padding : padding + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

void Json::new_line() {
  text_ += '\n';
  text_.append(2 * levels_.size(), ' ');
}

void Json::separate(bool own_line) {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (levels_.empty()) return;
  Level& level = levels_.back();
  if (!level.empty) text_ += own_line ? "," : ", ";
  level.empty = false;
  if (own_line) {
    level.lines = true;
    new_line();
  }
}

Json& Json::open(char bracket) {
  separate(true);
  text_ += bracket;
  levels_.push_back({bracket});
  return *this;
}

Json& Json::end() {
  const Level level = levels_.back();
  levels_.pop_back();
  if (level.lines) new_line();
  text_ += level.bracket == '{' ? '}' : ']';
  return *this;
}

Json& Json::key(std::string_view name) {
  separate(true);
  text_ += fmt::format("\"{}\": ", name);  // names are ours: nothing to escape
  after_key_ = true;
  return *this;
}

Json& Json::raw(std::string_view text) {
  separate(false);
  text_ += text;
  return *this;
}

Json& Json::value(bool truth) { return raw(truth ? "true" : "false"); }

Json& Json::value(double number) { return raw(std::isfinite(number) ? fmt::format("{}", number) : "null"); }

Json& Json::value(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const char c = text.front();
    if (length == 0) {
      quoted += "\\ufffd";  // a file name need not be UTF-8, but JSON must
    } else if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (length == 1 && (c < 0x20 || c == 0x7F)) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return raw(quoted + "\"");
}

}  // namespace swiglu::cli
