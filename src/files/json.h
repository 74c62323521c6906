// JSON as untrusted text: a small tree that keeps what matters for safety. Duplicate keys, bad UTF-8,
// anything after the value, nesting beyond the limit, more than a million values and numbers
// beyond a double are errors (format).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/source.h"

namespace swiglu::files {

/// A container that takes one pointer while it is empty, which it is in most values of a tree: they are numbers.
template <class T>
class Boxed {
 public:
  Boxed() = default;
  Boxed(const Boxed& other) : box_(other.box_ ? std::make_unique<T>(*other.box_) : nullptr) {}
  Boxed(Boxed&&) noexcept = default;
  Boxed& operator=(const Boxed& other) { return *this = Boxed(other); }
  Boxed& operator=(Boxed&&) noexcept = default;
  ~Boxed() = default;

  [[nodiscard]] const T& operator*() const noexcept {
    static const T empty;
    return box_ ? *box_ : empty;
  }
  [[nodiscard]] const T* operator->() const noexcept { return &**this; }
  [[nodiscard]] T& edit() {
    if (!box_) box_ = std::make_unique<T>();
    return *box_;
  }

 private:
  std::unique_ptr<T> box_;
};

struct Json {
  Json();  // defined where the type is complete: a vector of pairs of it may not be destroyed before
  ~Json();
  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;

  enum class Kind : std::uint8_t { null, boolean, integer, real, string, array, object };
  Kind kind = Kind::null;
  bool boolean = false;
  bool negative = false;        ///< of an integer: its value is -magnitude
  std::uint64_t magnitude = 0;  ///< of an integer: a JSON number without point or exponent
  double real = 0;              ///< of a number of either kind, correctly rounded
  Boxed<std::string> string;
  Boxed<std::vector<Json>> array;
  Boxed<std::vector<std::pair<std::string, Json>>> object;  ///< in file order, keys unescaped and unique

  /// The member called `key`, or null.
  [[nodiscard]] const Json* find(std::string_view key) const noexcept;
  /// "the number 3", "a string", … for "expected …, found …".
  [[nodiscard]] std::string describe() const;
};

struct JsonRules {
  int max_depth = 64;             ///< also bounds the recursion that destroys a tree: keep it small
  bool leading_space = true;      ///< white space before the value
  bool python_constants = false;  ///< NaN, Infinity, -Infinity, as Python writes them
};

/// `where` begins error texts: the file, escaped.
[[nodiscard]] Json parse_json(std::string_view text, const JsonRules& rules, const std::string& where);

/// `text`, which is UTF-8, between quotes as a JSON string.
[[nodiscard]] std::string json_string(std::string_view text);

/// A whole file as JSON; refused (format) if it is larger than `max_bytes`, before anything is allocated.
[[nodiscard]] Json read_json(const File& file, const JsonRules& rules, std::uint64_t max_bytes);

}  // namespace swiglu::files
