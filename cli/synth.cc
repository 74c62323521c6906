// swiglu synth: a checkpoint of any size with random weights, to try commands and tools on.
// The weights depend on the seed alone, so every format and shard count holds the same layer.
#include <fmt/format.h>

#include "commands.h"
#include "outputs.h"
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
  // Blocks are made of f32 weights; all other types are given as they are.
  const bool blocks = options.type == TensorType::q8_0 || options.type == TensorType::q4_0;
  recipe.dtype = blocks ? DType::f32 : static_cast<DType>(options.type);
  recipe.type = options.type;
  recipe.name = options.preset ? *options.preset : "swiglu synth";
  return recipe;
}

}  // namespace

int synth(const SynthOptions& options) {
  CheckpointRecipe recipe = recipe_of(options);
  const double bytes = weight_bytes(recipe.config, recipe.layers, options.type);
  const std::string output = printable(options.output.string());
  tell(fmt::format("synth: {} of dim {}, hidden {} in {}: {} to {}\n", plural(recipe.layers, "layer"),
                   recipe.config.dim, recipe.config.hidden, name_of(options.type), format_bytes(bytes), output));
  check_room(options.output, bytes);
  const Stopwatch watch;
  WrittenCheckpoint written;
  {
    Meter meter("writing");
    recipe.progress = [&meter](std::int64_t done, std::int64_t total) { meter.update(done, total); };
    written = write_checkpoint(options.output, recipe, random_weights(recipe.config, recipe.dtype, options.seed));
  }
  tell_notes(written);
  say(fmt::format("{}: {} checkpoint, {}, {}, {}, seed {}, written in {}\n", output, title_of(recipe.format),
                  plural(recipe.layers, "layer"), plural(recipe.shards, "weight file"),
                  format_bytes(static_cast<double>(written.bytes)), options.seed, format_seconds(watch.seconds())));
  say(fmt::format("Next: swiglu inspect {0}\n      swiglu verify {0} --layer 0\n", output));
  return 0;
}

}  // namespace swiglu::cli
