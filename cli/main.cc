// The command line: flags to options, errors to exit codes. The only file that knows CLI11.
// Exit codes: 0 done, 1 a difference was found, 2 usage, 3 a file that does not fit, 4 the machine.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "commands.h"
#include "flags.h"
#include "report.h"

namespace swiglu::cli {
namespace {

constexpr int kMostThreads = 4096;
constexpr std::int64_t kMostTokens = 65536;  // of one call of bench
constexpr int kMostNeighbours = 256;
constexpr std::array<std::string_view, 3> kComputes = {"automatic", "f32", "bf16"};
constexpr std::array<std::string_view, 3> kStorages = {"automatic", "plain", "compact"};

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return 2;
    case ErrorCode::not_found:
    case ErrorCode::format:
    case ErrorCode::shape:
    case ErrorCode::unsupported:
      return 3;
    case ErrorCode::io:
    case ErrorCode::no_memory:
    case ErrorCode::communication:
    case ErrorCode::internal:
      return 4;
  }
  return 4;
}

/// A flag whose text `read` turns into a value, throwing Error(usage).
CLI::Option* flag(CLI::App* command, const std::string& names, const std::string& value, const std::string& help,
                  const std::function<void(const std::string&)>& read) {
  return command->add_option_function<std::string>(names, read, help)->option_text(value);
}

void threads_flag(CLI::App* command, int& threads) {
  flag(command, "--threads", "T", "Threads (default: SWIGLU_THREADS, else the CPUs this process may use)",
       [&threads](const std::string& text) {
         threads = static_cast<int>(parse_whole("--threads", text, 1, kMostThreads));
       });
}

void compute_flag(CLI::App* command, Compute& compute) {
  flag(command, "--compute", "TYPE", "automatic (default), f32 or bf16", [&compute](const std::string& text) {
    compute = parse_compute(kComputes[parse_choice("--compute", text, kComputes)]);
  });
}

Storage read_storage(const std::string& text) {
  return parse_storage(kStorages[parse_choice("--storage", text, kStorages)]);
}

void storage_flag(CLI::App* command, Storage& storage) {
  flag(command, "--storage", "KIND", "Of bf16 weights: automatic (default), plain, compact; the same bits",
       [&storage](const std::string& text) { storage = read_storage(text); });
}

/// A flag that takes a list; `read` turns one of its pieces into a value.
template <class T>
void list_flag(CLI::App* command, const std::string& name, const std::string& value, const std::string& help,
               std::vector<T>& values, const std::function<T(const std::string&)>& read) {
  flag(command, name, value, help, [name, &values, read](const std::string& text) {
    values.clear();
    for (const std::string& piece : parse_list(name, text)) values.push_back(read(piece));
  });
}

void model_argument(CLI::App* command, std::filesystem::path& model) {
  flag(command, "MODEL", " ", "A Hugging Face or Meta folder, or one .safetensors, .pth or packed file",
       [&model](const std::string& text) { model = text; })
      ->required();
}

void eps_and_hidden_flags(CLI::App* command, OpenOptions& open) {
  flag(command, "--eps", "E", "Of the norm, instead of the file's (a bare file carries none: 1e-5)",
       [&open](const std::string& text) { open.eps = parse_positive("--eps", text); });
  flag(command, "--hidden", "H", "Confirms the width of the tensors where the metadata contradicts them",
       [&open](const std::string& text) { open.hidden = parse_whole("--hidden", text, 1); });
}

void map_flag(CLI::App* command, bool& map) {
  command->add_flag("--map", map,
                    "Map a packed file: processes share one copy, no checksum is looked at, cutting it kills them");
}

void json_flag(CLI::App* command, bool& json) { command->add_flag("--json", json, "One JSON document on stdout"); }

CLI::App* add_demo(CLI::App& app, DemoOptions& o) {
  CLI::App* c = app.add_subcommand("demo", "Start here: a Llama-3-8B-sized layer made on the spot, timed and checked");
  threads_flag(c, o.threads);
  json_flag(c, o.json);
  c->footer(
      "Needs no files, about 1 GB of memory, and less than a minute.\n\nExamples:\n  swiglu demo\n"
      "  SWIGLU_ISA=avx2 swiglu demo --threads 1\n");
  return c;
}

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

