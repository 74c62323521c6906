// swiglu convert: the feed-forward tensors of a checkpoint in another format, other shards or another type. Reads the
// model a few MiB at a time (a packed one a layer at a time), and writes nothing before everything that can be refused
// cheaply has been looked at.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "convert_all.h"
#include "description.h"
#include "elements.h"
#include "layers.h"
#include "outputs.h"
#include "progress.h"
#include "report.h"
#include "swiglu/packed.hpp"

namespace swiglu::cli {

namespace {

/// The layers as they are taken from the model, in the order of their new numbers.
class Weights {
 public:
  /// `narrow`: norms that lose nothing in their layer's element type are given in it. GGUF holds all norms as f32; so
  /// the way there and back gives the bytes that were.
  Weights(const Checkpoint& model, const std::vector<std::int64_t>& numbers, std::optional<std::int64_t> expert,
          bool narrow) {
    for (const std::int64_t number : numbers) {
      layers_.push_back(model.layer(number, expert));
      narrowed_.push_back(narrow ? narrowed_norm(std::ssize(layers_) - 1) : std::vector<std::byte>());
    }
  }

  [[nodiscard]] DType type(std::int64_t layer, const std::string& role) const {
    const LayerSource& source = layers_[static_cast<std::size_t>(layer)];
    if (role == "norm" && !narrowed_[static_cast<std::size_t>(layer)].empty()) return type(layer, "gate");
    if (role == "norm") return source.stored_norm->dtype();
    if (!source.packed) return matrix(source, role).dtype();
    return source.packed->matrix(role == "down" ? PackedSource::Part::down : PackedSource::Part::gate_up).dtype;
  }

  void fill(std::int64_t layer, const std::string& role, std::int64_t row0, std::int64_t rows, std::int64_t col0,
            std::int64_t cols, void* dst) {
    const LayerSource& source = layers_[static_cast<std::size_t>(layer)];
    const std::vector<std::byte>& narrowed = narrowed_[static_cast<std::size_t>(layer)];
    if (role == "norm" && !narrowed.empty()) {
      const std::int64_t item = size_of(type(layer, role));
      std::memcpy(dst, narrowed.data() + col0 * item, static_cast<std::size_t>(cols * item));
      return;
    }
    if (role == "norm") return source.stored_norm->read(row0, rows, col0, cols, dst);
    matrix(source.packed ? unpacked(layer) : source, role).read(row0, rows, col0, cols, dst);
  }

 private:
  static const TensorSource& matrix(const LayerSource& source, const std::string& role) {
    return role == "gate" ? *source.gate : role == "up" ? *source.up : *source.down;
  }
  // The norm in the type of the layer's matrices, or nothing if that would change a value.
  std::vector<std::byte> narrowed_norm(std::int64_t layer) const {
    const LayerSource& source = layers_[static_cast<std::size_t>(layer)];
    const DType narrow = type(layer, "gate");
    if (source.stored_norm->dtype() != DType::f32 || size_of(narrow) >= size_of(DType::f32)) return {};
    const std::vector<double> exact(source.norm.begin(), source.norm.end());
    std::vector<std::byte> bytes = from_doubles(narrow, exact);
    return to_doubles(narrow, bytes) == exact ? bytes : std::vector<std::byte>();
  }
  // One in memory at a time: tensors of a layer are written one after the other.
  const LayerSource& unpacked(std::int64_t layer) {
    if (!pool_) pool_ = std::make_unique<ThreadPool>();
    if (layer != in_memory_) {
      unpacked_ = {};
      unpacked_ = unpack(layers_[static_cast<std::size_t>(layer)], pool_->runner());
      in_memory_ = layer;
    }
    return unpacked_;
  }

