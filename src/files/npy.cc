// One .npy file in or out. Reading treats every byte as hostile: the header is a Python literal, and is
// read here by a small parser that knows the three keys and nothing else (never by evaluation); all sizes
// are compared with the file before anything is allocated. Writing produces numpy's own bytes.
#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/output.h"
#include "files/source.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = 10000;  // numpy's own limit
constexpr std::size_t kMaxRank = 32;       // likewise

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// The dict literal, left to right, without recursion. Anything numpy does not write is an error, with
// three leniencies: white space, either kind of quote, and Python 2's 4L.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Header parse() {
    Header header;
    std::array<bool, 3> seen{};
    constexpr std::array<std::string_view, 3> kKeys = {"descr", "fortran_order", "shape"};
    expect('{', "a dict");
    while (!accept('}')) {
      const std::string key = string("a key");
      const auto index = static_cast<std::size_t>(std::find(kKeys.begin(), kKeys.end(), key) - kKeys.begin());
      if (index == kKeys.size()) fail(fmt::format("unknown key '{}'", escaped(key)));
      if (std::exchange(seen[index], true)) fail(fmt::format("the key '{}' occurs twice", key));
      expect(':', "':'");
      if (index == 0) header.descr = descr();
      if (index == 1) header.fortran_order = truth();
      if (index == 2) header.shape = shape();
      if (!accept(',') && peek() != '}') unexpected("',' or '}'");
    }
    if (peek() != '\0' || at_ < text_.size()) unexpected("the end of the header");
    for (std::size_t i = 0; i < kKeys.size(); ++i) {
      if (!seen[i]) fail(fmt::format("the key '{}' is missing", kKeys[i]));
    }
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::format, fmt::format("{}: bad .npy header: {}", where_, what));
  }
  [[noreturn]] void unexpected(const char* expected) const {
    fail(fmt::format("expected {} at byte {}, found {}", expected, at_,
                     at_ < text_.size() ? fmt::format("'{}'", escaped(text_.substr(at_, 20))) : "the end"));
  }

  // The next byte that is not white space; NUL at the end (a NUL inside stops the parser as well).
  char peek() {
    while (at_ < text_.size() && std::string_view(" \t\r\n\f").find(text_[at_]) != std::string_view::npos) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* what) {
    if (!accept(c)) unexpected(what);
  }

  std::string string(const char* what) {
    const char quote = peek();
    if (quote != '\'' && quote != '"') unexpected(what);
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail(fmt::format("the string at byte {} has no end", at_));
    std::string out(text_.substr(at_ + 1, end - at_ - 1));
    if (out.find('\\') != std::string::npos) unexpected("a string without escapes");
    at_ = end + 1;
    return out;
  }

  std::string descr() {
    if (peek() == '[' || peek() == '(') {
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: holds records of several fields; expected f2, f4, f8 or bf16 (as V2)", where_));
    }
    return string("a type such as '<f4'");
  }

  bool truth() {
    peek();
    for (const std::string_view word : {std::string_view("True"), std::string_view("False")}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    unexpected("True or False");
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> dims;
    bool comma = true;  // after the last number: (5) is a number in parentheses, (5,) a tuple
    expect('(', "a tuple of sizes");
    while (!accept(')')) {
      if (!comma) unexpected("',' or ')'");
      if (dims.size() == kMaxRank) fail(fmt::format("more than {} dimensions", kMaxRank));
      dims.push_back(size());
      comma = accept(',');
    }
    if (dims.size() == 1 && !comma) fail("the shape is a number, expected a tuple");
    return dims;
  }

  std::int64_t size() {
    const auto digit = [&] { return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; };
    peek();
    const std::size_t start = at_;
    std::int64_t value = 0;
    while (digit()) {
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text_[at_] - '0', &value)) {
        fail(fmt::format("the size '{}' does not fit 64 bits", escaped(text_.substr(start, 40))));
      }
      ++at_;
    }
    const std::size_t digits = at_ - start;
    if (digits == 0 || (digits > 1 && text_[start] == '0')) {
      at_ = start;
      unexpected("a size (a plain decimal number)");
    }
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;
    return value;
  }

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
};

struct Element {
  DType dtype;
  bool big_endian;
};

std::string_view kind_of(char letter) {
  constexpr std::array<std::pair<char, std::string_view>, 10> kKinds = {{{'b', "truth values"},
                                                                         {'i', "signed integers"},
                                                                         {'u', "unsigned integers"},
                                                                         {'f', "floats of another width"},
                                                                         {'c', "complex numbers"},
                                                                         {'S', "byte strings"},
                                                                         {'U', "text"},
                                                                         {'M', "dates"},
                                                                         {'m', "time spans"},
                                                                         {'V', "raw bytes"}}};
  const auto* found =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& kind) { return kind.first == letter; });
  return found == kKinds.end() ? "elements of an unknown kind" : found->second;
}

