// read_pth: a zip archive and the pickle in it, put together. Every storage the pickle names must be an
// entry of exactly its size, every tensor a view that stays inside its storage. Nothing is executed, and
// no payload is read.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"
#include "files/blocks.h"
#include "files/pickle.h"
#include "files/tensor_table.h"
#include "files/zip.h"

namespace swiglu::files {
namespace {

constexpr std::string_view kPickle = "/data.pkl";
constexpr std::uint64_t kMaxByteorder = 16;

[[noreturn]] void fail(ErrorCode code, const std::string& where, const std::string& text) {
  throw Error(code, fmt::format("{}: {}", where, text));
}

void refuse_other_files(const File& file, const std::string& where) {
  const std::string kind = describe_contents(file);
  if (kind == "a zip archive") return;
  if (kind.starts_with("a bare pickle") || kind.starts_with("a tar")) {
    fail(ErrorCode::unsupported, where,
         fmt::format("expected a PyTorch checkpoint in zip form, found {}: load it with a current PyTorch and save it "
                     "again with torch.save",
                     kind.starts_with("a tar") ? "a tar archive (PyTorch's format before 0.2)" : kind));
  }
  fail(ErrorCode::format, where,
       fmt::format("is truncated or not a PyTorch checkpoint: expected a zip archive, found {}",
                   kind.empty() ? "other bytes" : kind));
}

// The folder of all entries, with its slash. Its name is arbitrary; the entry data.pkl tells it.
std::string find_root(const ZipArchive& zip, const std::string& where) {
  const ZipEntry* pickle = nullptr;
  for (const ZipEntry& entry : zip.entries()) {
    if (!entry.name.ends_with(kPickle)) continue;
    if (pickle != nullptr) {
      fail(ErrorCode::format, where,
           fmt::format("expected one data.pkl, found '{}' and '{}'", escaped(pickle->name), escaped(entry.name)));
    }
    pickle = &entry;
  }
  if (pickle == nullptr) {
    fail(ErrorCode::format, where,
         "expected a zip entry FOLDER/data.pkl, found none: torch.save did not write this file");
  }
  const std::string root = pickle->name.substr(0, pickle->name.size() - kPickle.size() + 1);
  for (const ZipEntry& entry : zip.entries()) {
    if (!entry.name.starts_with(root)) {
      fail(ErrorCode::format, where,
           fmt::format("expected all entries in the folder '{}', found '{}'", escaped(root), escaped(entry.name)));
    }
    const std::string_view name = std::string_view(entry.name).substr(root.size());
    if (name == "constants.pkl" || name.starts_with("code/")) {
      fail(ErrorCode::unsupported, where,
           "is a TorchScript program, not a checkpoint: save its weights with torch.save(model.state_dict(), …)");
    }
    if (!entry.stored && (name == "data.pkl" || name.starts_with("data/"))) {
      fail(ErrorCode::unsupported, where,
           fmt::format("entry '{}': expected stored bytes, found compressed ones: torch.save never compresses, so save "
                       "the checkpoint again",
                       escaped(entry.name)));
    }
  }
  return root;
}

void check_byteorder(const ZipArchive& zip, const std::string& root, const std::string& where) {
  const ZipEntry* entry = zip.find(root + "byteorder");
  if (entry == nullptr) return;  // older files: little
  const std::string order = zip.read(*entry, kMaxByteorder);
  if (order == "little") return;
  fail(order == "big" ? ErrorCode::unsupported : ErrorCode::format, where,
       fmt::format("expected the byte order 'little', found '{}'", escaped(order)));
}

// A tensor's claim to a part of a storage.
class View {
 public:
  View(const PickledTensor& tensor, std::uint64_t elements, const std::string& where, const std::string& name)
      : tensor_(tensor), elements_(elements), where_(where), name_(name) {}

  /// All elements lie in the storage, and their number times their size fits.
  void check() const {
    std::uint64_t count = 1;
    bool empty = false;
    std::uint64_t last = unsigned_of(tensor_.offset, "offset");
    if (last > elements_) outside(last);
    for (std::size_t i = 0; i < tensor_.sizes.size(); ++i) {
      const std::uint64_t size = unsigned_of(tensor_.sizes[i], "size");
      const std::uint64_t stride = unsigned_of(tensor_.strides[i], "stride");
      empty = empty || size == 0;
      std::uint64_t reach = 0;
      // A product that overflows is refused even beside a zero: nothing sound writes it.
      if (size > 0 && (!checked_mul(count, size, count) || count > kLargest)) outside_numbers();
      if (size > 1 && (!checked_mul(size - 1, stride, reach) || !checked_add(last, reach, last))) outside_numbers();
    }
    if (!empty && last >= elements_) outside(last);
  }

