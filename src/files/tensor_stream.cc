// Tensors on their way into files; see tensor_stream.h.
#include "files/tensor_stream.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/cpu.h"
#include "files/conversion.h"
#include "files/little_endian.h"
#include "files/quantize.h"

namespace swiglu::files {

std::int64_t OutputTensor::bytes() const noexcept { return rows * stored_bytes(stored, cols); }

void set_types(OutputTensor& tensor, const CheckpointRecipe& recipe) {
  tensor.given = recipe.given ? recipe.given(tensor.layer, tensor.role) : recipe.dtype;
  if (static_cast<int>(tensor.given) > static_cast<int>(DType::f64)) {
    throw Error(ErrorCode::usage,
                fmt::format("unknown element type given for {} of layer {}", tensor.role, tensor.layer));
  }
  tensor.stored = tensor.role == "norm" ? tensor_type(tensor.given) : recipe.type.value_or(tensor_type(tensor.given));
}

std::vector<OutputTensor> whole_tensors(const CheckpointRecipe& recipe, const TensorNames& names) {
  const std::int64_t dim = recipe.config.dim;
  const std::int64_t hidden = recipe.config.hidden;
  std::vector<OutputTensor> tensors;
  tensors.reserve(static_cast<std::size_t>(4 * recipe.layers));
  for (std::int64_t i = 0; i < recipe.layers; ++i) {
    const auto add = [&](std::string_view name, const char* role, std::int64_t rows, std::int64_t cols) {
      tensors.push_back({.name = fmt::format("{}{}.{}", names.layers, i, name),
                         .layer = i,
                         .role = role,
                         .rows = rows,
                         .cols = cols});
      set_types(tensors.back(), recipe);
    };
    add(names.gate, "gate", hidden, dim);
    add(names.up, "up", hidden, dim);
    add(names.down, "down", dim, hidden);
    add(names.norm, "norm", 1, dim);
  }
  return tensors;
}

std::int64_t total_bytes(const std::vector<OutputTensor>& tensors) noexcept {
  return std::accumulate(tensors.begin(), tensors.end(), std::int64_t{0},
                         [](std::int64_t sum, const OutputTensor& tensor) { return sum + tensor.bytes(); });
}

std::vector<std::size_t> counts_per_file(std::span<const std::uint64_t> sizes, int files) {
  const auto shards = static_cast<std::size_t>(files);
  if (shards > sizes.size()) {
    throw Error(ErrorCode::usage,
                fmt::format("{} shards for {} tensors; expected at most one each", files, sizes.size()));
  }
  double total = 0;
  for (const std::uint64_t size : sizes) total += static_cast<double>(size);
  std::vector<std::size_t> counts(shards);
  std::size_t shard = 0;
  double before = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto size = static_cast<double>(sizes[i]);
    const double share_end = total * static_cast<double>(shard + 1) / static_cast<double>(shards);
    const bool last = shard + 1 == shards;
    const bool full = before + size / 2 > share_end;
    const bool rest_needed = sizes.size() - i <= shards - 1 - shard;  // one for each file that is still empty
    if (!last && counts[shard] > 0 && (full || rest_needed)) ++shard;
    ++counts[shard];
    before += size;
  }
  return counts;
}

std::vector<std::vector<OutputTensor>> distribute(std::vector<OutputTensor> tensors, const CheckpointRecipe& recipe) {
  return cut_into_files(std::move(tensors), recipe.shards, [](const OutputTensor& tensor) { return tensor.bytes(); });
}

std::string weight_file_name(std::string_view stem, std::size_t i, std::size_t count, std::string_view extension) {
  if (count == 1) return fmt::format("{}.{}", stem, extension);
  return fmt::format("{}-{:05}-of-{:05}.{}", stem, i + 1, count, extension);
}

std::string safetensors_header(std::string json) {
  json.append((8 - json.size() % 8) % 8, ' ');
  return Bytes().u64(json.size()).put(json).take();
}

TensorStream::TensorStream(const CheckpointRecipe& recipe, const FillTensor& fill, std::int64_t total)
    : recipe_(recipe), fill_(fill), total_(total) {}

void TensorStream::append(OutputFile& file, const OutputTensor& tensor,
                          const std::function<void(std::span<const std::byte>)>& seen) {
  constexpr std::int64_t kSliceBytes = std::int64_t{4} << 20;
  const std::int64_t item = size_of(tensor.given);
  const std::int64_t cols_each = std::min(tensor.cols, kSliceBytes / item);  // of a row longer than a slice
  const std::int64_t rows_each =
      cols_each < tensor.cols ? 1 : std::max<std::int64_t>(1, kSliceBytes / (cols_each * item));
  const auto convert = [&](std::int64_t count) {
    const FloatMode exact(FloatMode::kExact);
    return convert_elements(given_.data(), tensor.given, count, stored_.data(), tensor.stored);
  };
  for (std::int64_t r = 0; r < tensor.rows; r += rows_each) {
    const std::int64_t rows = std::min(rows_each, tensor.rows - r);
    for (std::int64_t c = 0; c < tensor.cols; c += cols_each) {
      const std::int64_t cols = std::min(cols_each, tensor.cols - c);
      given_.resize(static_cast<std::size_t>(rows * cols * item));
      fill_(tensor.layer, tensor.role, tensor.row0 + r, rows, tensor.col0 + c, cols, given_.data());
      std::span<const std::byte> slice = given_;
      if (tensor_type(tensor.given) != tensor.stored) {
        stored_.resize(static_cast<std::size_t>(stored_bytes(tensor.stored, rows * cols)));
        const Converted result = convert(rows * cols);
        if (result.done < rows * cols) {
          throw Error(ErrorCode::unsupported,
                      fmt::format("{}: elements {} to {} of row {} hold NaN, Inf or too large a number "
                                  "for a block of {}",
                                  tensor.name, c + result.done % cols, c + result.done % cols + kQuantBlock - 1,
                                  r + result.done / cols, name_of(tensor.stored)));
        }
        overflowed_ += result.overflowed;
        slice = stored_;
      }
      if (seen) seen(slice);
      file.write(slice);
      done_ += std::ssize(slice);
      if (recipe_.progress) recipe_.progress(done_, total_);
    }
  }
}

std::string json_number(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::int64_t plausible_heads(std::int64_t dim) noexcept {
  std::int64_t width = 128;
  while (dim % width != 0) width /= 2;
  return dim / width;
}

std::int64_t plausible_kv_heads(std::int64_t heads) noexcept { return heads % 8 == 0 ? 8 : heads; }

}  // namespace swiglu::files