  std::vector<LayerSource> layers_;
  std::vector<std::vector<std::byte>> narrowed_;  ///< norms
  std::unique_ptr<ThreadPool> pool_;
  LayerSource unpacked_;
  std::int64_t in_memory_ = -1;
};

/// The stored types that a reader decodes rather than copies, of the chosen layers' matrices.
std::set<std::string> decoded_types(const Checkpoint& model, const std::vector<std::int64_t>& layers) {
  constexpr std::array<std::string_view, 8> kPlain = {
      "F32", "F16", "BF16", "F64", "FloatStorage", "HalfStorage", "BFloat16Storage", "DoubleStorage"};
  std::set<std::string> decoded;
  if (model.format() == "packed") return decoded;  // what was packed is floats already
  for (const TensorInfo& tensor : model.tensors()) {
    if (tensor.role == "norm" || !std::binary_search(layers.begin(), layers.end(), tensor.layer)) continue;
    const std::string_view name = std::string_view(tensor.dtype).substr(tensor.dtype.starts_with("torch.") ? 6 : 0);
    if (std::find(kPlain.begin(), kPlain.end(), name) == kPlain.end()) decoded.insert(tensor.dtype);
  }
  return decoded;
}

/// The recipe of a published model of this shape, so that params.json says it as Meta's does.
void name_width(CheckpointRecipe& recipe) {
  for (const Preset& preset : presets()) {
    if (preset.dim != recipe.config.dim || preset.config().hidden != recipe.config.hidden) continue;
    recipe.multiple_of = preset.multiple_of;
    recipe.multiplier = preset.multiplier;
    return;
  }
}

std::string name_of_model(const std::filesystem::path& model) {
  const std::filesystem::path path = std::filesystem::absolute(model).lexically_normal();
  return printable((path.has_filename() ? path : path.parent_path()).stem().string());
}

void tell_about(const ConvertOptions& options, const Checkpoint& model, const std::vector<std::int64_t>& layers,
                const std::set<std::string>& decoded) {
  for (const std::string& note : model.notes()) tell(fmt::format("swiglu: note: {}\n", note));
  if (!decoded.empty() && !options.type) {
    std::vector<std::string> names;
    names.reserve(decoded.size());
    for (const std::string& name : decoded) names.push_back(printable(name));
    tell(fmt::format("swiglu: note: weights of type {} are decoded and written as f32; --dtype writes another type\n",
                     fmt::join(names, ", ")));
  }
  if (layers.back() != std::ssize(layers) - 1) {
    tell(fmt::format("swiglu: note: layers are numbered anew: 0 to {} are layers {} of the model\n", layers.size() - 1,
                     fmt::join(layers, ", ")));
  }
}

}  // namespace

int convert(const ConvertOptions& options) {
  if (options.all) return convert_all(options);
  const Checkpoint model = Checkpoint::open(options.model, options.open);
  const std::vector<std::int64_t> layers = choose_layers(options.model, model, options.layers);
  Weights weights(model, layers, options.expert, options.format != CheckpointFormat::gguf && !options.type);
  const std::set<std::string> decoded = decoded_types(model, layers);

  CheckpointRecipe recipe;
  recipe.format = options.format;
  recipe.config = model.config();
  recipe.layers = std::ssize(layers);
  recipe.shards = options.shards;
  recipe.given = [&](std::int64_t layer, const std::string& role) { return weights.type(layer, role); };
  recipe.type = options.type;
  recipe.description = kept_description(options, model, recipe.layers, !decoded.empty());
  recipe.name = name_of_model(options.model);
  name_width(recipe);

  double bytes = 0;
  for (std::int64_t i = 0; i < recipe.layers; ++i) {
    bytes += weight_bytes(recipe.config, 1, options.type.value_or(tensor_type(weights.type(i, "gate"))));
  }
  tell_about(options, model, layers, decoded);
  check_room(options.output, bytes);
  const Stopwatch watch;
  WrittenCheckpoint written;
  {
    Meter meter("converting");
    recipe.progress = [&meter](std::int64_t done, std::int64_t total) { meter.update(done, total); };
    written = write_checkpoint(
        options.output, recipe,
        [&](std::int64_t layer, const std::string& role, std::int64_t row0, std::int64_t rows, std::int64_t col0,
            std::int64_t cols, void* dst) { weights.fill(layer, role, row0, rows, col0, cols, dst); });
  }
  tell_notes(written);
  say(fmt::format("{}: {} checkpoint, feed-forward tensors of {}, {}, {}, written in {}\n",
                  printable(options.output.string()), title_of(recipe.format), plural(recipe.layers, "layer"),
                  plural(recipe.shards, "weight file"), format_bytes(static_cast<double>(written.bytes)),
                  format_seconds(watch.seconds())));
  return 0;
}

}  // namespace swiglu::cli