Element element_of(const std::string& descr, bool u2_is_bf16, const std::string& where) {
  const std::string shown = escaped(descr);
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    throw Error(code, fmt::format("{}: {}; expected f2, f4, f8 or bf16 (as V2)", where, what));
  };
  const char order = descr.empty() ? '\0' : descr[0];
  const std::string type = descr.empty() ? "" : descr.substr(1);
  if (order == '<' || order == '>') {
    if (type == "f4") return {DType::f32, order == '>'};
    if (type == "f2") return {DType::f16, order == '>'};
    if (type == "f8") return {DType::f64, order == '>'};
  }
  if ((order == '<' || order == '|') && type == "V2") return {DType::bf16, false};
  if ((order == '<' || order == '>' || order == '|') && type == "u2") {
    if (u2_is_bf16) return {DType::bf16, order == '>'};
    refuse(ErrorCode::unsupported,
           fmt::format("holds 16-bit integers ('{}'), read as bf16 bit patterns only when that is asked for", shown));
  }
  if (descr.starts_with("O") || type.starts_with("O")) {
    refuse(ErrorCode::unsupported, fmt::format("holds pickled Python objects ('{}'), which are never loaded", shown));
  }
  if (descr == "bfloat16" || type == "g2" || type == "E2") {
    refuse(ErrorCode::unsupported, fmt::format("holds another package's bfloat16 ('{}')", shown));
  }
  if (type == "f1" || type == "V1") {
    refuse(ErrorCode::unsupported, fmt::format("holds 8-bit floats or bytes ('{}')", shown));
  }
  const bool ordered = order == '<' || order == '>' || order == '|' || order == '=';
  const std::string bare = ordered ? type : descr;
  if (bare == "f2" || bare == "f4" || bare == "f8" || bare == "V2" || bare == "u2") {
    refuse(ErrorCode::unsupported, fmt::format("the type '{}' does not tell the byte order ('<' or '>')", shown));
  }
  const std::size_t end = bare.find_first_not_of("0123456789", 1);
  const bool unit = end != std::string::npos && bare[end] == '[';  // <M8[ns]
  if (bare.size() > 1 && std::isalpha(static_cast<unsigned char>(bare[0])) != 0 && (end == std::string::npos || unit) &&
      end != 1) {
    refuse(ErrorCode::unsupported, fmt::format("holds {} ('{}')", kind_of(bare[0]), shown));
  }
  refuse(ErrorCode::format, fmt::format("'{}' is not an element type", shown));
  return {};
}

// Elements from Fortran order (first index fastest) to C order, in place of `bytes`.
void transpose(std::vector<std::byte>& bytes, const std::vector<std::int64_t>& shape, std::size_t item) {
  const std::size_t rank = shape.size();
  std::vector<std::size_t> strides(rank);  // of the source, in bytes
  std::size_t stride = item;
  for (std::size_t d = 0; d < rank; ++d) {
    strides[d] = stride;
    stride *= static_cast<std::size_t>(shape[d]);
  }
  std::vector<std::byte> out(bytes.size());
  std::vector<std::int64_t> index(rank, 0);
  std::size_t from = 0;
  for (std::size_t to = 0; to < out.size(); to += item) {
    std::memcpy(out.data() + to, bytes.data() + from, item);
    for (std::size_t d = rank; d-- > 0;) {  // the next index in C order
      from += strides[d];
      if (++index[d] < shape[d]) break;
      from -= strides[d] * static_cast<std::size_t>(shape[d]);
      index[d] = 0;
    }
  }
  bytes.swap(out);
}

