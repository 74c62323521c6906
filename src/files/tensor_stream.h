// What the checkpoint writers share: the tensors of a recipe with their types, how they spread over files, and their
// bytes a slice at a time. Knows CheckpointRecipe and output files, no file format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/output.h"
#include "swiglu/files.hpp"

namespace swiglu::files {

/// What the files say of themselves, under the key `swiglu.tensors`.
inline constexpr std::string_view kOnlyFeedForward = "feed-forward only";

/// A tensor as it stands in one file: the whole or, in a shard, a part of the layer's matrix.
struct OutputTensor {
  std::string name;
  std::int64_t layer = 0;
  std::string role;  ///< "gate", "up", "down" or "norm"
  std::int64_t row0 = 0, rows = 0, col0 = 0, cols = 0;
  DType given = DType::bf16;
  TensorType stored = TensorType::bf16;

  [[nodiscard]] bool is_vector() const { return role == "norm"; }  ///< its shape is [cols], not [1, cols]
  [[nodiscard]] std::int64_t bytes() const noexcept;               ///< in the file
};

/// Sets both types as the recipe asks. Throws usage for a type that there is not.
void set_types(OutputTensor& tensor, const CheckpointRecipe& recipe);

/// How a format names tensors: `layers`, the number, ".", and the name of the role.
struct TensorNames {
  std::string_view layers;
  std::string_view gate, up, down, norm;
};
/// The layers' whole tensors in model order.
[[nodiscard]] std::vector<OutputTensor> whole_tensors(const CheckpointRecipe& recipe, const TensorNames& names);

/// Of all tensors, in the files.
[[nodiscard]] std::int64_t total_bytes(const std::vector<OutputTensor>& tensors) noexcept;

/// Whole tensors, in their order, over as many files as the recipe has shards: about equally large, none empty. Throws
/// usage where there are fewer tensors than files.
[[nodiscard]] std::vector<std::vector<OutputTensor>> distribute(std::vector<OutputTensor> tensors,
                                                                const CheckpointRecipe& recipe);

/// How many of the tensors of these sizes, in their order, each of `files` files takes: about equally large, none
/// empty. Throws usage where there are fewer tensors than files.
[[nodiscard]] std::vector<std::size_t> counts_per_file(std::span<const std::uint64_t> sizes, int files);

/// The tensors so cut; `bytes_of` gives the size of one.
template <class Tensor, class BytesOf>
std::vector<std::vector<Tensor>> cut_into_files(std::vector<Tensor> tensors, int files, const BytesOf& bytes_of) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(tensors.size());
  for (const Tensor& tensor : tensors) sizes.push_back(static_cast<std::uint64_t>(bytes_of(tensor)));
  std::vector<std::vector<Tensor>> out;
  auto next = std::make_move_iterator(tensors.begin());
  for (const std::size_t count : counts_per_file(sizes, files)) {
    const auto end = next + static_cast<std::ptrdiff_t>(count);
    out.emplace_back(next, end);
    next = end;
  }
  return out;
}

/// "model.gguf", or the name of file `i`, counted from 0, of `count`: "model-00002-of-00003.gguf".
[[nodiscard]] std::string weight_file_name(std::string_view stem, std::size_t i, std::size_t count,
                                           std::string_view extension);
/// A safetensors header: the length of the JSON text, and the text, filled up to a multiple of 8.
[[nodiscard]] std::string safetensors_header(std::string json);

/// Writes tensors a few MiB at a time, so that memory stays bounded whatever their size, and reports
/// progress over all of them.
class TensorStream {
 public:
  /// `total` bytes will be written in all. The references must outlive this object.
  TensorStream(const CheckpointRecipe& recipe, const FillTensor& fill, std::int64_t total);
  /// Appends the tensor's elements; `seen`, if not empty, gets every slice that was written.
  void append(OutputFile& file, const OutputTensor& tensor,
              const std::function<void(std::span<const std::byte>)>& seen = {});
  /// Bytes, and elements that became Inf.
  [[nodiscard]] WrittenCheckpoint written() const { return {.bytes = done_, .overflowed = overflowed_, .notes = {}}; }

 private:
  const CheckpointRecipe& recipe_;
  const FillTensor& fill_;
  std::int64_t total_;
  std::int64_t done_ = 0;
  std::int64_t overflowed_ = 0;
  std::vector<std::byte> given_;   ///< a slice as it was filled
  std::vector<std::byte> stored_;  ///< and as it is written, where that differs
};

/// The shortest text that reads back as the same double, with a point or an exponent, as Python's json
/// writes it: 1e-05, 1.3, 1.0. `value` is finite.
[[nodiscard]] std::string json_number(double value);

/// A number of attention heads that divides dim (128 wide where possible); configurations want one.
[[nodiscard]] std::int64_t plausible_heads(std::int64_t dim) noexcept;
/// And of key and value heads, for so many heads.
[[nodiscard]] std::int64_t plausible_kv_heads(std::int64_t heads) noexcept;

/// The formats. The recipe has been checked; `folder` holds no checkpoint.
[[nodiscard]] WrittenCheckpoint write_huggingface(OutputFolder& folder, const CheckpointRecipe& recipe,
                                                  const FillTensor& fill);
[[nodiscard]] WrittenCheckpoint write_meta(OutputFolder& folder, const CheckpointRecipe& recipe,
                                           const FillTensor& fill);
/// `name` is the file's without ".gguf".
[[nodiscard]] WrittenCheckpoint write_gguf(OutputFolder& folder, const std::string& name,
                                           const CheckpointRecipe& recipe, const FillTensor& fill);

}  // namespace swiglu::files
