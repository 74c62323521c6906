// See gguf.h. The header is walked through a small window; values that nobody asked for are stepped over. Tensors may
// lie in any order and leave holes, but each is inside the file and none overlaps another.
#include "files/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/blocks.h"
#include "files/little_endian.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kWindow = std::uint64_t{1} << 18;
constexpr std::uint64_t kMaxString = std::uint64_t{1} << 30;   // the reference implementation's limits
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxKey = 65535;
constexpr std::uint64_t kMaxTensorName = 63;
constexpr std::uint32_t kMaxDimensions = 4;
// Of pairs and of tensors, far above any model: bounds memory for files of gigabytes that hold only names.
constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 20;
constexpr std::uint64_t kSmallestPair = 8 + 1 + 4 + 1;
constexpr std::uint64_t kSmallestTensor = 8 + 4 + 4 + 8;
constexpr std::uint64_t kMaxExtent = std::numeric_limits<std::int64_t>::max();

/// The header's bytes in order, each checked against the end of the file.
class Cursor {
 public:
  explicit Cursor(const File& file) : file_(file) {}

  [[nodiscard]] std::uint64_t at() const noexcept { return at_; }
  [[nodiscard]] std::uint64_t left() const noexcept { return file_.size() - at_; }

  /// The next `count` bytes, at most kWindow; valid until the next call. Empty when the file ends before.
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > left()) return {};
    if (at_ < window_at_ || at_ + count > window_at_ + window_.size()) {
      window_.resize(static_cast<std::size_t>(std::min(kWindow, left())));
      file_.read(at_, window_);
      window_at_ = at_;
    }
    const auto bytes =
        std::span(window_).subspan(static_cast<std::size_t>(at_ - window_at_), static_cast<std::size_t>(count));
    at_ += count;
    return bytes;
  }
  /// False when the file ends before.
  bool skip(std::uint64_t count) noexcept {
    if (count > left()) return false;
    at_ += count;
    return true;
  }

 private:
  const File& file_;
  std::uint64_t at_ = 0;
  std::uint64_t window_at_ = 0;
  std::vector<std::byte> window_;
};

// Well-formed UTF-8 without NUL: what a key may consist of.
bool is_text(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const auto [code, length] = utf8_at(text, i);
    if (length == 0 || code == 0) return false;
    i += length;
  }
  return true;
}

struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const std::string* name = nullptr;
  StoredTensor* tensor = nullptr;
};

class Reader {
 public:
  explicit Reader(const std::shared_ptr<const File>& file)
      : file_(file), where_(escaped(file->name())), cursor_(*file) {}

  GgufFile read() {
    out_.file = file_;
    read_magic();
    const std::uint64_t tensors = read_count("tensors", kSmallestTensor);
    const std::uint64_t pairs = read_count("keys", kSmallestPair);
    for (std::uint64_t i = 0; i < pairs; ++i) read_pair();
    refuse_duplicate_keys();
    take_alignment();
    std::vector<Extent> extents;
    extents.reserve(static_cast<std::size_t>(tensors));  // as many as the file has room for
    for (std::uint64_t i = 0; i < tensors; ++i) extents.push_back(read_tensor(i));
    out_.data_offset = (cursor_.at() + out_.alignment - 1) / out_.alignment * out_.alignment;
    place(extents);
    return std::move(out_);
  }

 private:
  /// What is being read stands before the reason.
  [[noreturn]] void fail(const std::string& reason, ErrorCode code = ErrorCode::format) const {
    if (kind_.empty()) throw Error(code, where_ + ": " + reason);
    throw Error(code, fmt::format("{}: {} {}: {}", where_, kind_, name_.empty() ? "\"\"" : escaped(name_), reason));
  }
  void enter(std::string_view kind, std::string name) {
    kind_ = kind;
    name_ = std::move(name);
  }
  void leave() noexcept { kind_ = {}; }
  [[noreturn]] void fail_truncated(std::string_view what, std::uint64_t wanted) const {
    fail(fmt::format("expected {} of {} bytes at {}, found only {} bytes to the end of the file", what, wanted,
                     cursor_.at(), cursor_.left()));
  }

  std::uint64_t number(std::uint64_t bytes, std::string_view what) {
    const auto taken = cursor_.take(bytes);
    if (taken.empty()) fail_truncated(what, bytes);
    return from_little_endian(taken);
  }
  std::uint32_t u32(std::string_view what) { return static_cast<std::uint32_t>(number(4, what)); }
  std::uint64_t u64(std::string_view what) { return number(8, what); }