// Bytes of an array, or nothing when they do not fit; a zero elsewhere does not excuse a product that overflows.
std::optional<std::uint64_t> array_bytes(std::span<const std::int64_t> shape, std::int64_t item) {
  auto bytes = static_cast<std::uint64_t>(item);
  bool empty = false;
  for (const std::int64_t dim : shape) {
    if (dim == 0)
      empty = true;
    else if (!files::checked_mul(bytes, static_cast<std::uint64_t>(dim), bytes))
      return std::nullopt;
  }
  if (bytes > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return empty ? 0 : bytes;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

// Reads and checks the header; returns it and where the data begins.
std::pair<Header, std::uint64_t> read_header(const files::File& file, const std::string& where) {
  const auto broken = [&](const std::string& what) -> Error { return {ErrorCode::format, where + ": " + what}; };
  std::array<std::byte, 12> start{};
  file.read(0, std::span(start).first(static_cast<std::size_t>(std::min<std::uint64_t>(start.size(), file.size()))));
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0) {
    const std::string contents = files::describe_contents(file);
    const char* hint =
        contents == "a zip archive" ? " (a .npz holds several arrays: save the one you want as .npy)" : "";
    throw broken(fmt::format("not a .npy array{}{}{}", contents.empty() ? "" : ": it is ", contents, hint));
  }
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(start[i]); };
  if (file.size() < 10) throw broken("truncated: the file ends within the first 10 bytes");
  const std::uint32_t major = byte(6);
  if (major < 1 || major > 3 || byte(7) != 0) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: .npy version {}.{}; expected 1.0, 2.0 or 3.0", where, major, byte(7)));
  }
  const std::uint64_t begin = major == 1 ? 10 : 12;
  if (file.size() < begin) throw broken("truncated: the file ends within the first 12 bytes");
  const std::uint32_t length = byte(8) | byte(9) << 8 | (major == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > file.size() - begin) {
    throw broken(fmt::format("truncated: expected a header of {} bytes, found {}", length, file.size() - begin));
  }
  if (length > kMaxHeader) {
    throw broken(fmt::format("a header of {} bytes; expected at most {}", length, kMaxHeader));
  }
  std::string text(length, '\0');
  file.read(begin, std::as_writable_bytes(std::span(text)));
  return {HeaderParser(text, where).parse(), begin + length};
}

const char* descr_of(DType dtype) {
  constexpr const char* kDescrs[] = {"<f4", "<V2", "<f2", "<f8"};  // '<V2' is numpy's name for ml_dtypes.bfloat16
  return kDescrs[static_cast<int>(dtype)];
}

}  // namespace

Array read_npy(const std::filesystem::path& path, bool u2_is_bf16) {
  const files::File file(path);
  const std::string where = escaped(file.name());
  auto [header, data] = read_header(file, where);
  const Element element = element_of(header.descr, u2_is_bf16, where);
  const auto item = static_cast<std::size_t>(size_of(element.dtype));
  const auto bytes = array_bytes(header.shape, size_of(element.dtype));
  if (!bytes) {
    throw Error(ErrorCode::format, fmt::format("{}: the shape {} is too large", where, shape_text(header.shape)));
  }
  const std::uint64_t found = file.size() - data;
  if (found != *bytes) {
    throw Error(ErrorCode::format,
                fmt::format("{}: {}: the shape {} of '{}' needs {} bytes of data, found {}", where,
                            found < *bytes ? "truncated" : "bytes after the array (more than one array in the file?)",
                            shape_text(header.shape), escaped(header.descr), *bytes, found));
  }
  Array array{.dtype = element.dtype, .shape = std::move(header.shape), .bytes = {}};
  try {
    array.bytes.resize(static_cast<std::size_t>(*bytes));
    file.read(data, array.bytes);
    if (element.big_endian) {
      for (auto at = array.bytes.begin(); at != array.bytes.end(); at += static_cast<std::ptrdiff_t>(item)) {
        std::reverse(at, at + static_cast<std::ptrdiff_t>(item));
      }
    }
    if (header.fortran_order && array.shape.size() > 1) transpose(array.bytes, array.shape, item);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::no_memory, fmt::format("{}: cannot allocate {} bytes", where, *bytes));
  }
  return array;
}

void write_npy(const std::filesystem::path& path, DType dtype, std::span<const std::int64_t> shape,
               std::span<const std::byte> bytes) {
  const std::string where = escaped(path.string());
  const bool sane = shape.size() <= kMaxRank && std::none_of(shape.begin(), shape.end(), [](auto d) { return d < 0; });
  const auto expected = sane ? array_bytes(shape, size_of(dtype)) : std::nullopt;
  if (!expected || *expected != bytes.size()) {
    throw Error(ErrorCode::usage, fmt::format("{}: {} bytes do not make an array of shape {} and type {}", where,
                                              bytes.size(), shape_text(shape), name_of(dtype)));
  }
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr_of(dtype), shape_text(shape));
  // numpy leaves blanks so that the first axis can grow in place, then pads to 64, by 64 if already there.
  if (!shape.empty()) header.append(21 - fmt::format("{}", shape[0]).size(), ' ');
  header.append(64 - (10 + header.size() + 1) % 64, ' ');
  header += '\n';
  files::OutputFile file(path);
  const auto length = static_cast<unsigned>(header.size());
  const std::array<char, 4> rest = {1, 0, static_cast<char>(length & 0xffU), static_cast<char>(length >> 8)};
  file.write(kMagic);
  file.write(std::string_view(rest.data(), rest.size()));
  file.write(header);
  file.write(bytes);
  file.commit();
}

}  // namespace swiglu
