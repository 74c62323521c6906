// safetensors: u64 header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
// Every rule of the format is checked before a byte of data is used: nothing is allocated beyond what
// the file's size justifies, every product is checked, and the tensors tile the data exactly, without
// overlap, hole or trailing byte. Knows nothing of what the tensors mean.
#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/blocks.h"
#include "files/json.h"
#include "files/tensor_table.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the reference implementation's limit
constexpr std::uint64_t kMaxDimension = std::numeric_limits<std::int64_t>::max();

struct TypeRow {
  std::string_view name;
  std::uint64_t bits;
  std::optional<DType> dtype;
};
constexpr TypeRow kTypes[] = {
    {"F32", 32, DType::f32},          {"BF16", 16, DType::bf16},        {"F16", 16, DType::f16},
    {"F64", 64, DType::f64},          {"BOOL", 8, std::nullopt},        {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},     {"F6_E3M2", 6, std::nullopt},     {"U8", 8, std::nullopt},
    {"I8", 8, std::nullopt},          {"F8_E5M2", 8, std::nullopt},     {"F8_E4M3", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt}, {"F8_E5M2FNUZ", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt},
    {"U16", 16, std::nullopt},        {"I16", 16, std::nullopt},        {"U32", 32, std::nullopt},
    {"I32", 32, std::nullopt},        {"U64", 64, std::nullopt},        {"I64", 64, std::nullopt},
    {"C64", 64, std::nullopt},
};

struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const std::string* name = nullptr;
};

class Reader {
 public:
  explicit Reader(const std::shared_ptr<const File>& file) : file_(file), where_(escaped(file->name())) {}

  TensorTable read() {
    const Json header = read_header();
    TensorTable table;
    std::vector<Extent> extents;
    extents.reserve(header.object->size());
    for (const auto& [name, entry] : *header.object) {
      if (name == "__metadata__") {
        check_metadata(entry);
        continue;
      }
      Extent extent;
      StoredTensor tensor = read_entry(name, entry, extent);
      const auto place = table.emplace(name, std::move(tensor)).first;
      extent.name = &place->first;
      extents.push_back(extent);
    }
    check_tiling(extents);
    return table;
  }

  std::map<std::string, std::string> read_metadata() {
    const Json header = read_header();
    std::map<std::string, std::string> found;
    const Json* metadata = header.find("__metadata__");
    if (metadata == nullptr) return found;
    check_metadata(*metadata);
    for (const auto& [key, value] : *metadata->object) found.emplace(key, *value.string);
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw Error(ErrorCode::format, where_ + ": " + reason); }
  [[noreturn]] void fail_tensor(const std::string& name, const std::string& reason) const {
    fail(fmt::format("tensor {}: {}", name.empty() ? "\"\"" : escaped(name), reason));
  }
  // The header makes no sense; perhaps the first bytes tell what the file is instead.
  [[noreturn]] void fail_container(const std::string& reason) const {
    std::string kind = describe_contents(*file_);
    std::array<char, 1> first{};
    if (kind.empty() && file_->size() > 0) {
      file_->read(0, std::as_writable_bytes(std::span(first)));
      if (first[0] == '{') kind = "JSON text (open the folder that holds it)";
    }
    fail(kind.empty() ? "not a safetensors file: " + reason
                      : fmt::format("not a safetensors file but {}: {}", kind, reason));
  }

