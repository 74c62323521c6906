// GGUF files as checkpoints: one file, or the first of a split set whose other parts lie beside it. What the keys say
// is gguf_config.cc's, what the tensors make up is layers.cc's.
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"
#include "files/checkpoint.h"
#include "files/gguf_config.h"
#include "files/names.h"

namespace swiglu::files {
namespace {

constexpr std::int64_t kMaxParts = 65535;

/// The parts of a model, each a whole GGUF file with its own tensors; the first has the model's keys.
class PartReader {
 public:
  PartReader(GgufFile& first, Contents& contents, const Opening& opening)
      : first_(first), contents_(contents), opening_(opening), where_(escaped(first_.file->name())) {}

  /// The first part is left without its tensors.
  TensorTable read() {
    const std::int64_t count = number(first_, "split.count").value_or(0);
    const std::int64_t position = number(first_, "split.no").value_or(0);
    total_ = number(first_, "split.tensors.count");
    if (count < 0 || count > kMaxParts || position < 0 || position >= std::max<std::int64_t>(count, 1)) {
      fail(where_, fmt::format("expected split.no below split.count, and this at most {}, found {} and {}", kMaxParts,
                               position, count));
    }
    if (position != 0) {
      fail(where_, fmt::format("part {} of {}: open the first part", position + 1, count), ErrorCode::usage);
    }
    add(first_);
    if (count > 1) read_others(count);
    if (total_ && *total_ != std::ssize(table_) && missing_.empty()) {
      report(contents_, opening_,
             Error(ErrorCode::format, fmt::format("{}: split.tensors.count is {}, but the {} parts have {}", where_,
                                                  *total_, std::max<std::int64_t>(count, 1), table_.size())));
    }
    return std::move(table_);
  }

 private:
  [[noreturn]] static void fail(const std::string& where, const std::string& reason,
                                ErrorCode code = ErrorCode::format) {
    throw Error(code, where + ": " + reason);
  }

  /// An integer of any width: programs differ in which they write.
  static std::optional<std::int64_t> number(const GgufFile& file, std::string_view key) {
    const GgufPair* pair = file.find(key);
    if (pair == nullptr) return std::nullopt;
    const auto value = pair->integer();
    if (!value)
      fail(escaped(file.file->name()), fmt::format("{}: expected an integer, found {}", key, pair->describe()));
    return value;
  }

  void add(GgufFile& part) {
    ++contents_.shards;
    contents_.size_bytes += part.file->size();
    contents_.origin.files.push_back({part.file->path().filename().string(), part.file->size()});
    while (!part.tensors.empty()) {
      const auto added = table_.insert(part.tensors.extract(part.tensors.begin()));
      if (added.inserted) continue;
      fail(escaped(part.file->name()), fmt::format("tensor {} is also in {}", escaped(added.node.key()),
                                                   escaped(added.position->second.file->path().filename().string())));
    }
  }

  void read_others(std::int64_t count) {
    const std::filesystem::path& path = first_.file->path();
    const std::string name = path.filename().string();
    const auto tail = [&](std::int64_t number) { return fmt::format("-{:05}-of-{:05}.gguf", number, count); };
    if (!name.ends_with(tail(1))) {
      fail(where_, fmt::format("expected a name ending in {}, as split.count is {}: the other parts are found by it",
                               tail(1), count));
    }
    const std::string prefix = name.substr(0, name.size() - tail(1).size());
    for (std::int64_t i = 1; i < count; ++i) {
      const std::filesystem::path other = path.parent_path() / (prefix + tail(i + 1));
      std::error_code ignored;
      if (!std::filesystem::exists(other, ignored)) {
        missing_.push_back(i + 1);
        continue;
      }
      GgufFile part = read_gguf(opening_.file(other));
      check(part, i, count);
      add(part);
    }
    if (!missing_.empty()) {
      report(contents_, opening_,
             Error(ErrorCode::not_found,
                   fmt::format("{}: missing beside it: part {} of {} ({})", where_, ranges_text(missing_), count,
                               escaped(prefix + tail(missing_.front())))));
    }
  }

  void check(const GgufFile& part, std::int64_t position, std::int64_t count) const {
    const auto expect = [&](std::string_view key, std::int64_t expected, bool required) {
      const auto found = number(part, key);
      if (found == expected || (!found && !required)) return;
      fail(escaped(part.file->name()),
           fmt::format("{}: expected {}, found {}", key, expected, found ? std::to_string(*found) : "nothing"));
    };
    expect("split.no", position, true);
    expect("split.count", count, true);
    if (total_) expect("split.tensors.count", *total_, false);
  }

  GgufFile& first_;
  Contents& contents_;
  const Opening& opening_;
  std::string where_;
  std::optional<std::int64_t> total_;
  std::vector<std::int64_t> missing_;  // counted from 1, as in the names
  TensorTable table_;
};

}  // namespace

Contents open_gguf(const std::filesystem::path& path, const Opening& opening) {
  GgufFile first = read_gguf(opening.file(path));
  Contents contents;
  contents.format = "gguf";
  Weights weights;
  weights.where = escaped(path.string());
  weights.table = PartReader(first, contents, opening).read();
  std::map<std::int64_t, LayerNames> layers = find_layers(weights.table);
  if (layers.empty()) {  // a vocabulary, say: the keys of a model need not be there
    build_layers(contents, weights, {}, nullptr, opening);
    return contents;
  }
  const GgufConfig config = read_gguf_config(first, opening);
  contents.family = config.family;
  contents.config.eps = config.eps;
  contents.notes = config.notes;
  build_layers(contents, weights, std::move(layers), &config.stated, opening);
  return contents;
}

}  // namespace swiglu::files
