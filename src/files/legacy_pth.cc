// read_legacy_pth: what torch.save wrote before PyTorch 1.6, and writes still if asked to. Five pickles in a row (a
// magic number, a version, the writing machine, the state dict, the keys of its storages), then each storage as a
// count of elements and the elements. Nothing is executed, and no payload is read.
#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"
#include "files/little_endian.h"
#include "files/pickle_machine.h"
#include "files/pth.h"

namespace swiglu::files {
namespace {

using pickle::Index;
using pickle::Kind;
using pickle::Machine;

constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";  // as LONG1 holds it
constexpr std::string_view kMagicDigits = "119547037146038801333356";
constexpr std::int64_t kVersion = 1001;
constexpr std::uint64_t kCountBytes = 8;

void check_magic(const Machine& machine, Index root) {
  const bool huge = machine.node(root).kind == Kind::big_integer;
  if (huge && (machine.text(root) == kMagic || machine.text(root) == kMagicDigits)) return;
  machine.fail(fmt::format(
      "expected the magic number of PyTorch's format before 1.6, found {}: torch.save did not write this file",
      huge ? "another number" : machine.describe(root)));
}

void check_version(const Machine& machine, Index root) {
  const bool number = machine.node(root).kind == Kind::integer;
  if (number && machine.node(root).integer == kVersion) return;
  machine.fail(fmt::format("expected version {} of PyTorch's format before 1.6, found {}", kVersion,
                           number ? fmt::format("version {}", machine.node(root).integer) : machine.describe(root)),
               ErrorCode::unsupported);
}

// A dict of what the writing machine was like. Only its byte order says something about the file.
void check_system(const Machine& machine, Index root) {
  std::optional<bool> little;
  if (machine.node(root).kind == Kind::dict) {
    const std::vector<Index> entries = machine.items(root);
    for (std::size_t i = 0; i < entries.size(); i += 2) {
      const bool named = machine.node(entries[i]).kind == Kind::string && machine.text(entries[i]) == "little_endian";
      if (named && machine.node(entries[i + 1]).kind == Kind::boolean)
        little = machine.node(entries[i + 1]).integer != 0;
    }
  }
  if (!little) {
    machine.fail(fmt::format("expected a dict with a boolean 'little_endian', found {}{}", machine.describe(root),
                             machine.node(root).kind == Kind::dict ? " without one" : ""));
  }
  if (!*little) {
    machine.fail(
        "expected the byte order little-endian, found big-endian: load the file where it was written and save "
        "it again with a PyTorch from 1.6 on",
        ErrorCode::unsupported);
  }
}

std::vector<std::string> keys_of(const Machine& machine, Index root) {
  if (machine.node(root).kind != Kind::list)
    machine.fail(fmt::format("expected a list of storage keys, found {}", machine.describe(root)));
  std::vector<std::string> keys;
  for (const Index key : machine.items(root)) {
    if (machine.node(key).kind != Kind::string)
      machine.fail(fmt::format("expected a string as a storage key, found {}", machine.describe(key)));
    keys.emplace_back(machine.text(key));
  }
  return keys;
}

struct Pickles {
  PickledState state;
  std::vector<std::string> keys;
  std::uint64_t end = 0;  // where the storages begin
};

Pickles read_pickles(const File& file, const std::string& where) {
  // Where the pickles end is known only when they have been read; what follows them in the buffer is dropped.
  std::string bytes(std::min(file.size(), kMaxPickleBytes), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  Pickles pickles;
  std::size_t position = 0;
  const auto next = [&](const auto& use) {
    Machine machine(bytes, position, PickleForm::plain, where);
    const Index root = machine.run();
    use(machine, root);
    position = machine.position();
  };
  next(check_magic);
  next(check_version);
  next(check_system);
  next([&](Machine& machine, Index root) { pickles.state = machine.collect(root); });
  next([&](const Machine& machine, Index root) { pickles.keys = keys_of(machine, root); });
  pickles.end = position;
  return pickles;
}

// Goes through the storages as they lie in the file.
class StorageRow {
 public:
  StorageRow(const File& file, const Pickles& pickles, const std::string& where)
      : file_(file), storages_(pickles.state.storages), where_(where), position_(pickles.end) {}

  /// Where each storage begins, windows included.
  std::vector<std::uint64_t> place(const std::vector<std::string>& keys) {
    std::map<std::string_view, std::size_t> wanted;
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      if (!storages_[i].window) wanted.emplace(storages_[i].key, i);
    }
    std::vector<std::uint64_t> offsets(storages_.size());
    std::size_t passed = 0;
    for (; passed < keys.size() && !wanted.empty(); ++passed) {
      const auto found = wanted.find(keys[passed]);
      if (found == wanted.end()) {
        fail(fmt::format("expected the key of a storage that is still to come, found '{}' in the list of storages",
                         escaped(keys[passed])));
      }
      offsets[found->second] = pass(storages_[found->second]);
      wanted.erase(found);
    }
    if (!wanted.empty())
      fail(fmt::format("expected storage {} in the list of storages, found none", wanted.begin()->first));
    // Storages that nothing uses have no type, so their sizes are unknown: they pass at the end only.
    if (passed == keys.size() && position_ != file_.size()) {
      fail(fmt::format("expected the end of the file after its {} storages, found {} more bytes", passed,
                       file_.size() - position_));
    }
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      const auto& window = storages_[i].window;
      if (window) offsets[i] = offsets[window->root] + bytes_of(storages_[i], window->begin).value();
    }
    return offsets;
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw Error(ErrorCode::format, fmt::format("{}: {}", where_, text));
  }
  [[nodiscard]] static std::optional<std::uint64_t> bytes_of(const PickledStorage& storage, std::int64_t elements) {
    std::uint64_t bytes = 0;
    if (!checked_mul(static_cast<std::uint64_t>(elements), static_cast<std::uint64_t>(storage.type->item_bytes), bytes))
      return std::nullopt;
    return bytes;
  }

  // Where the storage's elements begin; the row goes on behind them.
  std::uint64_t pass(const PickledStorage& storage) {
    const std::uint64_t left = file_.size() - position_;
    const auto elements = static_cast<std::uint64_t>(storage.elements);
    const auto bytes = bytes_of(storage, storage.elements);
    if (left < kCountBytes || !bytes || *bytes > left - kCountBytes) {
      fail(
          fmt::format("is truncated or damaged: expected {} elements of {} and their number at byte {} as storage {}, "
                      "found {} bytes",
                      elements, storage.type->name, position_, storage.key, left));
    }
    std::byte raw[kCountBytes];
    file_.read(position_, raw);
    const std::uint64_t count = from_little_endian(raw);
    if (count != elements) {
      fail(fmt::format("storage {}: expected {} elements as in the state dict, found {}", storage.key, elements,
                       static_cast<std::int64_t>(count)));
    }
    const std::uint64_t start = position_ + kCountBytes;
    position_ = start + *bytes;
    return start;
  }

  const File& file_;
  const std::vector<PickledStorage>& storages_;
  const std::string& where_;
  std::uint64_t position_;
};

}  // namespace

TensorTable read_legacy_pth(const std::shared_ptr<const File>& file) {
  const std::string where = escaped(file->name());
  const Pickles pickles = read_pickles(*file, where);
  return place_tensors(pickles.state, StorageRow(*file, pickles, where).place(pickles.keys), file);
}

}  // namespace swiglu::files
