// The flags of the commands that run layers: demo, run, verify, bench, and of width.
#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>

#include "command_line.h"

namespace swiglu::cli {
namespace {

constexpr std::int64_t kMostTokens = 65536;  // of one call of bench
constexpr int kMostNeighbours = 256;

}  // namespace

CLI::App* add_demo(CLI::App& app, DemoOptions& o) {
  CLI::App* c = app.add_subcommand("demo", "Start here: a Llama-3-8B-sized layer made on the spot, timed and checked");
  threads_flag(c, o.threads);
  json_flag(c, o.json);
  c->footer(
      "Needs no files, about 1 GB of memory, and less than a minute.\n\nExamples:\n  swiglu demo\n"
      "  SWIGLU_ISA=avx2 swiglu demo --threads 1\n");
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
  expert_flag(c, o.expert);
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
  expert_flag(c, o.expert);
  compute_flag(c, o.compute);
  threads_flag(c, o.threads);
  map_flag(c, o.map);
  json_flag(c, o.json);
  c->footer(
      "Exits 0 when every element is within its bound and every run gave the same bits, else 1.\n\nExamples:\n"
      "  swiglu verify Meta-Llama-3-8B --layer 0\n  swiglu verify Meta-Llama-3-8B --layer all --json\n");
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
  expert_flag(c, o.expert);
  map_flag(c, o.map);
  flag(c, "--dtype", "TYPE", "Of made-up weights: bf16 (default), f32, f16 or f64",
       [&o](const std::string& text) { o.dtype = parse_dtype("--dtype", text); });
  list_flag<std::int64_t>(c, "--tokens", "LIST", "Tokens a call (default: 1,2,4,8,16,32,64,128,256,512)", o.tokens,
                          [](const std::string& text) { return parse_whole("--tokens", text, 1, kMostTokens); });
  list_flag<int>(
      c, "--threads", "LIST", "Threads (default: 1 and as many as the other commands use)", o.threads,
      [](const std::string& text) { return static_cast<int>(parse_whole("--threads", text, 1, kMostThreads)); });
  list_flag<Compute>(c, "--compute", "LIST", "Of automatic (default: bf16 for bf16 weights, else f32), f32, bf16",
                     o.computes, [](const std::string& text) { return read_compute(text); });
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

void adapt_to_ranks(CLI::App* command, RanksOptions& o) {
  for (const char* lacking : {"--numerics", "--svg", "--neighbours"}) {
    if (CLI::Option* option = command->get_option_no_throw(lacking)) command->remove_option(option);
  }
  const std::string name = command->get_name();
  if (name != "verify") {
    flag(command, "--wire", "TYPE", "f32 (default): the bits of one process; bf16: half the bytes, other bits",
         [&o](const std::string& text) {
           static constexpr std::array<std::string_view, 2> kWires = {"f32", "bf16"};
           o.wire = kWires[parse_choice("--wire", text, kWires)];
         });
  }
  flag(command, "--timeout", "SECONDS", "How long ranks wait for one another before they give up (default: 120)",
       [&o](const std::string& text) { o.timeout_seconds = parse_positive("--timeout", text); });
  const std::string more = name == "demo" || name == "bench" ? "" : " MODEL --layer 0";
  const std::string files = name == "run" ? " --input h.npy --output out.npy" : "";
  command->footer(fmt::format(
      "--threads counts the threads of one rank; unless given, ranks share this machine's CPUs fairly.\n"
      "Every rank opens MODEL; only rank 0 reads other files, writes, and prints.\n\nExamples:\n"
      "  mpirun -n 2 swiglu-mpi {0}{1}{2}\n  mpirun --hostfile hosts -n 8 swiglu-mpi {0}{1}{2} --timeout 30\n",
      name, more, files));
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

}  // namespace swiglu::cli