CLI::App* add_run(CLI::App& app, RunOptions& o) {
  CLI::App* c = app.add_subcommand("run", "One layer of a checkpoint on the rows of a .npy file");
  model_argument(c, o.model);
  flag(c, "--layer", "N (required)", "Which layer, from 0", [&o](const std::string& text) {
    o.layer = parse_whole("--layer", text, 0);
  })->required();
  flag(c, "--input", "X.npy (required)", "[tokens, dim] or [batch, tokens, dim] of f32, f64, f16 or bf16",
       [&o](const std::string& text) { o.input = text; })
      ->required();
  flag(c, "-o,--output", "Y.npy (required)", "X's shape and, unless --dtype says otherwise, X's type",
       [&o](const std::string& text) { o.output = text; })
      ->required();
  flag(c, "--part", "PART", "block (default): h + FFN(norm(h)); ffn: w2(silu(w1 x) * w3 x)",
       [&o](const std::string& text) {
         static constexpr std::array<std::string_view, 2> kParts = {"block", "ffn"};
         o.block = parse_choice("--part", text, kParts) == 0;
       });
  compute_flag(c, o.compute);
  storage_flag(c, o.storage);
  flag(c, "--numerics", "KIND", "fused (default), or meta: the roundings of Meta's bf16 code, slowly",
       [&o](const std::string& text) {
         static constexpr std::array<std::string_view, 2> kKinds = {"fused", "meta"};
         o.numerics =
             parse_choice("--numerics", text, kKinds) == 0 ? reference::Numerics::exact : reference::Numerics::meta;
       });
  threads_flag(c, o.threads);
  flag(c, "--dtype", "TYPE", "Of the output: f32, bf16, f16 or f64",
       [&o](const std::string& text) { o.dtype = parse_dtype("--dtype", text); });
  flag(c, "--input-dtype", "bf16", "Take a u2 input for bf16 bit patterns", [&o](const std::string& text) {
    static constexpr std::array<std::string_view, 1> kTypes = {"bf16"};
    o.u2_is_bf16 = parse_choice("--input-dtype", text, kTypes) == 0;
  });
  eps_and_hidden_flags(c, o.open);
  map_flag(c, o.open.map);
  c->footer(
      "Says on stderr what it did. SWIGLU_ISA=avx2 (and so on) forces a lower instruction set: the same bits.\n\n"
      "Examples:\n  swiglu run Meta-Llama-3-8B --layer 0 --input h.npy --output out.npy\n"
      "  swiglu run model.safetensors --layer 5 --input x.npy -o y.npy --part ffn --dtype f32\n");
  return c;
}

CLI::App* add_verify(CLI::App& app, VerifyOptions& o) {
  CLI::App* c =
      app.add_subcommand("verify", "The fast path against a double-precision oracle, and its bits against themselves");
  model_argument(c, o.model);
  flag(c, "--layer", "N|all", "Which layer, from 0 (default: all)", [&o](const std::string& text) {
    if (text != "all") o.layer = parse_whole("--layer", text, 0);
  });
  flag(c, "--input", "X.npy", "[tokens, dim] (default: 4 normal and 4 heavy-tailed tokens from a seed)",
       [&o](const std::string& text) { o.input = text; });
  compute_flag(c, o.compute);
  threads_flag(c, o.threads);
  map_flag(c, o.map);
  json_flag(c, o.json);
  c->footer(
      "Exits 0 when every element is within its bound and every run gave the same bits, else 1.\n\nExamples:\n"
      "  swiglu verify Meta-Llama-3-8B --layer 0\n  swiglu verify Meta-Llama-3-8B --layer all --json\n");
  return c;
}

CLI::App* add_pack(CLI::App& app, PackOptions& o) {
  CLI::App* c = app.add_subcommand("pack", "Layers of a checkpoint as one file that loads without packing");
  model_argument(c, o.model);
  flag(c, "--layers", "LIST|all", "As 0,3,5-8 (default: all)", [&o](const std::string& text) {
    if (text != "all") o.layers = parse_ranges("--layers", text);
  });
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
  flag(c, "--format", "F", "hf (default): config.json and safetensors; meta: params.json and consolidated.NN.pth",
       [&o](const std::string& text) {
         static constexpr std::array<std::string_view, 2> kFormats = {"hf", "meta"};
         o.format =
             parse_choice("--format", text, kFormats) == 0 ? CheckpointFormat::huggingface : CheckpointFormat::meta;
       });
  flag(c, "--shards", "S", "Weight files (default: 1)",
       [&o](const std::string& text) { o.shards = static_cast<int>(parse_whole("--shards", text, 1, INT32_MAX)); });
  flag(c, "--dtype", "TYPE", "bf16 (default), f32, f16 or f64",
       [&o](const std::string& text) { o.dtype = parse_dtype("--dtype", text); });
  flag(c, "--seed", "S", "The weights depend on it alone (default: 1)",
       [&o](const std::string& text) { o.seed = parse_seed("--seed", text); });
  flag(c, "-o,--output", "DIR (required)", "A folder without a checkpoint; made if missing",
       [&o](const std::string& text) { o.output = text; })
      ->required();
  c->footer(
      "Examples:\n  swiglu synth --preset llama-3-8b --layers 1 -o one-layer\n"
      "  swiglu synth --dim 64 --hidden 172 --layers 5 --format meta --shards 2 -o tiny\n");
  return c;
}

