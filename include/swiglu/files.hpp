// Files beside checkpoints: .npy arrays in and out, and writers that make a checkpoint.
// Every output is written under a temporary name in the target's folder and renamed when complete,
// so a failure leaves no partial file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "swiglu/swiglu.hpp"

#pragma GCC visibility push(default)
namespace swiglu {

/// An array in C order and native byte order. bf16 values are held as their 16-bit patterns.
struct Array {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

/// Reads .npy version 1, 2 or 3: f2, f4, f8 of either byte order, V2 as bf16, Fortran order transposed.
/// With `u2_is_bf16`, u2 is taken for bf16 bit patterns; without, it is refused. Refuses trailing
/// bytes, pickled and structured types, and everything malformed (format, unsupported).
[[nodiscard]] Array read_npy(const std::filesystem::path& path, bool u2_is_bf16 = false);

/// Writes version 1.0, C order; bf16 as '<V2'. `bytes` holds the elements, little-endian.
void write_npy(const std::filesystem::path& path, DType dtype, std::span<const std::int64_t> shape,
               std::span<const std::byte> bytes);

/// A file that is to appear under its name only when it is complete. Made at once, so that what cannot be
/// written is refused before the work whose result it is to hold.
class NewFile {
 public:
  /// Throws io, or not_found for a missing folder. Replaces a regular file only, and only on commit().
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();  ///< without commit() nothing is left
  NewFile(NewFile&&) noexcept;
  NewFile& operator=(NewFile&&) noexcept;
  void write(std::string_view text);
  void commit();

 private:
  struct [[gnu::visibility("hidden")]] Impl;
  std::unique_ptr<Impl> impl_;
};

/// A file of packed layers: opened by Checkpoint::open, run without packing, shared between processes by
/// OpenOptions::map. docs/formats.md describes it. Takes memory for one layer's tables, not for its weights.
class PackedWriter {
 public:
  /// `model` gives the shape, the family and the names and sizes of the source files. Throws as NewFile does.
  PackedWriter(const std::filesystem::path& path, const Checkpoint& model);
  ~PackedWriter();
  PackedWriter(PackedWriter&&) noexcept;
  PackedWriter& operator=(PackedWriter&&) noexcept;
  /// Appends layer number `layer`; numbers ascend. `norm` has dim elements. `progress` as in Options, in bytes.
  void add(std::int64_t layer, const PackedSource& packed, std::span<const float> norm,
           const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});
  void commit();

 private:
  struct [[gnu::visibility("hidden")]] Impl;
  std::unique_ptr<Impl> impl_;
};

/// How a tensor's elements are stored in a checkpoint that is written: the four element types, or ggml's blocks of
/// 32 weights with one scale, 8 or 4 bits each (GGUF only).
enum class TensorType : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2, f64 = 3, q8_0 = 4, q4_0 = 5 };

[[nodiscard]] constexpr TensorType tensor_type(DType t) noexcept { return static_cast<TensorType>(t); }
[[nodiscard]] constexpr const char* name_of(TensorType t) noexcept {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "f64", "q8_0", "q4_0"};
  return kNames[static_cast<int>(t)];
}

/// huggingface: a folder with config.json and safetensors. meta: a folder with params.json and consolidated.NN.pth.
/// gguf: a folder with model.gguf or model-0000N-of-0000M.gguf, or one file.
enum class CheckpointFormat : std::uint8_t { huggingface, meta, gguf };

