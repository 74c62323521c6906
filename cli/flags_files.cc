// The flags of the commands that read and write checkpoints: inspect, synth, compare, convert, pack.
#include <array>
#include <string>

#include "command_line.h"

namespace swiglu::cli {

CLI::App* add_inspect(CLI::App& app, InspectOptions& o) {
  CLI::App* c = app.add_subcommand("inspect", "What is in a checkpoint, and does it fit its own configuration");
  model_argument(c, o.model);
  c->add_flag("--stats", o.stats, "Read all weights too: NaN and Inf, smallest, largest, rms of each matrix");
  json_flag(c, o.json);
  c->footer(
      "Exits 0 when sound, 1 when readable but inconsistent, 3 when unreadable or refused.\n\nExamples:\n"
      "  swiglu inspect Meta-Llama-3-8B\n  swiglu inspect model.safetensors --stats --json\n");
  return c;
}

CLI::App* add_synth(CLI::App& app, SynthOptions& o) {
  CLI::App* c = app.add_subcommand("synth", "Write a checkpoint of any size with random weights");
  flag(c, "--preset", "NAME", "A published shape: llama-3-8b, llama-3.1-405b, llama-3.2-1b, ...",
       [&o](const std::string& text) { o.preset = text; });
  flag(c, "--dim", "D", "Without a preset: the model's width",
       [&o](const std::string& text) { o.dim = parse_whole("--dim", text, 1); });
  flag(c, "--hidden", "H", "Without a preset: the feed-forward's width",
       [&o](const std::string& text) { o.hidden = parse_whole("--hidden", text, 1); });
  flag(c, "--layers", "L", "Layers (default: the preset's, else 1)",
       [&o](const std::string& text) { o.layers = parse_whole("--layers", text, 1); });
  flag(c, "--format", "F", "hf (default): config.json, safetensors; meta: params.json, consolidated.NN.pth; gguf",
       [&o](const std::string& text) { o.format = parse_format("--format", text); });
  flag(c, "--shards", "S", "Weight files (default: 1)",
       [&o](const std::string& text) { o.shards = static_cast<int>(parse_whole("--shards", text, 1, INT32_MAX)); });
  flag(c, "--dtype", "TYPE", "bf16 (default), f32, f16 or f64; in gguf q8_0 or q4_0",
       [&o](const std::string& text) { o.type = parse_tensor_type("--dtype", text); });
  flag(c, "--seed", "S", "The weights depend on it alone (default: 1)",
       [&o](const std::string& text) { o.seed = parse_seed("--seed", text); });
  flag(c, "-o,--output", "OUT (required)", "A folder without a checkpoint; or for gguf FILE.gguf, a new file",
       [&o](const std::string& text) { o.output = text; })
      ->required();
  c->footer(
      "Examples:\n  swiglu synth --preset llama-3-8b --layers 1 -o one-layer\n"
      "  swiglu synth --dim 64 --hidden 172 --layers 5 --format meta --shards 2 -o tiny\n");
  return c;
}

CLI::App* add_compare(CLI::App& app, CompareOptions& o) {
  CLI::App* c = app.add_subcommand("compare", "Do two checkpoints hold the same feed-forward, and if not, why");
  flag(c, "A", " ", "A checkpoint of any format, as MODEL of the other commands", [&o](const std::string& text) {
    o.a = text;
  })->required();
  flag(c, "B", " ", "Another one, of the same or another format", [&o](const std::string& text) {
    o.b = text;
  })->required();
  flag(c, "--layer", "N|all", "Which layer, from 0 (default: all)", [&o](const std::string& text) {
    if (text != "all") o.layer = parse_whole("--layer", text, 0);
  });
  expert_flag(c, o.expert);
  flag(c, "--input", "X.npy", "[tokens, dim] to run both on (default: 4 normal and 4 heavy-tailed tokens from a seed)",
       [&o](const std::string& text) { o.input = text; });
  c->add_flag("--allow-rounding", o.allow_rounding, "Weights that are equal after rounding exit with 0 too");
  threads_flag(c, o.threads);
  flag(c, "--eps", "E", "Of both norms, instead of the files'",
       [&o](const std::string& text) { o.open.eps = parse_positive("--eps", text); });
  flag(c, "--hidden", "H", "Confirms the width of the tensors of A or B where its metadata contradicts them",
       [&o](const std::string& text) { o.open.hidden = parse_whole("--hidden", text, 1); });
  json_flag(c, o.json);
  c->footer(
      "Exits 0 when all values are the same whatever types hold them, 1 when not: a cause is named if one accounts\n"
      "for every element. Reads both models once, layers that differ a few times.\n\nExamples:\n"
      "  swiglu compare Meta-Llama-3-8B Meta-Llama-3-8B-hf\n"
      "  swiglu compare model-f32 model-bf16 --allow-rounding --layer 0\n  swiglu compare model model.swiglu --json\n");
  return c;
}

CLI::App* add_pack(CLI::App& app, PackOptions& o) {
  CLI::App* c = app.add_subcommand("pack", "Layers of a checkpoint as one file that loads without packing");
  model_argument(c, o.model);
  flag(c, "--layers", "LIST|all", "As 0,3,5-8 (default: all)", [&o](const std::string& text) {
    if (text != "all") o.layers = parse_ranges("--layers", text);
  });
  expert_flag(c, o.expert);
  compute_flag(c, o.compute);
  storage_flag(c, o.storage);
  threads_flag(c, o.threads);
  eps_and_hidden_flags(c, o.open);
  flag(c, "-o,--output", "FILE (required)", "Usually NAME.swiglu; replaced if it is a packed file already",
       [&o](const std::string& text) { o.output = text; })
      ->required();
  c->footer(
      "The other commands take FILE for MODEL; layers keep their numbers. Memory: one packed layer at a time.\n\n"
      "Examples:\n  swiglu pack Meta-Llama-3-8B -o llama.swiglu && swiglu run llama.swiglu --layer 0 --input h.npy -o "
      "y.npy\n"
      "  swiglu pack Meta-Llama-3-8B --layers 0-3,31 --compute f32 --storage plain -o some.swiglu\n");
  return c;
}

CLI::App* add_convert(CLI::App& app, ConvertOptions& o) {
  CLI::App* c = app.add_subcommand("convert", "Feed-forward tensors in another format, other shards or another type");
  model_argument(c, o.model);
  flag(c, "OUT", " ", "A folder without a checkpoint; or for gguf FILE.gguf, a new file",
       [&o](const std::string& text) { o.output = text; })
      ->required();
  flag(c, "--format", "F (required)", "hf: config.json, safetensors; meta: params.json, consolidated.NN.pth; gguf",
       [&o](const std::string& text) { o.format = parse_format("--format", text); })
      ->required();
  flag(c, "--shards", "S", "Weight files (default: 1), whatever number the model has",
       [&o](const std::string& text) { o.shards = static_cast<int>(parse_whole("--shards", text, 1, INT32_MAX)); });
  flag(c, "--dtype", "TYPE", "Of the matrices: f32, bf16, f16, f64; gguf: q8_0, q4_0 (default: as stored)",
       [&o](const std::string& text) { o.type = parse_tensor_type("--dtype", text); });
  flag(c, "--layers", "LIST|all", "As 0,3,5-8 (default: all); they are numbered from 0 in OUT",
       [&o](const std::string& text) {
         if (text != "all") o.layers = parse_ranges("--layers", text);
       });
  expert_flag(c, o.expert);
  c->add_flag("--all", o.all,
              "The whole model as it is, attention, embeddings and tokenizer too; hf to hf, gguf to gguf");
  eps_and_hidden_flags(c, o.open);
  c->footer(
      "Attention and embeddings are left out without --all. Weights keep their bits unless --dtype rounds them.\n\n"
      "Examples:\n  swiglu convert Meta-Llama-3-8B out --format hf --shards 4\n"
      "  swiglu convert model.safetensors out.gguf --format gguf --dtype q8_0\n"
      "  swiglu convert Meta-Llama-3-8B-hf out --format hf --shards 8 --all\n");
  return c;
}

}  // namespace swiglu::cli
