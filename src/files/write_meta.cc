// A Meta folder with the feed-forward tensors of a Llama model: consolidated.NN.pth as torch.save writes
// them (a zip of STORED entries: one pickle, and each tensor's bytes 64-byte aligned), split over shards
// by model parallelism (w1, w3 by rows, w2 by columns, the norm everywhere), and last params.json. The
// zip and the pickle are written by hand, front to back, with zip64 fields where sizes demand them.
#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <zlib.h>

#include "files/little_endian.h"
#include "files/tensor_stream.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kMax32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kMax16 = std::numeric_limits<std::uint16_t>::max();
constexpr unsigned kFlags = 0x0808;    // sizes and CRC follow the payload; the name is UTF-8
constexpr unsigned kDosDate = 0x0021;  // 1980-01-01: the same input makes the same file
constexpr unsigned kVersion = 45;      // the zip version that knows zip64

// A zip archive as PyTorch lays it out.
class ZipWriter {
 public:
  ZipWriter(OutputFile& file, std::string root) : file_(file), root_(std::move(root)) {}

  /// Adds an entry whose payload is the `size` bytes that `make` appends; `make` gets the function that
  /// must see all of them.
  using Seen = std::function<void(std::span<const std::byte>)>;
  void add(const std::string& name, std::uint64_t size, const std::function<void(const Seen&)>& make) {
    Entry entry{.name = root_ + "/" + name, .offset = file_.position(), .size = size, .crc = 0};
    file_.write(local_header(entry));
    uLong crc = crc32(0, nullptr, 0);
    make([&](std::span<const std::byte> bytes) {
      crc = crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
    });
    entry.crc = crc;
    const unsigned width = size >= kMax32 ? 8 : 4;
    file_.write(Bytes().put("PK\x07\x08").u32(entry.crc).number(size, width).number(size, width).take());
    entries_.push_back(std::move(entry));
  }
  void add(const std::string& name, std::string_view text) {
    add(name, text.size(), [&](const Seen& seen) {
      seen(std::as_bytes(std::span(text)));
      file_.write(text);
    });
  }

  /// The central directory and its end records; zip64's are always there, as in PyTorch's files.
  void finish() {
    const std::uint64_t start = file_.position();
    for (const Entry& entry : entries_) file_.write(directory_entry(entry));
    const std::uint64_t end = file_.position();
    const std::uint64_t count = entries_.size();
    Bytes out;
    out.put("PK\x06\x06").u64(44).u16(kVersion).u16(kVersion).u32(0).u32(0);
    out.u64(count).u64(count).u64(end - start).u64(start);
    out.put("PK\x06\x07").u32(0).u64(end).u32(1);
    out.put("PK\x05\x06").u16(0).u16(0).u16(std::min(count, kMax16)).u16(std::min(count, kMax16));
    out.u32(std::min(end - start, kMax32)).u32(std::min(start, kMax32)).u16(0);
    file_.write(out.take());
  }

 private:
  struct Entry {
    std::string name;
    std::uint64_t offset;
    std::uint64_t size;
    std::uint64_t crc;
  };

  // Ends with a field "FB" of as many Z as bring the payload to a multiple of 64.
  static std::string local_header(const Entry& entry) {
    Bytes extra;
    if (entry.size >= kMax32) extra.u16(1).u16(16).u64(entry.size).u64(entry.size);
    std::string fields = extra.take();
    const std::uint64_t payload = entry.offset + 30 + entry.name.size() + fields.size() + 4;
    const std::uint64_t fill = (64 - payload % 64) % 64;
    fields += Bytes().put("FB").u16(fill).put(std::string(fill, 'Z')).take();
    const std::uint64_t size = entry.size >= kMax32 ? kMax32 : 0;  // 0: the descriptor behind the payload has it
    Bytes out;
    out.put("PK\x03\x04").u16(kVersion).u16(kFlags).u16(0).u16(0).u16(kDosDate).u32(0).u32(size).u32(size);
    return out.u16(entry.name.size()).u16(fields.size()).put(entry.name).put(fields).take();
  }