  Json read_header() {
    const std::uint64_t size = file_->size();
    if (size < 8) fail_container(fmt::format("expected the 8 bytes of a header length, found {} bytes", size));
    std::array<unsigned char, 8> bytes{};
    file_->read(0, std::as_writable_bytes(std::span(bytes)));
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < 8; ++i) length |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
    if (length > kMaxHeader) {
      fail_container(fmt::format("expected a header of at most {} bytes, found the length {}", kMaxHeader, length));
    }
    if (length > size - 8) {
      fail_container(
          fmt::format("expected a header of {} bytes, found only {} bytes after its length", length, size - 8));
    }
    data_start_ = 8 + length;
    data_size_ = size - data_start_;
    std::string text(static_cast<std::size_t>(length), '\0');
    file_->read(8, std::as_writable_bytes(std::span(text)));
    if (text.empty()) fail("expected a JSON object as header, found a header of 0 bytes");
    JsonRules rules;
    rules.max_depth = 8;
    rules.leading_space = false;
    Json header = parse_json(text, rules, where_ + ": header");
    if (header.kind != Json::Kind::object) fail("expected a JSON object as header, found " + header.describe());
    return header;
  }

  void check_metadata(const Json& metadata) const {
    if (metadata.kind != Json::Kind::object) {
      fail("__metadata__: expected an object of strings, found " + metadata.describe());
    }
    for (const auto& [key, value] : *metadata.object) {
      if (value.kind != Json::Kind::string) {
        fail(fmt::format("__metadata__: expected a string as \"{}\", found {}", escaped(key), value.describe()));
      }
    }
  }

  const Json& field(const std::string& name, const Json& entry, std::string_view key, Json::Kind kind,
                    std::string_view expected) const {
    const Json* value = entry.find(key);
    if (value == nullptr) fail_tensor(name, fmt::format("{} is missing", key));
    if (value->kind != kind) {
      fail_tensor(name, fmt::format("{}: expected {}, found {}", key, expected, value->describe()));
    }
    return *value;
  }

  // Not negative, not 4.0, not "4".
  std::uint64_t natural(const std::string& name, std::string_view key, const Json& value, std::uint64_t largest) const {
    if (value.kind != Json::Kind::integer || value.negative || value.magnitude > largest) {
      fail_tensor(name, fmt::format("{}: expected integers from 0 to {}, found {}", key, largest, value.describe()));
    }
    return value.magnitude;
  }

  StoredTensor read_entry(const std::string& name, const Json& entry, Extent& extent) const {
    if (entry.kind != Json::Kind::object) fail_tensor(name, "expected an object, found " + entry.describe());
    StoredTensor tensor;
    tensor.file = file_;
    tensor.dtype_name = *field(name, entry, "dtype", Json::Kind::string, "the name of a type").string;
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const TypeRow& row) { return row.name == tensor.dtype_name; });
    if (type == std::end(kTypes)) {
      fail_tensor(name, fmt::format("dtype: \"{}\" is no type of the format", escaped(tensor.dtype_name)));
    }
    tensor.dtype = type->dtype;
    if (!tensor.dtype) tensor.encoding = find_encoding(tensor.dtype_name);

    const Json& shape = field(name, entry, "shape", Json::Kind::array, "an array of integers");
    // Zeros are left out of the product, so that an overflow beside a zero is refused like any other.
    std::uint64_t product = 1;
    bool fits = true;
    bool empty = false;
    for (const Json& dimension : *shape.array) {
      const std::uint64_t extent_of = natural(name, "shape", dimension, kMaxDimension);
      tensor.shape.push_back(static_cast<std::int64_t>(extent_of));
      empty |= extent_of == 0;
      fits = fits && checked_mul(product, std::max<std::uint64_t>(extent_of, 1), product);
    }
    std::uint64_t bits = 0;
    if (!fits || product > kMaxDimension || !checked_mul(product, type->bits, bits)) {
      fail_tensor(name, fmt::format("shape {} of {} overflows", shape_text(tensor.shape), type->name));
    }
    if (empty) bits = 0;
    if (bits % 8 != 0) {
      fail_tensor(name, fmt::format("shape {} of {} takes {} bits, which is no whole number of bytes",
                                    shape_text(tensor.shape), type->name, bits));
    }

    const Json& offsets = field(name, entry, "data_offsets", Json::Kind::array, "an array of two integers");
    if (offsets.array->size() != 2) {
      fail_tensor(name, fmt::format("data_offsets: expected 2 numbers, found {}", offsets.array->size()));
    }
    extent.begin = natural(name, "data_offsets", (*offsets.array)[0], kMaxDimension);
    extent.end = natural(name, "data_offsets", (*offsets.array)[1], kMaxDimension);
    if (extent.begin > extent.end || extent.end > data_size_) {
      fail_tensor(name, fmt::format("data_offsets: expected a range inside the file's {} bytes of data, found {} to "
                                    "{}: is the file cut short?",
                                    data_size_, extent.begin, extent.end));
    }
    if (extent.end - extent.begin != bits / 8) {
      fail_tensor(
          name, fmt::format("expected {} bytes for shape {} of {}, found {} ({} to {})", bits / 8,
                            shape_text(tensor.shape), type->name, extent.end - extent.begin, extent.begin, extent.end));
    }
    tensor.offset = data_start_ + extent.begin;
    tensor.bytes = bits / 8;
    tensor.strides.assign(tensor.shape.size(), 1);
    for (std::size_t i = tensor.shape.size(); i > 1; --i) {
      tensor.strides[i - 2] = tensor.strides[i - 1] * std::max<std::int64_t>(tensor.shape[i - 1], 1);
    }
    return tensor;
  }

  // Sorted by place, each tensor begins where the one before it ends; empty tensors fit in between.
  void check_tiling(std::vector<Extent>& extents) const {
    std::sort(extents.begin(), extents.end(),
              [](const Extent& a, const Extent& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::uint64_t end = 0;
    const std::string* before = nullptr;
    for (const Extent& extent : extents) {
      if (extent.begin < end) {
        fail_tensor(*extent.name, fmt::format("begins at {}, inside tensor {} which ends at {}: they overlap",
                                              extent.begin, escaped(*before), end));
      }
      if (extent.begin > end) {
        fail_tensor(*extent.name, fmt::format("begins at {}, expected {}: a hole in the data", extent.begin, end));
      }
      end = extent.end;
      before = extent.name;
    }
    if (end != data_size_) {
      fail(fmt::format("expected the data to end with the last tensor at {}, found {} bytes after it", end,
                       data_size_ - end));
    }
  }

  const std::shared_ptr<const File>& file_;
  std::string where_;
  std::uint64_t data_start_ = 0;
  std::uint64_t data_size_ = 0;
};

}  // namespace

TensorTable read_safetensors(const std::shared_ptr<const File>& file) { return Reader(file).read(); }

std::map<std::string, std::string> read_safetensors_metadata(const std::shared_ptr<const File>& file) {
  return Reader(file).read_metadata();
}

}  // namespace swiglu::files
