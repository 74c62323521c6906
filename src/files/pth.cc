// read_pth: which of PyTorch's containers a file is, and the newer one, a zip archive and the pickle in it, put
// together. Every storage the pickle names must be an entry of exactly its size. Nothing is executed, and no payload
// is read.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"
#include "files/pickle.h"
#include "files/pth.h"
#include "files/zip.h"

namespace swiglu::files {
namespace {

constexpr std::string_view kPickle = "/data.pkl";
constexpr std::uint64_t kMaxByteorder = 16;

[[noreturn]] void fail(ErrorCode code, const std::string& where, const std::string& text) {
  throw Error(code, fmt::format("{}: {}", where, text));
}

[[noreturn]] void refuse_other_file(const std::string& kind, const std::string& where) {
  if (kind.starts_with("a tar")) {
    fail(ErrorCode::unsupported, where,
         "expected a PyTorch checkpoint, found a tar archive (PyTorch's format before 0.2): load it with a later "
         "PyTorch and save it again with torch.save");
  }
  fail(ErrorCode::format, where,
       fmt::format("is truncated or not a PyTorch checkpoint: expected a zip archive or a pickle, found {}",
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

// Where the storages of the pickle begin: each is an entry of exactly its size.
std::vector<std::uint64_t> place_storages(const ZipArchive& zip, const std::string& root,
                                          const std::vector<PickledStorage>& storages, const std::string& where) {
  std::vector<std::uint64_t> offsets;
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
    offsets.push_back(entry->offset);
  }
  return offsets;
}

TensorTable read_zip_pth(const std::shared_ptr<const File>& file, const std::string& where) {
  const ZipArchive zip(file);
  const std::string root = find_root(zip, where);
  check_byteorder(zip, root, where);
  const std::string bytes = zip.read(*zip.find(root + "data.pkl"), kMaxPickleBytes);
  const PickledState state = read_pickle(bytes, where);
  return place_tensors(state, place_storages(zip, root, state.storages, where), file);
}

}  // namespace

TensorTable read_pth(const std::shared_ptr<const File>& file) {
  const std::string where = escaped(file->name());
  const std::string kind = describe_contents(*file);
  if (kind == "a zip archive") return read_zip_pth(file, where);
  if (kind.starts_with("a bare pickle")) return read_legacy_pth(file);
  refuse_other_file(kind, where);
}

void check_pth_payloads(const std::shared_ptr<const File>& file) {
  if (describe_contents(*file) != "a zip archive") return;
  const ZipArchive zip(file);
  const std::string data = find_root(zip, escaped(file->name())) + "data/";
  for (const ZipEntry& entry : zip.entries()) {
    if (entry.name.starts_with(data)) zip.check_crc(entry);
  }
}

}  // namespace swiglu::files