CLI::App* add_bench(CLI::App& app, BenchOptions& o) {
  CLI::App* c = app.add_subcommand("bench", "How fast a layer is, beside this machine's own limits");
  flag(c, "MODEL", " ", "Of a checkpoint (default: a made-up layer of --preset or --dim and --hidden)",
       [&o](const std::string& text) { o.model = text; });
  flag(c, "--layer", "N", "Which layer of MODEL, from 0 (default: its first)",
       [&o](const std::string& text) { o.layer = parse_whole("--layer", text, 0); });
  flag(c, "--preset", "NAME", "A published shape (default: llama-3-8b, or llama-3.2-1b where memory is short)",
       [&o](const std::string& text) { o.preset = text; });
  flag(c, "--dim", "D", "Without a preset: the model's width",
       [&o](const std::string& text) { o.dim = parse_whole("--dim", text, 1); });
  flag(c, "--hidden", "H", "Without a preset: the feed-forward's width; with MODEL: confirms its tensors' width",
       [&o](const std::string& text) { o.hidden = parse_whole("--hidden", text, 1); });
  flag(c, "--eps", "E", "Of MODEL's norm, instead of the file's",
       [&o](const std::string& text) { o.eps = parse_positive("--eps", text); });
  map_flag(c, o.map);
  flag(c, "--dtype", "TYPE", "Of made-up weights: bf16 (default), f32, f16 or f64",
       [&o](const std::string& text) { o.dtype = parse_dtype("--dtype", text); });
  list_flag<std::int64_t>(c, "--tokens", "LIST", "Tokens a call (default: 1,2,4,8,16,32,64,128,256,512)", o.tokens,
                          [](const std::string& text) { return parse_whole("--tokens", text, 1, kMostTokens); });
  list_flag<int>(
      c, "--threads", "LIST", "Threads (default: 1 and as many as the other commands use)", o.threads,
      [](const std::string& text) { return static_cast<int>(parse_whole("--threads", text, 1, kMostThreads)); });
  list_flag<Compute>(
      c, "--compute", "LIST", "Of automatic (default: bf16 for bf16 weights, else f32), f32, bf16", o.computes,
      [](const std::string& text) { return parse_compute(kComputes[parse_choice("--compute", text, kComputes)]); });
  list_flag<Isa>(c, "--isa", "LIST", "Instruction sets (default: SWIGLU_ISA, else the fastest here)", o.isas,
                 [](const std::string& text) { return parse_isa(text); });
  list_flag<Storage>(c, "--storage", "LIST", "Of automatic, plain, compact, in turns (default: plain,compact of bf16)",
                     o.storages, [](const std::string& text) { return read_storage(text); });
  flag(c, "--neighbours", "N", "Threads that read other memory meanwhile, so that bandwidth is scarce (default: 0)",
       [&o](const std::string& text) {
         o.neighbours = static_cast<int>(parse_whole("--neighbours", text, 0, kMostNeighbours));
       });
  flag(c, "--json", "[FILE]", "All samples and the machine as JSON, into FILE; without one, on stdout, not the table",
       [&o](const std::string& text) { o.json = text; })
      ->expected(0, 1);
  flag(c, "--svg", "FILE", "A picture: share of the limit and time per token against tokens",
       [&o](const std::string& text) { o.svg = text; });
  c->footer(
      "Limits (read bandwidth by the best of several patterns, multiply-add and dot product peaks) are measured\n"
      "beside every row. A row's ratio is the time they would allow / the time it took; storages take turns in each\n"
      "row, and \"/ plain\" is the time / that of plain storage in the same rounds. Needs up to 2 GB, 4 "
      "minutes.\n\n"
      "Examples:\n  swiglu bench\n  swiglu bench --threads 1 --tokens 1,16,128 --json bench.json --svg bench.svg\n"
      "  swiglu bench Meta-Llama-3-8B --layer 3 --tokens 1\n  swiglu bench --dtype f32 --compute f32,bf16 --isa "
      "avx2\n");
  return c;
}

