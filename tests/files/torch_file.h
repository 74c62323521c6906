// Builds .pth files byte by byte, right or wrong on purpose: a zip writer in PyTorch's manner whose every
// field can be falsified, and a pickle writer. Knows nothing of the reader.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zlib.h>

#include "files/source.h"
#include "support/data.h"

namespace swiglu::testing {

inline std::string little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

/// One entry; what is set replaces the truth.
struct ZipPart {
  std::string name;
  std::string data;
  std::uint16_t method = 0;
  std::optional<std::string> local_name{};
  std::optional<std::uint32_t> crc{}, csize{}, usize{}, header{}, local_signature{};
  std::optional<std::uint16_t> flags{}, local_flags{}, local_method{};
};

struct ZipShape {
  bool torch = true;   ///< descriptors, alignment and zip64 records as torch.save writes them
  std::string prefix;  ///< before the archive; offsets do not count it
  std::string comment;
  std::optional<std::uint64_t> count, directory, zip64_at;
};

inline std::string zip_bytes(const std::vector<ZipPart>& parts, const ZipShape& shape = {}) {
  std::string out, directory;
  for (const ZipPart& part : parts) {
    const auto size = static_cast<std::uint32_t>(part.data.size());
    const std::uint32_t crc = part.crc.value_or(static_cast<std::uint32_t>(
        crc32(0, reinterpret_cast<const Bytef*>(part.data.data()), static_cast<uInt>(part.data.size()))));
    const std::uint16_t flags = part.flags.value_or(shape.torch ? 0x0808 : 0x0800);
    const std::string local = part.local_name.value_or(part.name);
    const auto header = static_cast<std::uint32_t>(out.size());
    std::string extra;
    if (shape.torch) {
      const std::size_t payload = out.size() + 30 + local.size() + 4;
      const std::size_t fill = (64 - payload % 64) % 64;
      extra = "FB" + little(fill, 2) + std::string(fill, 'Z');
    }
    out += little(part.local_signature.value_or(0x04034b50), 4) + little(20, 2) +
           little(part.local_flags.value_or(flags), 2) + little(part.local_method.value_or(part.method), 2) +
           little(0, 4) + little(shape.torch ? 0 : crc, 4) + little(shape.torch ? 0 : part.csize.value_or(size), 4) +
           little(shape.torch ? 0 : part.usize.value_or(size), 4) + little(local.size(), 2) + little(extra.size(), 2) +
           local + extra + part.data;
    if (shape.torch) out += little(0x08074b50, 4) + little(crc, 4) + little(size, 4) + little(size, 4);
    directory += little(0x02014b50, 4) + little(20, 2) + little(20, 2) + little(flags, 2) + little(part.method, 2) +
                 little(0, 4) + little(crc, 4) + little(part.csize.value_or(size), 4) +
                 little(part.usize.value_or(size), 4) + little(part.name.size(), 2) + little(0, 2) + little(0, 2) +
                 little(0, 2) + little(0, 2) + little(0, 4) + little(part.header.value_or(header), 4) + part.name;
  }
  const std::uint64_t at = shape.directory.value_or(out.size());
  const std::uint64_t count = shape.count.value_or(parts.size());
  out += directory;
  if (shape.torch) {
    const std::uint64_t zip64_at = shape.zip64_at.value_or(out.size());
    out += little(0x06064b50, 4) + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 4) + little(0, 4) +
           little(count, 8) + little(count, 8) + little(directory.size(), 8) + little(at, 8);
    out += little(0x07064b50, 4) + little(0, 4) + little(zip64_at, 8) + little(1, 4);
  }
  const std::uint64_t short_count = std::min<std::uint64_t>(count, 0xffff);
  out += little(0x06054b50, 4) + little(0, 4) + little(short_count, 2) + little(short_count, 2) +
         little(directory.size(), 4) + little(at, 4) + little(shape.comment.size(), 2) + shape.comment;
  return shape.prefix + out;
}