/// What write_checkpoint writes: the feed-forward tensors of a Llama model, and the metadata that readers want.
/// Attention and vocabulary are not part of it; where metadata asks for them, plausible numbers stand. The files say
/// so themselves: `swiglu.tensors` = "feed-forward only" among safetensors' and the index's metadata and GGUF's keys,
/// and as a record beside `version` in a .pth (an unknown key in params.json would stop Meta's own reader).
struct CheckpointRecipe {
  CheckpointFormat format = CheckpointFormat::huggingface;
  FfnConfig config;
  std::int64_t layers = 1;
  int shards = 1;             ///< meta: must divide hidden; else whole tensors, at most one per file
  DType dtype = DType::bf16;  ///< of what FillTensor gives, for all tensors
  /// Instead of `dtype`, where tensors differ. Asked before anything is written.
  std::function<DType(std::int64_t layer, const std::string& role)> given;
  /// Of the matrices in the files; nothing: each as it is given. Norms stay as they are given. Conversions round once,
  /// to nearest even, and keep denormals and NaN. GGUF: norms are F32, f64 becomes F32, and a matrix whose rows are
  /// no multiple of 32 becomes F16 instead of q8_0 or q4_0.
  std::optional<TensorType> type;
  /// Meta's params.json when the width follows a recipe; hidden_dim is written when it does not.
  std::int64_t multiple_of = 256;
  std::optional<double> multiplier;
  /// config.json or params.json as it is to be; nothing: made from the numbers above. Not for gguf.
  std::optional<std::string> description;
  std::string name = "swiglu";  ///< gguf: general.name, UTF-8
  /// (done, total) bytes, called from the writing thread.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

/// Fills rows [row0, row0+rows) × cols [col0, col0+cols) of a tensor with elements of the type that the
/// recipe names for it, dense. The norm vector is role "norm" with one row of dim columns.
using FillTensor = std::function<void(std::int64_t layer, const std::string& role, std::int64_t row0, std::int64_t rows,
                                      std::int64_t col0, std::int64_t cols, void* dst)>;

/// What became of a recipe.
struct WrittenCheckpoint {
  std::int64_t bytes = 0;  ///< of tensors
  std::int64_t overflowed = 0;  ///< finite elements that their type in the file holds as Inf only
  std::vector<std::string> notes;  ///< types that differ from what was asked for
};

/// Writes the checkpoint with a few MiB of a tensor in memory at a time. `path` is a folder, made if missing; throws
/// usage if it already holds a checkpoint. With format gguf and one shard, a `path` that ends in ".gguf" is the file,
/// which must not exist. Files appear only when complete; on failure the files written by this call are removed.
/// Throws unsupported for NaN, Inf and too large numbers where blocks are asked for, which cannot hold them.
WrittenCheckpoint write_checkpoint(const std::filesystem::path& path, const CheckpointRecipe& recipe,
                                   const FillTensor& fill);

/// Copies a whole model within its format, every tensor with its type, shape and bytes, into `shards` files of about
/// equal size. `source` is what Checkpoint::open takes (with `options`), of safetensors or GGUF files.
/// - safetensors: tensors in the order of their names, the files' metadata (where two differ, the first one's), an
///   index where there are several files; of a folder also its other files up to 100 MB, but not folders and weights
///   of other formats.
/// - GGUF: the keys of the first file byte for byte, those of splitting apart, and the tensors as they lie in it.
/// `target` as in write_checkpoint; nothing in it is replaced, and a failure leaves nothing. `progress` gets (done,
/// total) bytes from this thread, the first time before anything is written; it may throw. Throws unsupported for .pth
/// and .bin files and packed ones.
WrittenCheckpoint copy_checkpoint(const std::filesystem::path& source, const std::filesystem::path& target, int shards,
                                  const std::function<void(std::int64_t, std::int64_t)>& progress = {},
                                  const OpenOptions& options = {});

/// Deterministic random weights in the manner of a trained layer: gate, up ~ N(0, 1/dim), down ~
/// N(0, 1/hidden), norm ~ 1 + 0.1 N(0, 1), where N is approximated by the sum of four uniform numbers
/// (nothing beyond 3.47 deviations). The value of an element depends on (seed, layer, role, row,
/// column) only, so any slice can be made alone and every format and shard count gets the same weights.
[[nodiscard]] FillTensor random_weights(const FfnConfig& config, DType dtype, std::uint64_t seed);

/// The same weights as a layer in no file, for demonstrations and tests.
[[nodiscard]] LayerSource random_layer(const FfnConfig& config, DType dtype, std::uint64_t seed,
                                       std::int64_t layer = 0);

}  // namespace swiglu
#pragma GCC visibility pop