  /// The stride of a dimension of one element is arbitrary in files, and 1 here.
  [[nodiscard]] std::vector<std::int64_t> strides() const {
    std::vector<std::int64_t> strides = tensor_.strides;
    for (std::size_t i = 0; i < strides.size(); ++i) strides[i] = tensor_.sizes[i] > 1 ? strides[i] : 1;
    return strides;
  }

 private:
  static constexpr std::uint64_t kLargest = std::uint64_t{1} << 60;  // times 8 bytes: still an int64
  [[noreturn]] void wrong(const std::string& text) const {
    fail(ErrorCode::format, where_, fmt::format("tensor {}: {}", escaped(name_), text));
  }
  [[noreturn]] void outside(std::uint64_t element) const {
    wrong(fmt::format("expected all elements inside its storage of {}, found element {}", elements_, element));
  }
  [[noreturn]] void outside_numbers() const {
    wrong(fmt::format("expected a tensor of at most 2^60 elements, found sizes [{}] with strides [{}]",
                      fmt::join(tensor_.sizes, ", "), fmt::join(tensor_.strides, ", ")));
  }
  [[nodiscard]] std::uint64_t unsigned_of(std::int64_t value, const char* what) const {
    if (value < 0) wrong(fmt::format("expected a {} of 0 or more, found {}", what, value));
    return static_cast<std::uint64_t>(value);
  }

  const PickledTensor& tensor_;
  std::uint64_t elements_;
  const std::string& where_;
  const std::string& name_;
};

// Storages in the order of the pickle, as entries of exactly their size.
std::vector<const ZipEntry*> find_storages(const ZipArchive& zip, const std::string& root,
                                           const std::vector<PickledStorage>& storages, const std::string& where) {
  std::vector<const ZipEntry*> entries;
  for (const PickledStorage& storage : storages) {
    const ZipEntry* entry = zip.find(fmt::format("{}data/{}", root, storage.key));
    if (entry == nullptr) {
      fail(ErrorCode::format, where,
           fmt::format("expected the zip entry '{}data/{}', found none", escaped(root), storage.key));
    }
    std::uint64_t bytes = 0;
    const bool fits = checked_mul(static_cast<std::uint64_t>(storage.elements),
                                  static_cast<std::uint64_t>(storage.type->item_bytes), bytes);
    if (!fits || bytes != entry->size) {
      fail(ErrorCode::format, where,
           fmt::format("zip entry '{}': expected {} elements of {} ({} bytes each), found {} bytes",
                       escaped(entry->name), storage.elements, storage.type->name, storage.type->item_bytes,
                       entry->size));
    }
    entries.push_back(entry);
  }
  return entries;
}

const Encoding* encoding_of(std::string_view type) {
  if (type == "torch.float8_e4m3fn") return find_encoding("F8_E4M3");
  if (type == "torch.float8_e5m2") return find_encoding("F8_E5M2");
  return nullptr;
}

}  // namespace

TensorTable read_pth(const std::shared_ptr<const File>& file) {
  const std::string where = escaped(file->name());
  refuse_other_files(*file, where);
  const ZipArchive zip(file);
  const std::string root = find_root(zip, where);
  check_byteorder(zip, root, where);
  const std::string bytes = zip.read(*zip.find(root + "data.pkl"), kMaxPickleBytes);
  const PickledState state = read_pickle(bytes, where);
  const std::vector<const ZipEntry*> entries = find_storages(zip, root, state.storages, where);

  TensorTable table;
  for (const auto& [name, tensor] : state.tensors) {
    const auto item = static_cast<std::uint64_t>(tensor.type->item_bytes);
    const View view(tensor, entries[tensor.storage]->size / item, where, name);
    view.check();
    StoredTensor stored;
    stored.dtype_name = tensor.type->name;
    stored.dtype = tensor.type->dtype;
    stored.encoding = encoding_of(tensor.type->name);
    stored.shape = tensor.sizes;
    stored.strides = view.strides();
    stored.offset = entries[tensor.storage]->offset + static_cast<std::uint64_t>(tensor.offset) * item;
    stored.file = file;
    table.emplace(name, std::move(stored));
  }
  return table;
}

void check_pth_payloads(const std::shared_ptr<const File>& file) {
  const ZipArchive zip(file);
  const std::string data = find_root(zip, escaped(file->name())) + "data/";
  for (const ZipEntry& entry : zip.entries()) {
    if (entry.name.starts_with(data)) zip.check_crc(entry);
  }
}

}  // namespace swiglu::files
