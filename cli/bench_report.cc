// How the result of `bench` looks: a table, a JSON document. A row is known by (threads, compute,
// storage, isa) and its tokens.
#include <fmt/format.h>

#include <algorithm>

#include "bench.h"
#include "report.h"
#include "storage.h"

namespace swiglu::cli {

namespace {

std::string rate(double x) { return fmt::format("{:.{}f}", x, x < 9.95 ? 1 : 0); }

std::string percent(double part) { return fmt::format("{:.0f} %", 100 * part); }

std::string show_limits(const Limits& limits) {
  std::string text =
      fmt::format("{:.1f} GB/s ({}), fma {}", limits.read_gb_per_s, limits.read_pattern, rate(limits.fma_gflops));
  if (limits.bf16_dot_gflops > 0) text += fmt::format(", bf16 dot {}", rate(limits.bf16_dot_gflops));
  text += " GFLOP/s";
  if (limits.int8_dot_gops > 0) text += fmt::format(", int8 dot {} Gop/s", rate(limits.int8_dot_gops));
  return text;
}

/// "265 MB, 12.03 bits a weight; 3 of 1344 panels plain, 52 patches"
std::string show_weights(const FeedForwardInfo& layer) {
  std::string bits = show_bits(layer);
  if (is_plain(layer)) return bits;
  return fmt::format("{}; {} of {} plain, {}", bits, plain_panels_of(layer), plural(panels_of(layer), "panel"),
                     patches_of(layer) == 1 ? "1 patch" : fmt::format("{} patches", patches_of(layer)));
}

std::string show_set(const BenchSet& set) {
  std::string text = fmt::format("{}\n  weights {}\n  limits {}\n\n", headline(key_of(set.layer, set.threads)),
                                 show_weights(set.layer), show_limits(set.limits));
  const bool beside_plain = std::any_of(set.over_plain.begin(), set.over_plain.end(),
                                        [](const std::vector<double>& ratios) { return !ratios.empty(); });
  Table table;
  for (const char* title : {"tokens", "time", "spread", "per token", "GFLOP/s", "GB/s"}) table.column(title);
  if (beside_plain) {
    table.column("/ plain");
    table.column("spread");
  }
  table.column("of the limit");
  table.column("spread");
  table.column("", Table::Align::left);
  for (std::size_t i = 0; i < set.rows.size(); ++i) {
    const SpeedRow& row = set.rows[i];
    std::vector<std::string> cells = {std::to_string(row.tokens),
                                      format_seconds(row.time()),
                                      "±" + percent(spread(row.samples)),
                                      format_seconds(row.time() / static_cast<double>(row.tokens)),
                                      rate(row.gflops()),
                                      fmt::format("{:.1f}", row.gb_per_s())};
    if (beside_plain) {
      cells.push_back(fmt::format("{:.2f}", median(set.over_plain[i])));
      cells.push_back("±" + percent(spread(set.over_plain[i])));
    }
    cells.push_back(percent(row.roofline_ratio()));
    cells.push_back("±" + percent(spread(row.ratios)));
    cells.emplace_back(row.bandwidth_bound ? "bandwidth" : "compute");
    table.row(std::move(cells));
  }
  text += table.text();
  for (const std::int64_t tokens : set.skipped) {
    text += fmt::format("  {} left out: they would take too long here\n", plural(tokens, "token"));
  }
  return text + "\n";
}

/// One line for each packed layer: "denormal weights / ordinary ones, time: 1.00 at 1 token, …".
std::string show_denormals(const std::vector<DenormalRow>& rows) {
  std::string text, open;
  for (const DenormalRow& row : rows) {
    const std::string key = key_of(row.layer, row.threads);
    if (key != open) {
      if (!open.empty()) text += fmt::format(" ({})\n", open);
      text += "denormal weights / ordinary ones, time";
    }
    text += fmt::format("{} {:.2f} at {}", key == open ? "," : ":", median(row.ratios), plural(row.tokens, "token"));
    open = key;
  }
  return open.empty() ? text : text + fmt::format(" ({})\n", open);
}

std::string show_load(const LoadReport& load) {
  std::string text;
  const auto bytes = static_cast<double>(load.source_bytes);
  if (load.measured) {
    const double time = median(load.seconds);
    text =
        fmt::format("{} in {} on {} from {}, {:.2f} times {} the same bytes", format_bytes(bytes), format_seconds(time),
                    plural(load.threads, "thread"), load.from_files ? "cached files" : "memory", load.ratio(),
                    load.from_files ? "reading" : "copying");
    if (load.from_files)
      text += fmt::format(" ({:.2f} times without keeping them)", time / median(load.discard_seconds));
    text += "; ";
  }
  if (load.peak_bytes > 0) text += fmt::format("peak memory {}; ", format_bytes(static_cast<double>(load.peak_bytes)));
  return text + storage_of(load.layer);
}

void put_key(Json& json, const FeedForwardInfo& layer, int threads) {
  json.field("threads", threads).field("compute", name_of(layer.compute)).field("storage", storage_of(layer));
  json.field("isa", name_of(layer.isa));
}

void put_numbers(Json& json, std::string_view name, const std::vector<double>& numbers, double factor = 1) {
  json.key(name).array();
  for (const double number : numbers) json.value(number * factor);
  json.end();
}

void put_machine(Json& json, const Machine& machine) {
  json.key("machine").object().field("cpu", machine.cpu).field("cpus", machine.cpus);
  std::vector<std::string> isas;
  isas.reserve(machine.isas.size());
  for (const Isa isa : machine.isas) isas.emplace_back(name_of(isa));
  json.list("isas", isas).field("l1d_bytes", machine.l1d_bytes).field("l2_bytes", machine.l2_bytes);
  json.field("l3_bytes", machine.l3_bytes).field("memory_bytes", machine.memory_bytes).end();
}

void put_limits(Json& json, const Limits& limits) {
  json.field("read_gb_per_s", limits.read_gb_per_s).field("read_pattern", limits.read_pattern);
  json.field("fma_gflops", limits.fma_gflops).field("bf16_dot_gflops", limits.bf16_dot_gflops);
  json.field("int8_dot_gops", limits.int8_dot_gops);
}

void put_set(Json& json, const BenchSet& set) {
  json.object();
  put_key(json, set.layer, set.threads);
  json.field("packed_bytes", set.layer.packed_bytes).field("bits_per_weight", set.layer.bits_per_weight);
  json.field("panels", panels_of(set.layer)).field("plain_panels", plain_panels_of(set.layer));
  json.field("patches", patches_of(set.layer)).end();
}

void put_row(Json& json, const BenchSet& set, std::size_t number) {
  const SpeedRow& row = set.rows[number];
  const std::vector<double>& over_plain = set.over_plain[number];
  json.object();
  put_key(json, set.layer, set.threads);
  json.field("tokens", row.tokens).field("packed_bytes", set.layer.packed_bytes);
  json.field("time_ms", 1e3 * row.time()).field("time_spread", spread(row.samples));
  json.field("gflops", row.gflops()).field("gb_per_s", row.gb_per_s());
  json.field("roofline_ratio", row.roofline_ratio()).field("roofline_spread", spread(row.ratios));
  json.field("limit", row.bandwidth_bound ? "bandwidth" : "compute").key("over_plain");
  (over_plain.empty() ? json.null() : json.value(median(over_plain))).key("over_plain_spread");
  over_plain.empty() ? json.null() : json.value(spread(over_plain));
  put_numbers(json, "over_plain_samples", over_plain);
  put_numbers(json, "samples_ms", row.samples, 1e3);
  put_numbers(json, "ratio_samples", row.ratios);
  put_numbers(json, "limit_samples_ms", row.bound_times, 1e3);
  json.key("limits_beside").array();
  for (const Limits& limits : row.limits) {
    json.object();
    put_limits(json, limits);
    json.end();
  }
  json.end().end();
}

void put_load(Json& json, const LoadReport& load) {
  json.object().field("storage", storage_of(load.layer));
  json.field("from", !load.measured ? "not measured" : load.from_files ? "files" : "memory");
  json.field("source_bytes", load.source_bytes).field("threads", load.threads);
  json.key("peak_memory_bytes");
  load.peak_bytes > 0 ? json.value(load.peak_bytes) : json.null();
  if (load.measured) {
    json.field("time_ms", 1e3 * median(load.seconds)).field("beside", load.from_files ? "pread" : "copy");
    json.field("beside_ms", 1e3 * median(load.beside_seconds)).field("ratio", load.ratio());
    put_numbers(json, "samples_ms", load.seconds, 1e3);
    put_numbers(json, "beside_samples_ms", load.beside_seconds, 1e3);
    if (load.from_files) put_numbers(json, "discard_samples_ms", load.discard_seconds, 1e3);
  }
  json.end();
}

}  // namespace

std::string key_of(const FeedForwardInfo& layer, int threads) {
  return fmt::format("{} compute, {}, {}, {}", name_of(layer.compute), storage_of(layer), name_of(layer.isa),
                     plural(threads, "thread"));
}

std::string show_neighbours(const BenchReport& report) {
  if (report.neighbours == 0) return "";
  return fmt::format("; beside {} that {} {:.1f} GB/s", plural(report.neighbours, "neighbour"),
                     report.neighbours == 1 ? "reads" : "read", report.neighbours_gb_per_s);
}

std::string bench_table(const BenchReport& report) {
  const Machine& machine = report.machine;
  std::string text = fmt::format("{}: dim {}, hidden {}, {} weights{}{}\n", headline(report.name), report.config.dim,
                                 report.config.hidden, report.dtype, report.made_up ? ", made from a seed" : "",
                                 show_neighbours(report));
  text += fmt::format("  machine  {}, {}; {}, swiglu {} ({})\n", printable(machine.cpu), plural(machine.cpus, "CPU"),
                      machine.compiler, version(), SWIGLU_COMMIT);
  for (const LoadReport& load : report.loads) text += fmt::format("  loading  {}\n", show_load(load));
  text += "\n";
  for (const BenchSet& set : report.sets) text += show_set(set);
  text += show_denormals(report.denormals);
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  return text + fmt::format("Limits were measured beside each row; shown are the best. Done in {}.\n",
                            format_seconds(report.seconds));
}

std::string bench_json(const BenchReport& report) {
  Json json;
  json.object().field("schema_version", 1).field("command", "bench").field("version", version());
  json.field("commit", SWIGLU_COMMIT).field("compiler", report.machine.compiler);
  put_machine(json, report.machine);
  json.field("neighbours", report.neighbours).field("neighbours_gb_per_s", report.neighbours_gb_per_s);
  json.key("layer").object().field("name", report.name).field("dim", report.config.dim);
  json.field("hidden", report.config.hidden).field("dtype", report.dtype).end();
  json.key("limits").array();
  for (const BenchSet& set : report.sets) {
    json.object();
    put_key(json, set.layer, set.threads);
    put_limits(json, set.limits);
    json.field("memory_bytes", set.probe_bytes).key("read_patterns").array();
    for (const LimitProbe::Pattern& pattern : set.patterns) {
      json.object().field("name", pattern.name).field("gb_per_s", pattern.best_gb_per_s).end();
    }
    json.end().end();
  }
  json.end().key("load").array();
  for (const LoadReport& load : report.loads) put_load(json, load);
  json.end().key("sets").array();
  for (const BenchSet& set : report.sets) put_set(json, set);
  json.end().key("rows").array();
  for (const BenchSet& set : report.sets) {
    for (std::size_t i = 0; i < set.rows.size(); ++i) put_row(json, set, i);
  }
  json.end().key("skipped").array();
  for (const BenchSet& set : report.sets) {
    for (const std::int64_t tokens : set.skipped) {
      json.object();
      put_key(json, set.layer, set.threads);
      json.field("tokens", tokens).end();
    }
  }
  json.end().key("denormal_weights").array();
  for (const DenormalRow& row : report.denormals) {
    json.object();
    put_key(json, row.layer, row.threads);
    json.field("tokens", row.tokens).field("time_ratio", median(row.ratios));
    put_numbers(json, "ratio_samples", row.ratios);
    json.end();
  }
  json.end().list("notes", report.notes).field("time_ms", 1e3 * report.seconds);
  return json.end().text();
}

}  // namespace swiglu::cli