CLI::App* add_width(CLI::App& app, WidthOptions& o) {
  CLI::App* c = app.add_subcommand("width", "The hidden width that Meta's recipe gives, as a number alone");
  flag(c, "--dim", "D (required)", "The model's width", [&o](const std::string& text) {
    o.dim = parse_whole("--dim", text, 1);
  })->required();
  flag(c, "--multiple-of", "M", "Rounded up to a multiple of this (default: 256)",
       [&o](const std::string& text) { o.multiple_of = parse_whole("--multiple-of", text, 1); });
  flag(c, "--ffn-dim-multiplier", "X", "params.json's ffn_dim_multiplier (default: none)",
       [&o](const std::string& text) { o.multiplier = parse_positive("--ffn-dim-multiplier", text); });
  c->footer("Examples:\n  swiglu width --dim 4096 --multiple-of 1024 --ffn-dim-multiplier 1.3\n");
  return c;
}

struct Command {
  CLI::App* app;
  std::function<int()> run;
};

std::vector<Words> words_of(const std::vector<Command>& commands) {
  std::vector<Words> words;
  for (const Command& command : commands) {
    words.push_back({command.app->get_name(), {}});
    for (const CLI::Option* option : command.app->get_options()) {
      for (const std::string& name : option->get_lnames()) words.back().flags.push_back("--" + name);
    }
  }
  return words;
}

int run_command_line(int argc, char** argv) {
  CLI::App app("The Llama 3 feed-forward sublayer on CPUs: fast, exact about its errors, the same bits everywhere.",
               "swiglu");
  app.set_version_flag("--version", std::string("swiglu ") + version());
  app.footer(
      "Start with `swiglu demo`; `swiglu COMMAND --help` teaches one command.\n\n"
      "Exit codes: 0 done; 1 a difference or an inconsistency was found; 2 usage; 3 a file that is missing or\n"
      "does not fit; 4 the machine (disk, memory). Results go to stdout, all else to stderr.\n"
      "SWIGLU_ISA (scalar, avx2, avx512, avx512bf16) and SWIGLU_THREADS set defaults.\n");
  app.get_formatter()->column_width(34);
  DemoOptions demo_options;
  InspectOptions inspect_options;
  RunOptions run_options;
  VerifyOptions verify_options;
  PackOptions pack_options;
  SynthOptions synth_options;
  BenchOptions bench_options;
  WidthOptions width_options;
  const std::vector<Command> commands = {
      {add_demo(app, demo_options), [&] { return demo(demo_options); }},
      {add_inspect(app, inspect_options), [&] { return inspect(inspect_options); }},
      {add_run(app, run_options), [&] { return run(run_options); }},
      {add_verify(app, verify_options), [&] { return verify(verify_options); }},
      {add_pack(app, pack_options), [&] { return pack(pack_options); }},
      {add_synth(app, synth_options), [&] { return synth(synth_options); }},
      {add_bench(app, bench_options), [&] { return bench(bench_options); }},
      {add_width(app, width_options), [&] { return width(width_options); }},
  };
  check_words({argv + 1, argv + argc}, words_of(commands));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& fault) {
    if (fault.get_exit_code() == 0) return app.exit(fault);  // --help, --version
    std::string text = fault.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    throw Error(ErrorCode::usage, text);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  throw Error(ErrorCode::usage, "no command given: try `swiglu demo`, or `swiglu --help`");
}

/// Everything that can go wrong, as one line and an exit code.
int guarded(int argc, char** argv) {
  const auto fail = [](ErrorCode code, std::string_view text) {
    tell(fmt::format("swiglu: error: {}\n", printable(text)));
    return exit_code(code);
  };
  try {
    const int code = run_command_line(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return fail(ErrorCode::io, fmt::format("standard output: {}", std::strerror(errno)));
    }
    return code;
  } catch (const Error& fault) {
    return fail(fault.code(), fault.text());
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::no_memory, "out of memory");
  } catch (const std::exception& fault) {
    return fail(ErrorCode::internal, fmt::format("internal: {}", fault.what()));
  }
}

}  // namespace
}  // namespace swiglu::cli

int main(int argc, char** argv) { return swiglu::cli::guarded(argc, argv); }