  static std::string directory_entry(const Entry& entry) {
    Bytes wide;
    if (entry.size >= kMax32) wide.u64(entry.size).u64(entry.size);
    if (entry.offset >= kMax32) wide.u64(entry.offset);
    const std::string values = wide.take();
    const std::string fields = values.empty() ? "" : Bytes().u16(1).u16(values.size()).put(values).take();
    const std::uint64_t size = std::min(entry.size, kMax32);
    Bytes out;
    out.put("PK\x01\x02").u16(kVersion).u16(kVersion).u16(kFlags).u16(0).u16(0).u16(kDosDate);
    out.u32(entry.crc).u32(size).u32(size).u16(entry.name.size()).u16(fields.size()).u16(0).u16(0).u16(0);
    return out.u32(0).u32(std::min(entry.offset, kMax32)).put(entry.name).put(fields).take();
  }

  OutputFile& file_;
  std::string root_;
  std::vector<Entry> entries_;
};

// Pickle protocol 2: a dict from names to tensors, built as torch.save builds it.
class TensorPickle {
 public:
  TensorPickle() { out_.put("\x80\x02}("); }

  void add(const OutputTensor& tensor, std::size_t key) {
    if (key > 0 && key % 1000 == 0) out_.put("u(");  // in batches, as Python does: readers' stacks stay small
    text(tensor.name);
    global(kRebuild, "torch._utils\n_rebuild_tensor_v2");
    out_.put("((");
    memoised(kStorageWord, [&] { text("storage"); });
    storage(tensor.stored);
    text(fmt::format("{}", key));
    memoised(kCpu, [&] { text("cpu"); });
    integer(tensor.rows * tensor.cols);
    out_.put("tQ");  // the persistent id
    integer(0);      // where in the storage the tensor begins
    for (const bool strides : {false, true}) {
      if (!tensor.is_vector()) integer(strides ? tensor.cols : tensor.rows);
      integer(strides ? 1 : tensor.cols);
      out_.put(tensor.is_vector() ? "\x85" : "\x86");
    }
    out_.put("\x89");  // requires_grad
    global(kOrderedDict, "collections\nOrderedDict");
    out_.put(")RtR");  // no hooks; call
  }
  [[nodiscard]] std::string finish() { return out_.put("u.").take(); }

 private:
  enum Memo : unsigned { kRebuild, kStorageWord, kStorage, kCpu, kOrderedDict, kOtherStorages };

  // The commonest case, one type for all, has the numbers that Python's pickle gives.
  void storage(TensorType type) {
    constexpr const char* kNames[] = {"Float", "BFloat16", "Half", "Double"};
    if (!first_type_) first_type_ = type;
    const auto index = static_cast<unsigned>(type);
    const unsigned memo = *first_type_ == type ? kStorage : kOtherStorages + index;
    global(memo, fmt::format("torch\n{}Storage", kNames[index]));
  }
  // Says a thing the first time and refers to it afterwards.
  template <typename Say>
  void memoised(unsigned memo, Say say) {
    if (std::exchange(said_[memo], true)) {
      out_.put("h").u8(memo);
    } else {
      say();
      out_.put("q").u8(memo);
    }
  }
  void global(unsigned memo, std::string_view name) {
    memoised(memo, [&] { out_.put("c").put(name).put("\n"); });
  }
  void text(std::string_view value) { out_.put("X").u32(value.size()).put(value); }
  void integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (bits < 0x100)
      out_.put("K").u8(bits);
    else if (bits < 0x10000)
      out_.put("M").u16(bits);
    else if (bits < 0x80000000U)
      out_.put("J").u32(bits);
    else
      out_.put("\x8a\x08").u64(bits);
  }

  Bytes out_;
  std::optional<TensorType> first_type_;
  bool said_[kOtherStorages + 4] = {};
};

