// write_checkpoint: everything that can be refused is refused here, before a folder or file exists; then
// the format's writer does the work inside an OutputFolder, which removes what a failure leaves.
#include <cmath>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/text.h"
#include "files/conversion.h"
#include "files/source.h"
#include "files/tensor_stream.h"

namespace swiglu {
namespace {

constexpr std::int64_t kMaxLayers = 10000;  // far beyond any model; keeps headers within what readers accept

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::usage, "write_checkpoint: " + text); }

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

// Whatever a reader would take for weights or their description, complete or not.
void refuse_existing(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  if (error) return;  // missing, or not a folder: OutputFolder will say so
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const std::string_view view = name;
    if (name == "config.json" || name == "params.json" || view.ends_with(".safetensors") ||
        view.ends_with(".safetensors.index.json") || view.ends_with(".gguf") ||
        (view.starts_with("consolidated.") && view.ends_with(".pth")) ||
        (view.starts_with("pytorch_model") && view.ends_with(".bin"))) {
      refuse(fmt::format("{} already holds a checkpoint ({}); expected a new or empty folder", escaped(folder.string()),
                         escaped(name)));
    }
  }
}

void check_one_file(const std::filesystem::path& path, const CheckpointRecipe& recipe) {
  if (recipe.shards != 1) {
    refuse(fmt::format("{}: {} shards do not fit one file; expected the name of a folder", escaped(path.string()),
                       recipe.shards));
  }
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    refuse(fmt::format("{} exists already; expected the name of a new file", escaped(path.string())));
  }
}

}  // namespace

WrittenCheckpoint write_checkpoint(const std::filesystem::path& path, const CheckpointRecipe& recipe,
                                   const FillTensor& fill) {
  check(recipe, fill);
  const bool one_file = recipe.format == CheckpointFormat::gguf && path.extension() == ".gguf";
  if (one_file) {
    check_one_file(path, recipe);
  } else {
    refuse_existing(path);
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
