// swiglu demo: the main job with nothing to download, shown so that one look is enough.
#include "demo.h"

#include <fmt/format.h>

#include "commands.h"
#include "report.h"
#include "storage.h"

namespace swiglu::cli {

namespace {

std::string show_speed(const DemoReport& report) {
  Table table;
  for (const char* title : {"tokens", "time", "spread", "per token", "GFLOP/s", "GB/s"}) table.column(title);
  table.column("of the limit");
  table.column("", Table::Align::left);
  for (const SpeedRow& row : report.speed) {
    table.row({std::to_string(row.tokens), format_seconds(row.time()),
               fmt::format("±{:.0f} %", 100 * spread(row.samples)),
               format_seconds(row.time() / static_cast<double>(row.tokens)), fmt::format("{:.0f}", row.gflops()),
               fmt::format("{:.1f}", row.gb_per_s()), fmt::format("{:.0f} %", 100 * row.roofline_ratio()),
               row.bandwidth_bound ? "memory bandwidth" : "arithmetic"});
  }
  return table.text();
}

std::string list(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

void show(const DemoReport& report) {
  const FfnConfig& config = report.layer.config;
  say(fmt::format(
      "{}\n", headline("The Llama 3 feed-forward sublayer: out = h + W2 · (silu(W1 · n) ⊙ (W3 · n)), n = RMSNorm(h)")));
  say(fmt::format("  layer    Llama-3-8B's shape: dim {}, hidden {}; {} weights, made from a seed\n", config.dim,
                  config.hidden, name_of(DType::bf16)));
  say(fmt::format("  machine  {}, {}, {}\n", printable(report.machine.cpu), name_of(report.layer.isa),
                  plural(report.threads, "thread")));
  const double peak = peak_gflops(report.limits, report.layer.compute);
  say(fmt::format("  limits   {:.1f} GB/s of memory, {:.0f} GFLOP/s of {}, measured beside the rows\n",
                  report.limits.read_gb_per_s, peak, peak == report.limits.fma_gflops ? "fma" : "bf16 dot products"));
  say(fmt::format("  packed   once, as {} ({}), in {}; peak memory of the process {}\n\n", storage_of(report.layer),
                  show_bits(report.layer), format_seconds(report.pack_seconds),
                  format_bytes(static_cast<double>(report.peak_bytes))));
  say(show_speed(report) + "\n");
  for (const std::int64_t tokens : report.skipped) {
    say(fmt::format("  {} left out: they would take too long here\n", plural(tokens, "token")));
  }
  say(fmt::format("{} accuracy  {} from the double-precision oracle; Meta's own bf16 arithmetic is {} from it\n",
                  mark(report.accurate()), format_error(report.error), format_error(report.meta_error)));
  say(fmt::format("{} same bits {}/{} runs: alone and in every batch, {} threads, {}\n", mark(report.same_bits()),
                  report.bit_runs_equal, report.bit_runs, fmt::join(report.bit_threads, " and "),
                  list(report.bit_isas)));
  say(fmt::format("{} done      in {}\n\n", mark(report.accurate() && report.same_bits()),
                  format_seconds(report.seconds)));
  say("Next, with your own checkpoint (a Hugging Face or Meta folder):\n"
      "  swiglu inspect Meta-Llama-3-8B\n"
      "  swiglu verify Meta-Llama-3-8B --layer 0\n"
      "  swiglu run Meta-Llama-3-8B --layer 0 --input h.npy --output out.npy\n"
      "or without one:\n"
      "  swiglu synth --preset llama-3.2-1b --layers 1 -o tiny && swiglu verify tiny\n");
}

std::string show_json(const DemoReport& report) {
  Json json;
  json.object().field("schema_version", 1).field("command", "demo").key("machine").object();
  json.field("cpu", report.machine.cpu).field("cpus", report.machine.cpus);
  std::vector<std::string> isas;
  isas.reserve(report.machine.isas.size());
  for (const Isa isa : report.machine.isas) isas.emplace_back(name_of(isa));
  json.list("isas", isas).field("l1d_bytes", report.machine.l1d_bytes).field("l2_bytes", report.machine.l2_bytes);
  json.field("l3_bytes", report.machine.l3_bytes).field("memory_bytes", report.machine.memory_bytes);
  json.field("compiler", report.machine.compiler).end();
  json.key("limits").object().field("read_gb_per_s", report.limits.read_gb_per_s);
  json.field("read_pattern", report.limits.read_pattern).field("fma_gflops", report.limits.fma_gflops);
  json.field("bf16_dot_gflops", report.limits.bf16_dot_gflops).field("int8_dot_gops", report.limits.int8_dot_gops);
  json.field("peak_gflops", peak_gflops(report.limits, report.layer.compute)).end();
  json.key("layer").object().field("dim", report.layer.config.dim).field("hidden", report.layer.config.hidden);
  json.field("eps", report.layer.config.eps).field("storage", storage_of(report.layer));
  json.field("packed_bytes", report.layer.packed_bytes).field("bits_per_weight", report.layer.bits_per_weight);
  json.field("pack_time_ms", report.pack_seconds * 1e3);
  json.field("peak_memory_bytes", report.peak_bytes).end();
  json.key("rows").array();
  for (const SpeedRow& row : report.speed) {
    json.object().field("threads", report.threads).field("compute", name_of(report.layer.compute));
    json.field("storage", storage_of(report.layer)).field("isa", name_of(report.layer.isa));
    json.field("tokens", row.tokens);
    json.field("time_ms", row.time() * 1e3).field("gflops", row.gflops()).field("gb_per_s", row.gb_per_s());
    json.field("roofline_ratio", row.roofline_ratio());
    json.field("limit", row.bandwidth_bound ? "bandwidth" : "compute").key("samples_ms").array();
    for (const double sample : row.samples) json.value(sample * 1e3);
    json.end().end();
  }
  json.end().list("skipped_tokens", report.skipped);
  json.key("accuracy").object().field("relative_error", report.error).field("meta_relative_error", report.meta_error);
  json.field("tokens", report.checked_tokens).field("outputs", report.checked_outputs);
  json.field("pass", report.accurate()).end();
  json.key("bits").object().field("runs", report.bit_runs).field("equal", report.bit_runs_equal);
  json.list("isas", report.bit_isas).list("threads", report.bit_threads).field("pass", report.same_bits()).end();
  json.field("time_ms", report.seconds * 1e3).field("pass", report.accurate() && report.same_bits());
  return json.end().text();
}

}  // namespace

int demo(const DemoOptions& options, Team* team) {
  if (team != nullptr) return demo_on_ranks(options, *team);
  DemoReport report;
  {
    Meter meter("demo");
    report = measure_demo(options.threads, meter);
  }
  if (options.json) {
    say(show_json(report));
  } else {
    show(report);
  }
  return report.accurate() && report.same_bits() ? 0 : 1;
}

}  // namespace swiglu::cli
