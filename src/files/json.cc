// JSON text to the tree of json.h, over nlohmann-json's event interface: its parser keeps its own
// stack on the heap, so hostile nesting cannot overflow ours, and its events come before any tree
// exists, so limits act early. What its lexer would let pass (a byte order mark, a NUL as the end of
// the text, integers turned into doubles) is checked here. Knows no file format.
#include "files/json.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::files {
Json::Json() = default;
Json::~Json() = default;
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
namespace {

// While it grows, a tree takes up to 100 bytes a value; a checkpoint of 100,000 tensors has fewer values than this.
constexpr std::size_t kMaxValues = 1'000'000;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_delimiter(char c) {
  return is_space(c) || c == ',' || c == ':' || c == '[' || c == ']' || c == '{' || c == '}' || c == '"';
}

// Python's constants become numbers of equal length, so that byte positions in messages stay true;
// `special` remembers which of the text's numbers they are.
struct PythonConstants {
  std::string text;
  std::vector<std::pair<std::size_t, double>> special;  // (ordinal of the number, its value)
};

PythonConstants replace_python_constants(std::string_view text) {
  PythonConstants out{std::string(text), {}};
  std::size_t numbers = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
      ++i;
      continue;
    }
    if (is_delimiter(text[i])) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && !is_delimiter(text[end])) ++end;
    const std::string_view token = text.substr(i, end - i);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const std::optional<double> value = token == "NaN"         ? std::optional(std::numeric_limits<double>::quiet_NaN())
                                        : token == "Infinity"  ? std::optional(kInfinity)
                                        : token == "-Infinity" ? std::optional(-kInfinity)
                                                               : std::nullopt;
    if (value) {
      out.special.emplace_back(numbers, *value);
      out.text.replace(i, token.size(), "0." + std::string(token.size() - 2, '0'));
    }
    if (value || token[0] == '-' || (token[0] >= '0' && token[0] <= '9')) ++numbers;
    i = end;
  }
  return out;
}

class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(const JsonRules& rules, const std::string& where, std::vector<std::pair<std::size_t, double>> special)
      : rules_(rules), where_(where), special_(std::move(special)) {}

  [[nodiscard]] Json take() { return std::move(root_); }

  bool null() override {
    add(Json::Kind::null);
    return true;
  }
  bool boolean(bool value) override {
    add(Json::Kind::boolean).boolean = value;
    return true;
  }
  bool number_integer(number_integer_t value) override {  // called for negative integers only
    ++numbers_;
    Json& json = add(Json::Kind::integer);
    json.negative = value < 0;
    json.magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
    json.real = static_cast<double>(value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    ++numbers_;
    Json& json = add(Json::Kind::integer);
    json.magnitude = value;
    json.real = static_cast<double>(value);
    return true;
  }
  bool number_float(number_float_t value, const string_t& spelling) override {
    Json& json = add(Json::Kind::real);
    json.real = value;
    if (next_special_ < special_.size() && special_[next_special_].first == numbers_) {
      json.real = special_[next_special_++].second;
    } else if (spelling.starts_with('-')) {  // -2^63 - 1 … -(2^64 - 1) arrive here too
      std::uint64_t magnitude = 0;
      const char* end = spelling.data() + spelling.size();
      const auto [rest, error] = std::from_chars(spelling.data() + 1, end, magnitude);
      if (error == std::errc() && rest == end) {
        json.kind = Json::Kind::integer;
        json.negative = true;
        json.magnitude = magnitude;
      }
    }
    ++numbers_;
    return true;
  }
  bool string(string_t& value) override {
    add(Json::Kind::string).string.edit() = std::move(value);
    return true;
  }
  bool binary(binary_t& /*value*/) override { return false; }  // no such thing in text

  bool start_object(std::size_t /*elements*/) override { return open(Json::Kind::object); }
  bool start_array(std::size_t /*elements*/) override { return open(Json::Kind::array); }
  bool key(string_t& value) override {
    open_.back()->object.edit().emplace_back(std::move(value), Json{});
    return true;
  }
  bool end_object() override {
    refuse_duplicates(*open_.back()->object);
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*last*/, const nlohmann::detail::exception& ex) override {
    // what() is "[json.exception.parse_error.101] parse error at line 1, column 2: <reason>".
    std::string_view reason = ex.what();
    if (const auto start = reason.find("] "); start != std::string_view::npos) reason.remove_prefix(start + 2);
    if (reason.starts_with("parse error at")) {
      const auto start = reason.find(": ");
      if (start != std::string_view::npos) reason.remove_prefix(start + 2);
    }
    throw Error(ErrorCode::format, fmt::format("{}: bad JSON at byte {}: {}", where_, position, escaped(reason)));
  }

 private:
  // Children are completed before their parent grows again, so the pointers in open_ stay valid.
  Json& add(Json::Kind kind) {
    if (++values_ > kMaxValues) {
      throw Error(ErrorCode::format, fmt::format("{}: JSON with more than {} values", where_, kMaxValues));
    }
    Json* place = &root_;
    if (!open_.empty() && open_.back()->kind == Json::Kind::array) {
      place = &open_.back()->array.edit().emplace_back();
    } else if (!open_.empty()) {
      place = &open_.back()->object.edit().back().second;
    }
    place->kind = kind;
    return *place;
  }

  bool open(Json::Kind kind) {
    if (open_.size() >= static_cast<std::size_t>(std::max(rules_.max_depth, 0))) {
      throw Error(ErrorCode::format, fmt::format("{}: JSON nested deeper than {} levels", where_, rules_.max_depth));
    }
    open_.push_back(&add(kind));
    return true;
  }

  void refuse_duplicates(const std::vector<std::pair<std::string, Json>>& members) const {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const auto& member : members) keys.emplace_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return;
    throw Error(ErrorCode::format, fmt::format("{}: the key \"{}\" occurs twice", where_, escaped(*twice)));
  }

  const JsonRules& rules_;
  const std::string& where_;
  std::vector<std::pair<std::size_t, double>> special_;
  std::size_t next_special_ = 0;
  std::size_t numbers_ = 0;
  std::size_t values_ = 0;
  Json root_;
  std::vector<Json*> open_;
};

}  // namespace

