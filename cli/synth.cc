// swiglu synth: a checkpoint of any size with random weights, to try commands and tools on.
// The weights depend on the seed alone, so every format and shard count holds the same layer.
#include <fmt/format.h>

#include <system_error>

#include "commands.h"
#include "progress.h"
#include "report.h"

namespace swiglu::cli {

namespace {

CheckpointRecipe recipe_of(const SynthOptions& options) {
  CheckpointRecipe recipe;
  if (options.preset) {
    if (options.dim || options.hidden) {
      throw Error(ErrorCode::usage, "synth: a preset has its own dim and hidden: give --preset, or --dim and --hidden");
    }
    const Preset& preset = find_preset(*options.preset);
    recipe.config = preset.config();
    recipe.layers = preset.layers;
    recipe.multiple_of = preset.multiple_of;
    recipe.multiplier = preset.multiplier;
  } else {
    if (!options.dim || !options.hidden) {
      throw Error(ErrorCode::usage,
                  "synth: give --preset NAME, or --dim D and --hidden H (`swiglu width --dim D` says Meta's hidden)");
    }
    recipe.config = {*options.dim, *options.hidden, 1e-5};
  }
  if (options.layers) recipe.layers = *options.layers;
  recipe.format = options.format;
  recipe.shards = options.shards;
  recipe.dtype = options.dtype;
  return recipe;
}

/// In double: only shown, and compared with what the disk has; the writer checks for overflow.
double bytes_of(const CheckpointRecipe& recipe) {
  const auto dim = static_cast<double>(recipe.config.dim), hidden = static_cast<double>(recipe.config.hidden);
  return static_cast<double>(recipe.layers) * (3 * dim * hidden + dim) * static_cast<double>(size_of(recipe.dtype));
}

void check_room(const std::filesystem::path& folder, double bytes) {
  std::filesystem::path existing = std::filesystem::absolute(folder);
  std::error_code fault;
  while (!std::filesystem::exists(existing, fault) && existing.has_relative_path()) existing = existing.parent_path();
  const auto room = std::filesystem::space(existing, fault);
  if (fault || bytes <= static_cast<double>(room.available)) return;
  throw Error(ErrorCode::io, fmt::format("{}: {} are needed, {} are free", printable(folder.string()),
                                         format_bytes(bytes), format_bytes(static_cast<double>(room.available))));
}

}  // namespace

int synth(const SynthOptions& options) {
  CheckpointRecipe recipe = recipe_of(options);
  const double bytes = bytes_of(recipe);
  const bool meta = recipe.format == CheckpointFormat::meta;
  const std::string folder = printable(options.output.string());
  tell(fmt::format("synth: {} of dim {}, hidden {} in {}: {} to {}\n", plural(recipe.layers, "layer"),
                   recipe.config.dim, recipe.config.hidden, name_of(recipe.dtype), format_bytes(bytes), folder));
  check_room(options.output, bytes);
  const Stopwatch watch;
  {
    Meter meter("writing");
    recipe.progress = [&meter](std::int64_t done, std::int64_t total) { meter.update(done, total); };
    write_checkpoint(options.output, recipe, random_weights(recipe.config, recipe.dtype, options.seed));
  }
  say(fmt::format("{}: {} checkpoint, {}, {}, {}, seed {}, written in {}\n", folder, meta ? "Meta" : "Hugging Face",
                  plural(recipe.layers, "layer"), plural(recipe.shards, "weight file"), format_bytes(bytes),
                  options.seed, format_seconds(watch.seconds())));
  say(fmt::format("Next: swiglu inspect {0}\n      swiglu verify {0} --layer 0\n", folder));
  return 0;
}

}  // namespace swiglu::cli