/// Protocol 2 opcodes. Everything returns a piece of pickle that leaves one value, if not said otherwise.
namespace pickled {
inline std::string text(std::string_view s) { return std::string("X").append(little(s.size(), 4)).append(s); }
inline std::string number(std::int64_t v) {
  const bool small = v >= INT32_MIN && v <= INT32_MAX;
  return std::string(small ? "J" : "\x8a\x08").append(little(static_cast<std::uint64_t>(v), small ? 4 : 8));
}
inline std::string global(const std::string& module, const std::string& name) {
  return std::string("c").append(module).append("\n").append(name).append("\n");
}
inline std::string tuple(const std::vector<std::string>& items) {
  std::string out = "(";
  for (const auto& item : items) out += item;
  return out + "t";
}
inline std::string numbers(const std::vector<std::int64_t>& values) {
  std::vector<std::string> items;
  for (const auto v : values) items.push_back(number(v));
  return tuple(items);
}
inline std::string call(const std::string& callable, const std::string& arguments) {
  return callable + arguments + "R";
}
inline std::string ordered_dict() { return call(global("collections", "OrderedDict"), ")"); }
/// "(… u": pairs for the dict below.
inline std::string items(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string out = "(";
  for (const auto& [key, value] : pairs) out += text(key) + value;
  return out + "u";
}
inline std::string dict(const std::vector<std::pair<std::string, std::string>>& pairs) {
  return std::string("}").append(items(pairs));
}
inline std::string whole(const std::string& body) { return std::string("\x80\x02").append(body).append("."); }

inline std::string storage(const std::string& key, std::int64_t elements, const std::string& type = "FloatStorage",
                           const std::string& location = "cpu") {
  return tuple({text("storage"), global("torch", type), text(key), text(location), number(elements)}) + "Q";
}
inline std::string tensor(const std::string& storage, std::int64_t offset, const std::vector<std::int64_t>& sizes,
                          const std::vector<std::int64_t>& strides) {
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              tuple({storage, number(offset), numbers(sizes), numbers(strides), "\x89", ordered_dict()}));
}
/// As before PyTorch 1.6; `view` is the sixth item.
inline std::string old_storage(const std::string& key, std::int64_t elements, const std::string& view = "N",
                               const std::string& type = "FloatStorage") {
  return tuple({text("storage"), global("torch", type), text(key), text("cpu"), number(elements), view}) + "Q";
}
inline std::string strings(const std::vector<std::string>& values) {
  std::string out = "](";
  for (const auto& value : values) out += text(value);
  return out + "e";
}
}  // namespace pickled

/// The pieces of a file from before PyTorch 1.6; what a test sets replaces the truth.
struct OldFile {
  std::string magic = std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  std::string version = pickled::whole(pickled::number(1001));
  std::string system = pickled::whole(
      pickled::dict({{"protocol_version", pickled::number(1001)}, {"little_endian", "\x88"}, {"type_sizes", "}"}}));
  std::string object;                                          ///< without PROTO and STOP
  std::vector<std::string> keys;                               ///< of the storages, in the order of `storages`
  std::vector<std::pair<std::int64_t, std::string>> storages;  ///< number of elements, bytes
  [[nodiscard]] std::string pickles() const {
    return magic + version + system + pickled::whole(object) + pickled::whole(pickled::strings(keys));
  }
  [[nodiscard]] std::string bytes() const {
    std::string out = pickles();
    for (const auto& [count, data] : storages) out += little(static_cast<std::uint64_t>(count), 8) + data;
    return out;
  }
};

/// A dense row-major float tensor in a storage of its own.
struct FloatTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

/// The entries torch.save would write for these tensors under `pickle`; storage i has key i.
inline std::vector<ZipPart> torch_parts(const std::string& pickle, const std::vector<std::string>& storages,
                                        const std::string& root = "archive") {
  std::vector<ZipPart> parts{{root + "/data.pkl", pickle}, {root + "/byteorder", "little"}};
  for (std::size_t i = 0; i < storages.size(); ++i) {
    parts.push_back({root + "/data/" + std::to_string(i), storages[i]});
  }
  parts.push_back({root + "/version", "3\n"});
  return parts;
}

inline std::string torch_bytes(const std::vector<FloatTensor>& tensors) {
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> storages;
  for (const FloatTensor& t : tensors) {
    std::vector<std::int64_t> strides(t.shape.size(), 1);
    for (std::size_t i = t.shape.size(); i-- > 1;) strides[i - 1] = strides[i] * t.shape[i];
    pairs.emplace_back(t.name, pickled::tensor(pickled::storage(std::to_string(storages.size()), std::ssize(t.values)),
                                               0, t.shape, strides));
    storages.emplace_back(reinterpret_cast<const char*>(t.values.data()), t.values.size() * sizeof(float));
  }
  return zip_bytes(torch_parts(pickled::whole(pickled::dict(pairs)), storages));
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
inline std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The bytes as a file that lives as long as this.
class BytesFile {
 public:
  explicit BytesFile(const std::string& bytes, const std::string& name = "x.pth") {
    write_file(folder_ / name, bytes);
    file_ = std::make_shared<const files::File>(folder_ / name);
  }
  [[nodiscard]] const std::shared_ptr<const files::File>& operator*() const { return file_; }

 private:
  TemporaryFolder folder_;
  std::shared_ptr<const files::File> file_;
};

/// Expects an Error of this code whose text is printable and contains every given piece.
template <class Action>
void expect_error(ErrorCode code, const std::vector<std::string>& pieces, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.text();
    for (const std::string& piece : pieces)
      EXPECT_NE(error.text().find(piece), std::string::npos) << piece << " not in: " << error.text();
    for (const char c : error.text()) EXPECT_GE(static_cast<unsigned char>(c), 0x20U) << error.text();
    return;
  }
  ADD_FAILURE() << "expected an error with: " << (pieces.empty() ? "" : pieces.front());
}

}  // namespace swiglu::testing
