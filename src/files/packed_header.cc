// The header of a packed file, proved before anything in it is used: the JSON text, and the places of all
// regions, which tile the file but for the gaps that alignment makes. Allocates nothing that the header's own
// size does not justify. Knows no payload.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/json.h"
#include "files/packed.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kLargest = std::uint64_t{1} << 60;  // of any size: times 4 bytes it is still an int64
// Of dim and of hidden, and of their product: what the sublayer accepts. It would refuse others without naming the
// file, and sizes in bytes that are computed from them stay within an int64.
constexpr std::uint64_t kLargestSide = std::uint64_t{1} << 40;
constexpr std::uint64_t kMostElements = INT64_MAX / 64;

/// A value of the header, and the way to it for messages.
struct Value {
  const Json& json;
  std::string path;
};

/// Where a region lies, for the proof that they tile the file.
struct Placed {
  PackedRegion region;
  std::uint64_t alignment = kPackedAlignment;
  std::int64_t layer = -1;
  std::string what;
  std::size_t named = 0;  // where it stands in the header
  [[nodiscard]] std::uint64_t end() const { return region.offset + region.bytes; }
};

class Reader {
 public:
  explicit Reader(const File& file) : file_(file), where_(escaped(file.name())) {}

  PackedHeader read(std::vector<PackedRegion>* gaps) {
    const auto [text, offset] = read_packed_text(file_);
    data_end_ = offset;
    JsonRules rules;
    rules.max_depth = 8;
    const Json json = parse_json(text, rules, where_ + ": header");
    const Value root{json, "header"};
    // First the family: the rest of another family's header may follow other rules.
    const std::string& family = string(member(root, "layout"));
    if (family != PackedSource::kFamily) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: expected the packed layout \"{}\", found \"{}\", which other machines use: pack the "
                              "original again for this one",
                              where_, PackedSource::kFamily, escaped(family)));
    }
    PackedHeader header;
    header.writer = string(member(root, "writer"));
    header.family = string(member(root, "family"));
    header.config = read_config(member(root, "config"));
    header.origin = read_origin(root);
    read_layers(member(root, "layers"), header);
    check_tiling(gaps);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw Error(ErrorCode::format, where_ + ": " + reason); }

  [[noreturn]] void expected(const Value& value, std::string_view what) const {
    fail(fmt::format("{}: expected {}, found {}", value.path, what, value.json.describe()));
  }
  Value member(const Value& of, std::string_view key) const {
    if (of.json.kind != Json::Kind::object) expected(of, "an object");
    const Json* found = of.json.find(key);
    if (found == nullptr) fail(fmt::format("{}.{} is missing", of.path, key));
    return {*found, fmt::format("{}.{}", of.path, key)};
  }
  const std::vector<Json>& array(const Value& value) const {
    if (value.json.kind != Json::Kind::array) expected(value, "an array");
    return *value.json.array;
  }
  const std::string& string(const Value& value) const {
    if (value.json.kind != Json::Kind::string) expected(value, "a string");
    return *value.json.string;
  }
  std::uint64_t natural(const Value& value, std::uint64_t smallest, std::uint64_t largest) const {
    const Json& json = value.json;
    if (json.kind != Json::Kind::integer || json.negative || json.magnitude < smallest || json.magnitude > largest) {
      expected(value, fmt::format("an integer from {} to {}", smallest, largest));
    }
    return json.magnitude;
  }
  std::uint64_t hexadecimal(const Value& value) const {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const std::string& text = string(value);
    std::uint64_t out = 0;
    bool right = text.size() == 16;
    for (const char c : text) {
      const std::size_t digit = kDigits.find(c);
      right = right && digit != std::string_view::npos;
      out = out << 4 | (digit & 15U);
    }
    if (!right) expected(value, "16 hexadecimal digits");
    return out;
  }
  template <class T>
  T one_of(const Value& value, std::initializer_list<T> known) const {
    const std::string& text = string(value);
    std::string names;
    for (const T each : known) {
      if (text == name_of(each)) return each;
      names += fmt::format("{}\"{}\"", names.empty() ? "" : " or ", name_of(each));
    }
    expected(value, names);
  }

  FfnConfig read_config(const Value& value) const {
    FfnConfig config;
    const std::uint64_t dim = natural(member(value, "dim"), 1, kLargestSide);
    config.dim = static_cast<std::int64_t>(dim);
    config.hidden =
        static_cast<std::int64_t>(natural(member(value, "hidden"), 1, std::min(kLargestSide, kMostElements / dim)));
    const Value eps = member(value, "eps");
    const bool number = eps.json.kind == Json::Kind::real || eps.json.kind == Json::Kind::integer;
    // What a float rounds to zero would divide by zero.
    if (!number || !(static_cast<float>(eps.json.real) > 0 && eps.json.real < 1e30)) {
      expected(eps, "a small positive number");
    }
    config.eps = eps.json.real;
    return config;
  }

  Origin read_origin(const Value& root) const {
    Origin origin;
    origin.layers = static_cast<std::int64_t>(
        natural(member(root, "model_layers"), 1, static_cast<std::uint64_t>(kMaxPackedLayers)));
    const Value sources = member(root, "sources");
    for (const Json& each : array(sources)) {
      const Value source{each, fmt::format("{}[{}]", sources.path, origin.files.size())};
      origin.files.push_back({string(member(source, "name")), natural(member(source, "bytes"), 0, INT64_MAX)});
    }
    return origin;
  }

  PackedRegion place(const Value& value, std::uint64_t alignment, std::int64_t layer, std::string what) {
    PackedRegion region;
    region.offset = natural(member(value, "offset"), kPackedFrame, kLargest);
    region.bytes = natural(member(value, "bytes"), 0, kLargest);
    if (region.offset > data_end_ || region.bytes > data_end_ - region.offset) {
      fail(fmt::format("{}: expected a range between {} and the header at {}, found {} bytes at {}", value.path,
                       kPackedFrame, data_end_, region.bytes, region.offset));
    }
    if (alignment == 0) alignment = payload_alignment(region.bytes);
    if (region.offset % alignment != 0) {
      fail(fmt::format("{}.offset: expected a multiple of {}, found {}", value.path, alignment, region.offset));
    }
    placed_.push_back({region, alignment, layer, std::move(what), placed_.size()});
    return region;
  }
  PackedRegion place_checked(const Value& value, std::int64_t layer, std::string what) {
    PackedRegion region = place(value, kPackedAlignment, layer, std::move(what));
    region.checksum = hexadecimal(member(value, "checksum"));
    return region;
  }
  void check_bytes(const Value& value, const PackedRegion& region, std::uint64_t expected,
                   const std::string& why) const {
    if (region.bytes == expected) return;
    fail(fmt::format("{}.bytes: expected {} {}, found {}", value.path, expected, why, region.bytes));
  }

  PackedPart read_part(const Value& value, std::int64_t layer, const std::string& what) {
    PackedPart part;
    part.dtype = one_of(member(value, "dtype"), {DType::f32, DType::bf16, DType::f16});
    const Value storage = member(value, "storage");
    part.storage = one_of(storage, {Storage::plain, Storage::compact});
    if (part.storage == Storage::compact && part.dtype != DType::bf16) {
      expected(storage, fmt::format("\"plain\" for weights of {}", name_of(part.dtype)));
    }
    part.index = place_checked(member(value, "index"), layer, what + " index");
    part.payload = place(member(value, "payload"), 0, layer, what + " payload");
    const Value checksums = member(value, "checksums");
    part.checksums = place_checked(checksums, layer, what + " checksums");
    check_bytes(checksums, part.checksums, 8 * chunks_of(part.payload.bytes),
                fmt::format("for a payload of {} bytes", part.payload.bytes));
    return part;
  }

  void read_layers(const Value& layers, PackedHeader& header) {
    const std::int64_t count = header.origin.layers;
    for (const Json& each : array(layers)) {
      const Value value{each, fmt::format("{}[{}]", layers.path, header.layers.size())};
      const Value number = member(value, "number");
      PackedLayer layer;
      layer.number = static_cast<std::int64_t>(natural(number, 0, static_cast<std::uint64_t>(count - 1)));
      if (!header.layers.empty() && layer.number <= header.layers.back().number) {
        expected(number, fmt::format("ascending numbers, so one above {}", header.layers.back().number));
      }
      layer.compute = one_of(member(value, "compute"), {Compute::f32, Compute::bf16});
      const Value norm = member(value, "norm");
      layer.norm = place_checked(norm, layer.number, "norm");
      check_bytes(norm, layer.norm, 4 * static_cast<std::uint64_t>(header.config.dim),
                  fmt::format("for a dim of {}", header.config.dim));
      for (std::size_t p = 0; p < kPackedParts.size(); ++p) {
        layer.parts[p] = read_part(member(value, kPackedParts[p]), layer.number, kPackedParts[p]);
      }
      header.layers.push_back(layer);
    }
    if (header.layers.empty()) fail(layers.path + ": expected at least one layer, found none");
  }

  // Each region begins at the first place after the one before it that its alignment allows. Bytes that belong
  // to nothing are how something else hides in a file.
  void check_tiling(std::vector<PackedRegion>* gaps) {
    placed_.push_back({{.offset = data_end_}, kPackedAlignment, -1, "the header", placed_.size()});
    std::sort(placed_.begin(), placed_.end(), [](const Placed& a, const Placed& b) {
      return std::tuple(a.region.offset, a.end(), a.named) < std::tuple(b.region.offset, b.end(), b.named);
    });
    const auto name = [](const Placed& p) {
      return p.layer < 0 ? p.what : fmt::format("layer {}: {}", p.layer, p.what);
    };
    const Placed first{{.bytes = kPackedFrame}, kPackedAlignment, -1, "the preamble"};
    const Placed* before = &first;
    for (const Placed& next : placed_) {
      const std::uint64_t start = next.region.offset;
      if (start < before->end()) {
        fail(fmt::format("{} begins at {}, inside {}, which ends at {}: they overlap", name(next), start, name(*before),
                         before->end()));
      }
      if (start != aligned_up(before->end(), next.alignment)) {
        fail(fmt::format("{} begins at {}, expected {}: a hole after {}", name(next), start,
                         aligned_up(before->end(), next.alignment), name(*before)));
      }
      if (gaps != nullptr && start != before->end()) {
        gaps->push_back({.offset = before->end(), .bytes = start - before->end()});
      }
      before = &next;
    }
  }

  const File& file_;
  std::string where_;
  std::uint64_t data_end_ = 0;  // where the header begins
  std::vector<Placed> placed_;
};

}  // namespace

PackedHeader read_packed_header(const File& file, std::vector<PackedRegion>* gaps) { return Reader(file).read(gaps); }

}  // namespace swiglu::files
