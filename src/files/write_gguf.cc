// GGUF files with the feed-forward tensors of a Llama model: version 3, alignment 32, the keys that llama.cpp's
// converter writes but for the vocabulary's. Several files hold whole tensors each; the first one holds the keys too.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "files/conversion.h"
#include "files/little_endian.h"
#include "files/quantize.h"
#include "files/tensor_stream.h"

namespace swiglu::files {
namespace {

constexpr std::int64_t kAlignment = 32;

constexpr std::int64_t aligned(std::int64_t bytes) noexcept {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Key/value pairs, counted.
class Pairs {
 public:
  void text(std::string_view name, std::string_view value) { key(name, 8).u64(value.size()).put(value); }
  void u16(std::string_view name, std::uint64_t value) { key(name, 2).u16(value); }
  void u32(std::string_view name, std::int64_t value) { key(name, 4).u32(static_cast<std::uint64_t>(value)); }
  void i32(std::string_view name, std::int64_t value) { key(name, 5).u32(static_cast<std::uint64_t>(value)); }
  void f32(std::string_view name, float value) { key(name, 6).f32(value); }
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  [[nodiscard]] std::string take() { return bytes_.take(); }

 private:
  Bytes& key(std::string_view name, std::uint64_t type) {
    ++count_;
    return bytes_.u64(name.size()).put(name).u32(type);
  }
  Bytes bytes_;
  std::uint64_t count_ = 0;
};

std::uint64_t tensor_id(TensorType type) {
  constexpr std::uint64_t kIds[] = {0, 30, 1, 28, 8, 2};
  return kIds[static_cast<int>(type)];
}

// general.file_type, which says what most of the matrices are.
std::int64_t file_type(TensorType type) {
  constexpr std::int64_t kTypes[] = {0, 32, 1, 0, 7, 2};
  return kTypes[static_cast<int>(type)];
}

void add_model(Pairs& pairs, const CheckpointRecipe& recipe, const std::vector<OutputTensor>& tensors) {
  const std::int64_t heads = plausible_heads(recipe.config.dim);
  pairs.text("general.architecture", "llama");
  pairs.text("general.type", "model");
  pairs.text("general.name", recipe.name);
  pairs.text("swiglu.tensors", kOnlyFeedForward);
  pairs.u32("llama.block_count", recipe.layers);
  pairs.u32("llama.context_length", 8192);
  pairs.u32("llama.embedding_length", recipe.config.dim);
  pairs.u32("llama.feed_forward_length", recipe.config.hidden);
  pairs.u32("llama.attention.head_count", heads);
  pairs.u32("llama.attention.head_count_kv", plausible_kv_heads(heads));
  pairs.f32("llama.rope.freq_base", 500000.0F);
  pairs.f32("llama.attention.layer_norm_rms_epsilon", static_cast<float>(recipe.config.eps));
  pairs.u32("llama.vocab_size", 128256);
  pairs.u32("llama.rope.dimension_count", recipe.config.dim / heads);
  pairs.u32("general.file_type", file_type(tensors.front().stored));
  const auto blocks = [](const OutputTensor& tensor) { return is_quantized(tensor.stored); };
  if (std::any_of(tensors.begin(), tensors.end(), blocks)) pairs.u32("general.quantization_version", 2);
}

// Everything in front of the data, which begins where this ends.
std::string header(Pairs pairs, const std::vector<OutputTensor>& tensors) {
  Bytes out;
  out.put("GGUF").u32(3).u64(tensors.size()).u64(pairs.count()).put(pairs.take());
  std::int64_t offset = 0;
  for (const OutputTensor& tensor : tensors) {
    out.u64(tensor.name.size()).put(tensor.name).u32(tensor.is_vector() ? 1 : 2);
    out.u64(static_cast<std::uint64_t>(tensor.cols));  // the fastest index first
    if (!tensor.is_vector()) out.u64(static_cast<std::uint64_t>(tensor.rows));
    out.u32(tensor_id(tensor.stored)).u64(static_cast<std::uint64_t>(offset));
    offset += aligned(tensor.bytes());
  }
  const auto size = static_cast<std::int64_t>(out.size());
  return out.put(std::string(static_cast<std::size_t>(aligned(size) - size), '\0')).take();
}

// Types as GGUF's readers expect them, and a note for each kind of change.
std::vector<std::string> settle_types(std::vector<OutputTensor>& tensors) {
  std::vector<std::string> notes;
  const auto note = [&](std::string text) {
    if (std::find(notes.begin(), notes.end(), text) == notes.end()) notes.push_back(std::move(text));
  };
  for (OutputTensor& tensor : tensors) {
    if (tensor.is_vector()) {
      tensor.stored = TensorType::f32;  // what readers compute norms in; nobody expects another
      if (tensor.given == DType::f64) note("norm: f64 is rounded to f32, which GGUF's readers expect");
    } else if (tensor.stored == TensorType::f64) {
      tensor.stored = TensorType::f32;
      note(fmt::format("{}: f64 is rounded to f32, since few readers of GGUF know f64", tensor.role));
    } else if (is_quantized(tensor.stored) && tensor.cols % kQuantBlock != 0) {
      note(fmt::format("{}: rows of {} elements are no multiple of {}: f16 instead of {}", tensor.role, tensor.cols,
                       kQuantBlock, name_of(tensor.stored)));
      tensor.stored = TensorType::f16;
    }
  }
  return notes;
}

void check_recipe(const CheckpointRecipe& recipe) {
  constexpr std::int64_t kMost = 0xffffffff;  // keys for sizes are u32
  if (recipe.config.dim > kMost || recipe.config.hidden > kMost) {
    throw Error(ErrorCode::usage, fmt::format("GGUF holds sizes up to {}, found dim {} and hidden {}", kMost,
                                              recipe.config.dim, recipe.config.hidden));
  }
  const auto eps = static_cast<float>(recipe.config.eps);
  if (!(eps > 0) || !std::isfinite(eps)) {
    throw Error(ErrorCode::usage,
                fmt::format("GGUF holds eps as f32, which {} does not fit", json_number(recipe.config.eps)));
  }
}

}  // namespace

WrittenCheckpoint write_gguf(OutputFolder& folder, const std::string& name, const CheckpointRecipe& recipe,
                             const FillTensor& fill) {
  check_recipe(recipe);
  std::vector<OutputTensor> tensors =
      whole_tensors(recipe, {"blk.", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "ffn_norm.weight"});
  std::vector<std::string> notes = settle_types(tensors);
  const auto count = std::ssize(tensors);
  Pairs model;
  add_model(model, recipe, tensors);
  TensorStream stream(recipe, fill, total_bytes(tensors));
  const auto shards = distribute(std::move(tensors), recipe);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    Pairs pairs = i == 0 ? model : Pairs();  // the others have none of the model's keys
    if (shards.size() > 1) {
      pairs.u16("split.no", i);
      pairs.u16("split.count", shards.size());
      pairs.i32("split.tensors.count", count);
    }
    folder.add(weight_file_name(name, i, shards.size(), "gguf"), [&](OutputFile& file) {
      file.write(header(std::move(pairs), shards[i]));
      for (const OutputTensor& tensor : shards[i]) {
        stream.append(file, tensor);
        const std::int64_t size = tensor.bytes();  // after the last one too: ggml asks for it
        file.write(std::string(static_cast<std::size_t>(aligned(size) - size), '\0'));
      }
    });
  }
  WrittenCheckpoint written = stream.written();
  written.notes = std::move(notes);
  return written;
}

}  // namespace swiglu::files