const Json* Json::find(std::string_view key) const noexcept {
  for (const auto& member : *object) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

std::string Json::describe() const {
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return boolean ? "true" : "false";
    case Kind::integer:
      return fmt::format("the number {}{}", negative ? "-" : "", magnitude);
    case Kind::real: {
      std::string text = fmt::format("{}", real);
      if (text.find_first_of(".en") == std::string::npos) text += ".0";  // 4.0 is not the integer 4
      return "the number " + text;
    }
    case Kind::string:
      return fmt::format("the string \"{}\"", escaped(*string));
    case Kind::array:
      return fmt::format("an array of {}", array->size());
    case Kind::object:
      return "an object";
  }
  return "nothing";
}

Json parse_json(std::string_view text, const JsonRules& rules, const std::string& where) {
  const auto fail = [&](const std::string& reason) { throw Error(ErrorCode::format, where + ": " + reason); };
  if (text.starts_with("\xef\xbb\xbf")) fail("bad JSON: it starts with a byte order mark");
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    fail(fmt::format("bad JSON: NUL at byte {}", nul));
  }
  if (!rules.leading_space && !text.empty() && is_space(text.front())) fail("bad JSON: white space before the value");
  PythonConstants constants;
  if (rules.python_constants) {
    constants = replace_python_constants(text);
    text = constants.text;
  }
  TreeBuilder builder(rules, where, std::move(constants.special));
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) fail("bad JSON");
  return builder.take();
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

Json read_json(const File& file, const JsonRules& rules, std::uint64_t max_bytes) {
  const std::string where = escaped(file.name());
  if (file.size() > max_bytes) {
    throw Error(ErrorCode::format,
                fmt::format("{}: expected JSON of at most {} bytes, found {}", where, max_bytes, file.size()));
  }
  if (const std::string kind = describe_contents(file); !kind.empty()) {
    throw Error(ErrorCode::format, fmt::format("{}: expected JSON, found {}", where, kind));
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return parse_json(text, rules, where);
}

}  // namespace swiglu::files
