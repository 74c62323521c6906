// Values of GGUF's keys, decoded when asked for; see gguf.h.
#include <algorithm>
#include <bit>
#include <limits>
#include <span>

#include <fmt/format.h>

#include "base/text.h"
#include "files/gguf.h"
#include "files/little_endian.h"

namespace swiglu::files {
namespace {

struct ValueRow {
  const char* name;
  std::uint64_t bytes;  // 0: of variable length
  bool is_signed;
};
constexpr ValueRow kValues[] = {{"u8", 1, false},     {"i8", 1, true},     {"u16", 2, false}, {"i16", 2, true},
                                {"u32", 4, false},    {"i32", 4, true},    {"f32", 4, false}, {"bool", 1, false},
                                {"string", 0, false}, {"array", 0, false}, {"u64", 8, false}, {"i64", 8, true},
                                {"f64", 8, false}};

const ValueRow& row_of(GgufValue type) noexcept { return kValues[static_cast<std::size_t>(type)]; }

bool is_integer(GgufValue type) noexcept {
  return row_of(type).bytes != 0 && type != GgufValue::f32 && type != GgufValue::f64 && type != GgufValue::boolean;
}

std::optional<std::int64_t> integer_of(GgufValue type, std::uint64_t little_endian) noexcept {
  if (!is_integer(type)) return std::nullopt;
  if (row_of(type).is_signed) {
    const auto unused = static_cast<int>(64 - 8 * row_of(type).bytes);
    return static_cast<std::int64_t>(little_endian << unused) >> unused;
  }
  if (little_endian > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return static_cast<std::int64_t>(little_endian);
}

}  // namespace

std::uint64_t size_of(GgufValue type) noexcept { return row_of(type).bytes; }

const char* name_of(GgufValue type) noexcept { return row_of(type).name; }

std::optional<std::int64_t> GgufPair::integer() const noexcept { return integer_of(type, scalar); }

std::optional<double> GgufPair::real() const noexcept {
  if (type == GgufValue::f32) return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(scalar)));
  if (type == GgufValue::f64) return std::bit_cast<double>(scalar);
  return std::nullopt;
}

std::string GgufPair::describe() const {
  if (type == GgufValue::string) return "a string";
  if (type == GgufValue::array) return fmt::format("an array of {} {}", count, name_of(element));
  if (type == GgufValue::boolean) return scalar != 0 ? "the bool true" : "the bool false";
  if (type == GgufValue::f32) return fmt::format("the f32 {}", static_cast<float>(*real()));
  if (const auto value = real()) return fmt::format("the {} {}", name_of(type), *value);
  if (const auto value = integer()) return fmt::format("the {} {}", name_of(type), *value);
  return fmt::format("the {} {}", name_of(type), scalar);
}

const GgufPair* GgufFile::find(std::string_view key) const noexcept {
  const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const GgufPair& pair) { return pair.key == key; });
  return found != pairs.end() ? &*found : nullptr;
}

std::string GgufFile::text(const GgufPair& pair, std::uint64_t most) const {
  if (pair.type != GgufValue::string || pair.count > most) {
    throw Error(ErrorCode::format,
                fmt::format("{}: key {}: expected a string of at most {} bytes, found {}", escaped(file->name()),
                            escaped(pair.key), most,
                            pair.type == GgufValue::string ? fmt::format("{}", pair.count) : pair.describe()));
  }
  std::string out(static_cast<std::size_t>(pair.count), '\0');
  file->read(pair.value_offset, std::as_writable_bytes(std::span(out)));
  return out;
}

std::vector<std::int64_t> GgufFile::integers(const GgufPair& pair, std::uint64_t most) const {
  const auto fail = [&](const std::string& found) {
    throw Error(ErrorCode::format, fmt::format("{}: key {}: expected an array of at most {} integers, found {}",
                                               escaped(file->name()), escaped(pair.key), most, found));
  };
  if (pair.type != GgufValue::array || !is_integer(pair.element) || pair.count > most) fail(pair.describe());
  const auto width = static_cast<std::size_t>(row_of(pair.element).bytes);
  std::vector<std::byte> bytes(static_cast<std::size_t>(pair.count) * width);
  file->read(pair.value_offset, bytes);
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(pair.count));
  for (std::size_t i = 0; i < pair.count; ++i) {
    const std::uint64_t raw = from_little_endian(std::span(bytes).subspan(i * width, width));
    const auto value = integer_of(pair.element, raw);
    if (!value) fail(fmt::format("{} in it", raw));
    out.push_back(*value);
  }
  return out;
}

}  // namespace swiglu::files
