// How results look: aligned tables, numbers with their units, one JSON document.
// Knows nothing of what it shows. Text that came from files goes through printable() first.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace swiglu::cli {

/// Writes to stdout, to stderr. A failure is kept by the stream, and main() looks.
void say(std::string_view text);
void tell(std::string_view text);

/// Control bytes as \xNN, so that a name cannot move the cursor or break a line.
[[nodiscard]] std::string printable(std::string_view text);

// Numbers for people: three or four digits and a unit.
[[nodiscard]] std::string format_bytes(double bytes);                         ///< "352.3 MB" (powers of 1000)
[[nodiscard]] std::string format_seconds(double seconds);                     ///< "1.23 ms"
[[nodiscard]] std::string format_error(double error);                         ///< "2.4e-07"
[[nodiscard]] std::string format_shape(std::span<const std::int64_t> shape);  ///< "[4, 64]"
[[nodiscard]] std::string plural(std::int64_t n, std::string_view noun);      ///< "1 layer", "2 layers"

/// ✓ or ✗, in colour on a terminal unless NO_COLOR is set.
[[nodiscard]] std::string mark(bool good);
/// Bold on a terminal.
[[nodiscard]] std::string headline(std::string_view text);

/// Columns padded to their widest cell; two blanks between them. Cells are single lines of UTF-8.
class Table {
 public:
  enum class Align : std::uint8_t { left, right };
  void column(std::string title, Align align = Align::right);
  void row(std::vector<std::string> cells);
  [[nodiscard]] std::string text(std::size_t indent = 2) const;

 private:
  std::vector<Align> align_;
  std::vector<std::vector<std::string>> rows_{1};  ///< the titles first
};

/// Builds one JSON document, value by value. Doubles are written so that they read back equal; NaN and
/// infinities become null. Arrays stand on one line unless they hold objects.
class Json {
 public:
  Json& object() { return open('{'); }
  Json& array() { return open('['); }
  Json& end();
  Json& key(std::string_view name);
  Json& value(std::string_view text);
  Json& value(const char* text) { return value(std::string_view(text)); }
  Json& value(bool truth);
  Json& value(double number);
  Json& value(std::integral auto number) { return raw(std::to_string(number)); }
  Json& null() { return raw("null"); }
  template <class T>
  Json& field(std::string_view name, const T& content) {
    return key(name).value(content);
  }
  template <class T>
  Json& list(std::string_view name, const std::vector<T>& contents) {
    key(name).array();
    for (const T& item : contents) value(item);
    return end();
  }
  /// The whole document with a final newline; every object and array must be closed.
  [[nodiscard]] std::string text() const { return text_ + "\n"; }

 private:
  struct Level {
    char bracket;
    bool empty = true;
    bool lines = false;  ///< its items stand on lines of their own
  };
  Json& open(char bracket);
  Json& raw(std::string_view text);
  void separate(bool own_line);
  void new_line();

  std::string text_;
  std::vector<Level> levels_;
  bool after_key_ = false;
};

}  // namespace swiglu::cli
