// write_checkpoint: everything that can be refused is refused here, before a folder or file exists; then
// the format's writer does the work inside an OutputFolder, which removes what a failure leaves.
#include <cmath>

#include <fmt/format.h>

#include "files/conversion.h"
#include "files/source.h"
#include "files/target.h"
#include "files/tensor_stream.h"

namespace swiglu {
namespace {

constexpr std::int64_t kMaxLayers = 10000;  // far beyond any model; keeps headers within what readers accept

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::usage, text); }

void check(const CheckpointRecipe& recipe, const FillTensor& fill) {
  const FfnConfig& config = recipe.config;
  if (!fill) refuse("no function to fill the tensors");
  if (static_cast<int>(recipe.dtype) > static_cast<int>(DType::f64)) refuse("unknown element type");
  if (recipe.type && static_cast<int>(*recipe.type) > static_cast<int>(TensorType::q4_0)) refuse("unknown tensor type");
  if (recipe.type && files::is_quantized(*recipe.type) && recipe.format != CheckpointFormat::gguf) {
    refuse(fmt::format("only GGUF files hold {}", name_of(*recipe.type)));
  }
  if (config.dim <= 0 || config.hidden <= 0) {
    refuse(fmt::format("expected positive sizes, found dim {} and hidden {}", config.dim, config.hidden));
  }
  if (recipe.layers <= 0 || recipe.layers > kMaxLayers) {
    refuse(fmt::format("expected 1 to {} layers, found {}", kMaxLayers, recipe.layers));
  }
  if (recipe.shards <= 0) refuse(fmt::format("expected at least 1 shard, found {}", recipe.shards));
  if (!(config.eps > 0) || !std::isfinite(config.eps)) {
    refuse(fmt::format("expected a positive finite eps, found {}", config.eps));
  }
  // Norms are replicated in shards, at most 100 times; with them everything, be it f64, has to fit 63 bits.
  std::uint64_t bytes = 0;
  std::uint64_t norms = 0;
  const auto dim = static_cast<std::uint64_t>(config.dim);
  const auto item = static_cast<std::uint64_t>(size_of(DType::f64) * recipe.layers);
  if (!files::checked_mul(dim, static_cast<std::uint64_t>(config.hidden), bytes) ||
      !files::checked_mul(bytes, 3 * item, bytes) || !files::checked_mul(dim, 100 * item, norms) ||
      !files::checked_add(bytes, norms, bytes) || bytes > static_cast<std::uint64_t>(INT64_MAX)) {
    refuse(fmt::format("{} layers of dim {} and hidden {} are too large", recipe.layers, config.dim, config.hidden));
  }
}

}  // namespace

WrittenCheckpoint write_checkpoint(const std::filesystem::path& path, const CheckpointRecipe& recipe,
                                   const FillTensor& fill) {
  check(recipe, fill);
  const bool one_file = recipe.format == CheckpointFormat::gguf && path.extension() == ".gguf";
  if (one_file) {
    files::check_new_file(path, recipe.shards);
  } else {
    files::check_new_folder(path);
  }
  files::OutputFolder out(!one_file ? path : path.has_parent_path() ? path.parent_path() : ".");
  const auto write = [&] {
    switch (recipe.format) {
      case CheckpointFormat::huggingface:
        return files::write_huggingface(out, recipe, fill);
      case CheckpointFormat::meta:
        return files::write_meta(out, recipe, fill);
      case CheckpointFormat::gguf:
        return files::write_gguf(out, one_file ? path.stem().string() : "model", recipe, fill);
    }
    refuse("unknown format");
  };
  WrittenCheckpoint written = write();
  out.keep();
  return written;
}

}  // namespace swiglu