  std::string string(std::uint64_t most, std::string_view what) {
    const std::uint64_t length = u64(what);
    if (length > cursor_.left()) fail_truncated(what, length);
    if (length > most) fail(fmt::format("expected {} of at most {} bytes, found {}", what, most, length));
    const auto bytes = cursor_.take(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void read_magic() {
    if (cursor_.left() < 4) fail(fmt::format("expected a GGUF file, found {} bytes", cursor_.left()));
    const auto magic = cursor_.take(4);
    const std::string found(reinterpret_cast<const char*>(magic.data()), magic.size());
    if (found != "GGUF") {
      // The formats before it: their names as numbers, so that they lie in the file backwards.
      for (const std::string_view old : {"ggml", "ggmf", "ggjt", "ggla"}) {
        if (found == old || found == std::string(old.rbegin(), old.rend())) {
          fail(fmt::format("expected GGUF, found the older format {}, which is not supported", old),
               ErrorCode::unsupported);
        }
      }
      const std::string kind = describe_contents(*file_);
      fail(fmt::format("expected a GGUF file, found {}",
                       !kind.empty() ? kind : fmt::format("a file that begins with \"{}\"", escaped(found))));
    }
    out_.version = u32("a version");
    if (out_.version == 2 || out_.version == 3) return;
    if (out_.version != 0 && (out_.version & 0xffffU) == 0) {
      fail(
          "a big-endian GGUF file, which is not supported: expected little-endian (gguf_convert_endian.py of llama.cpp "
          "makes one)",
          ErrorCode::unsupported);
    }
    fail(fmt::format("expected GGUF version 2 or 3, found {}{}", out_.version,
                     out_.version == 1 ? " (write the file anew with a current program)" : ""),
         ErrorCode::unsupported);
  }

  std::uint64_t read_count(std::string_view of, std::uint64_t smallest) {
    const std::uint64_t count = u64(fmt::format("the number of {}", of));
    const std::uint64_t room = cursor_.left() / smallest;
    if (count > room) {
      fail(fmt::format("expected a number of {} that the file has room for, at most {}, found {}", of, room, count));
    }
    if (count > kMaxEntries) {
      fail(fmt::format("expected at most {} {}, found {}", kMaxEntries, of, count), ErrorCode::unsupported);
    }
    return count;
  }

  GgufValue value_type() {
    const std::uint32_t id = u32("a value's type");
    if (id > static_cast<std::uint32_t>(GgufValue::f64))
      fail(fmt::format("expected a value's type from 0 to 12, found {}", id));
    return static_cast<GgufValue>(id);
  }

  void read_pair() {
    pair_ = {};
    pair_.offset = cursor_.at();
    pair_.key = string(kMaxKey, "a key");
    if (pair_.key.empty()) fail(fmt::format("found an empty key at {}", pair_.offset));
    enter("key", pair_.key);
    if (!is_text(pair_.key)) fail("expected UTF-8 without NUL");
    pair_.type = value_type();
    if (pair_.type == GgufValue::array) {
      read_array();
    } else if (pair_.type == GgufValue::string) {
      pair_.count = u64("a string's length");
      skip_string(pair_.count);
      pair_.value_offset = cursor_.at() - pair_.count;
    } else {
      pair_.scalar = number(size_of(pair_.type), "a value");
      if (pair_.type == GgufValue::boolean && pair_.scalar > 1) {
        fail(fmt::format("expected a bool of 0 or 1, found {}", pair_.scalar));
      }
    }
    pair_.size = cursor_.at() - pair_.offset;
    out_.pairs.push_back(std::move(pair_));
    leave();
  }

  void skip_string(std::uint64_t length) {
    if (length > kMaxString) {
      fail(fmt::format("expected a string of at most {} bytes, found {}", kMaxString, length));
    }
    if (!cursor_.skip(length)) {
      fail(fmt::format("found a string of {} bytes, where {} are left in the file", length, cursor_.left()));
    }
  }

  void read_array() {
    pair_.element = value_type();
    if (pair_.element == GgufValue::array) fail("an array of arrays, which is not supported");
    pair_.count = u64("an array's length");
    pair_.value_offset = cursor_.at();
    const bool strings = pair_.element == GgufValue::string;
    const std::uint64_t smallest = strings ? 8 : size_of(pair_.element);
    if (pair_.count > cursor_.left() / smallest) {
      fail(fmt::format("found an array of {} elements of {} bytes, where {} bytes are left in the file", pair_.count,
                       smallest, cursor_.left()));
    }
    if (pair_.count > kMaxElements) {
      fail(fmt::format("expected an array of at most {} elements, found {}", kMaxElements, pair_.count));
    }
    if (!strings) {
      cursor_.skip(pair_.count * smallest);
      return;
    }
    for (std::uint64_t i = 0; i < pair_.count; ++i) skip_string(u64("a string's length"));
  }

  void refuse_duplicate_keys() {
    std::vector<std::string_view> keys;
    keys.reserve(out_.pairs.size());
    for (const GgufPair& pair : out_.pairs) keys.emplace_back(pair.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return;
    enter("key", std::string(*twice));
    fail("is there twice");
  }

  void take_alignment() {
    const GgufPair* pair = out_.find("general.alignment");
    if (pair == nullptr) return;
    if (pair->type != GgufValue::u32 || !std::has_single_bit(pair->scalar)) {
      enter("key", pair->key);
      fail(fmt::format("expected a u32 that is a power of two, found {}", pair->describe()));
    }
    out_.alignment = pair->scalar;
  }

  // The extent is relative to the data section, whose start is not known yet.
  Extent read_tensor(std::uint64_t index) {
    const std::string name = string(kMaxTensorName, fmt::format("the name of tensor number {}", index));
    enter("tensor", name);
    StoredTensor tensor;
    tensor.file = file_;
    const std::uint32_t dimensions = u32("a number of dimensions");
    if (dimensions > kMaxDimensions) {
      fail(fmt::format("expected at most {} dimensions, found {}", kMaxDimensions, dimensions));
    }
    bool overflow = false;
    bool empty = false;
    std::uint64_t elements = 1;  // zeros left out, so that an overflow beside one is refused like any other
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      const std::uint64_t extent = u64("a dimension");
      if (extent > kMaxExtent) fail(fmt::format("dimension {}: {} does not fit", i, extent));
      empty |= extent == 0;
      overflow |= !checked_mul(elements, std::max<std::uint64_t>(extent, 1), elements);
      tensor.shape.push_back(static_cast<std::int64_t>(extent));
    }
    const std::uint32_t id = u32("a tensor's type");
    const GgufType* type = gguf_type(id);
    if (type == nullptr) fail(fmt::format("type {}: {}", id, gguf_type_refusal(id)));
    tensor.dtype_name = type->name;
    tensor.dtype = type->dtype;
    tensor.encoding = type->encoding;
    const auto row = dimensions > 0 ? tensor.shape.front() : 1;
    if (row % type->block != 0) {
      fail(fmt::format("expected rows of whole blocks of {} elements ({}), found {}", type->block, type->name, row));
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    // A zero beside other dimensions counts as one block here.
    const auto block = static_cast<std::uint64_t>(type->block);
    std::uint64_t bytes = 0;
    overflow |= elements > kMaxExtent ||
                !checked_mul((elements + block - 1) / block, static_cast<std::uint64_t>(type->bytes), bytes) ||
                bytes > kMaxExtent;
    if (overflow) {
      fail(fmt::format("shape {} of {} overflows", shape_text(tensor.shape), type->name));
    }
    if (empty) bytes = 0;
    tensor.bytes = bytes;
    tensor.strides.assign(tensor.shape.size(), 1);
    for (std::size_t i = tensor.shape.size(); i > 1; --i) {
      tensor.strides[i - 2] = tensor.strides[i - 1] * std::max<std::int64_t>(tensor.shape[i - 1], 1);
    }
    Extent extent;
    extent.begin = u64("a tensor's offset");
    if (extent.begin % out_.alignment != 0) {
      fail(fmt::format("expected an offset that is a multiple of {}, found {}", out_.alignment, extent.begin));
    }
    if (!checked_add(extent.begin, bytes, extent.end)) {
      fail(fmt::format("{} bytes at offset {} overflow", bytes, extent.begin));
    }
    const auto [entry, is_new] = out_.tensors.try_emplace(name, std::move(tensor));
    if (!is_new) fail("is there twice");
    extent.name = &entry->first;
    extent.tensor = &entry->second;
    leave();
    return extent;
  }

  void place(std::vector<Extent>& extents) {
    const std::uint64_t size = file_->size() - std::min(out_.data_offset, file_->size());
    for (const Extent& extent : extents) {
      StoredTensor& tensor = *extent.tensor;
      if (extent.end > size) {
        enter("tensor", *extent.name);
        fail(
            fmt::format("shape {} of {} takes {} bytes at offset {}, but the file has {} bytes of data: it "
                        "is truncated",
                        shape_text(tensor.shape), tensor.dtype_name, extent.end - extent.begin, extent.begin, size));
      }
      tensor.offset = out_.data_offset + extent.begin;
    }
    std::erase_if(extents, [](const Extent& extent) { return extent.begin == extent.end; });
    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < extents.size(); ++i) {
      if (extents[i].begin >= extents[i - 1].end) continue;
      enter("tensor", *extents[i].name);
      fail(fmt::format("begins at {}, inside tensor {} which ends at {}: they overlap", extents[i].begin,
                       escaped(*extents[i - 1].name), extents[i - 1].end));
    }
  }

  const std::shared_ptr<const File>& file_;
  std::string where_;
  Cursor cursor_;
  std::string_view kind_;  // "key" or "tensor", with its name, while one is being read
  std::string name_;
  GgufPair pair_;
  GgufFile out_;
};

}  // namespace

GgufFile read_gguf(const std::shared_ptr<const File>& file) { return Reader(file).read(); }

}  // namespace swiglu::files