std::vector<OutputTensor> shard_tensors(const CheckpointRecipe& recipe, std::int64_t shard) {
  const std::int64_t dim = recipe.config.dim;
  const std::int64_t part = recipe.config.hidden / recipe.shards;
  std::vector<OutputTensor> tensors;
  for (std::int64_t i = 0; i < recipe.layers; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    const auto add = [&](const char* name, const char* role, std::int64_t row0, std::int64_t rows, std::int64_t col0,
                         std::int64_t cols) {
      tensors.push_back(
          {.name = layer + name, .layer = i, .role = role, .row0 = row0, .rows = rows, .col0 = col0, .cols = cols});
      set_types(tensors.back(), recipe);
    };
    add("feed_forward.w1.weight", "gate", shard * part, part, 0, dim);
    add("feed_forward.w2.weight", "down", 0, dim, shard * part, part);
    add("feed_forward.w3.weight", "up", shard * part, part, 0, dim);
    add("ffn_norm.weight", "norm", 0, 1, 0, dim);
  }
  return tensors;
}

void write_shard(OutputFile& file, const std::string& root, const std::vector<OutputTensor>& tensors,
                 TensorStream& stream) {
  ZipWriter zip(file, root);
  TensorPickle pickle;
  for (std::size_t i = 0; i < tensors.size(); ++i) pickle.add(tensors[i], i);
  zip.add("data.pkl", pickle.finish());
  zip.add("byteorder", "little");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    zip.add(fmt::format("data/{}", i), static_cast<std::uint64_t>(tensors[i].bytes()),
            [&](const ZipWriter::Seen& seen) { stream.append(file, tensors[i], seen); });
  }
  zip.add("version", "3\n");
  zip.add("swiglu.tensors", std::string(kOnlyFeedForward) + "\n");  // readers look for the records they know
  zip.finish();
}

// The recipe of the width when it gives this width, as in Meta's releases; else the width itself, as in
// Meta's pruned ones. Attention and vocabulary are not in these files; their numbers are plausible ones.
std::string params_json(const CheckpointRecipe& recipe) {
  const auto [dim, hidden, eps] = recipe.config;
  std::string width = fmt::format("\"hidden_dim\": {}", hidden);
  if (ffn_width(dim, recipe.multiple_of, recipe.multiplier) == hidden) {
    width = fmt::format("\"multiple_of\": {}", recipe.multiple_of);
    if (recipe.multiplier) width += fmt::format(", \"ffn_dim_multiplier\": {}", json_number(*recipe.multiplier));
  }
  const std::int64_t heads = plausible_heads(dim);
  return fmt::format(
      "{{\"dim\": {}, \"n_layers\": {}, \"n_heads\": {}, \"n_kv_heads\": {}, \"vocab_size\": 128256, {}, "
      "\"norm_eps\": {}, \"rope_theta\": 500000.0}}\n",
      dim, recipe.layers, heads, plausible_kv_heads(heads), width, json_number(eps));
}

// Refuses counts of shards that cut w1 unevenly, and names those that do not.
void check_shards(const CheckpointRecipe& recipe) {
  constexpr int kMaxShards = 100;  // consolidated.00 to .99
  if (recipe.shards <= kMaxShards && recipe.config.hidden % recipe.shards == 0) return;
  std::string good;
  for (int count = 1; count <= kMaxShards; ++count) {
    if (recipe.config.hidden % count == 0) good += fmt::format("{}{}", count == 1 ? "" : ", ", count);
  }
  throw Error(ErrorCode::usage,
              fmt::format("write_checkpoint: hidden {} cannot be split into {} shards; expected one of {}",
                          recipe.config.hidden, recipe.shards, good));
}

}  // namespace

WrittenCheckpoint write_meta(OutputFolder& folder, const CheckpointRecipe& recipe, const FillTensor& fill) {
  check_shards(recipe);
  // Checks the recipe of the width before anything is written.
  const std::string params = recipe.description ? *recipe.description : params_json(recipe);
  const std::int64_t total = recipe.shards * total_bytes(shard_tensors(recipe, 0));  // all shards have the same shapes
  TensorStream stream(recipe, fill, total);
  for (std::int64_t shard = 0; shard < recipe.shards; ++shard) {
    const std::string root = fmt::format("consolidated.{:02}", shard);
    folder.add(root + ".pth", [&](OutputFile& file) { write_shard(file, root, shard_tensors(recipe, shard), stream); });
  }
  folder.add("params.json", [&](OutputFile& file) { file.write(params); });
  return stream.written();
}

}  // namespace swiglu::files
