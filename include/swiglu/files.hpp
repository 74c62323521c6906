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
  struct Impl;
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
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A folder that write_checkpoint makes.
enum class CheckpointFormat : std::uint8_t { huggingface, meta };

struct CheckpointRecipe {
  CheckpointFormat format = CheckpointFormat::huggingface;
  FfnConfig config;
  std::int64_t layers = 1;
  int shards = 1;             ///< meta: must divide hidden; huggingface: whole tensors, at most one per file
  DType dtype = DType::bf16;  ///< of all tensors
  /// Meta's params.json when the width follows a recipe; hidden_dim is written when it does not.
  std::int64_t multiple_of = 256;
  std::optional<double> multiplier;
  /// (done, total) bytes, called from the writing thread.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

/// Fills rows [row0, row0+rows) × cols [col0, col0+cols) of a tensor with elements of the recipe's
/// dtype, dense. The norm vector is role "norm" with one row of dim columns.
using FillTensor = std::function<void(std::int64_t layer, const std::string& role, std::int64_t row0, std::int64_t rows,
                                      std::int64_t col0, std::int64_t cols, void* dst)>;

/// Writes config.json + safetensors, or params.json + consolidated.NN.pth, one slice in memory at a
/// time. The folder is made if missing; throws usage if it already holds a checkpoint. Files appear
/// only when complete; on failure the files written by this call are removed.
void write_checkpoint(const std::filesystem::path& folder, const CheckpointRecipe& recipe, const FillTensor& fill);

/// Deterministic random weights in the manner of a trained layer: gate, up ~ N(0, 1/dim), down ~
/// N(0, 1/hidden), norm ~ 1 + 0.1 N(0, 1), where N is approximated by the sum of four uniform numbers
/// (nothing beyond 3.47 deviations). The value of an element depends on (seed, layer, role, row,
/// column) only, so any slice can be made alone and every format and shard count gets the same weights.
[[nodiscard]] FillTensor random_weights(const FfnConfig& config, DType dtype, std::uint64_t seed);

/// The same weights as a layer in no file, for demonstrations and tests.
[[nodiscard]] LayerSource random_layer(const FfnConfig& config, DType dtype, std::uint64_t seed,
                                       std::int64_t layer = 0);

}  // namespace swiglu
