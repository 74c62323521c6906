// How the result of `bench` looks: a table, a JSON document, a chart. A row is known by (threads, compute,
// storage, isa) and its tokens.
#include <fmt/format.h>

#include <algorithm>

#include "bench.h"
#include "report.h"
#include "svg.h"

namespace swiglu::cli {

namespace {

std::string key_of(const FeedForwardInfo& layer, int threads) {
  return fmt::format("{} compute, {}, {}, {}", name_of(layer.compute), layer.gate_up.storage, name_of(layer.isa),
                     plural(threads, "thread"));
}

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

std::string show_set(const BenchSet& set) {
  std::string text =
      fmt::format("{}\n  limits {}\n\n", headline(key_of(set.layer, set.threads)), show_limits(set.limits));
  Table table;
  for (const char* title : {"tokens", "time", "spread", "per token", "GFLOP/s", "GB/s", "of the limit", "spread"}) {
    table.column(title);
  }
  table.column("", Table::Align::left);
  for (const SpeedRow& row : set.rows) {
    table.row({std::to_string(row.tokens), format_seconds(row.time()), "±" + percent(spread(row.samples)),
               format_seconds(row.time() / static_cast<double>(row.tokens)), rate(row.gflops()),
               fmt::format("{:.1f}", row.gb_per_s()), percent(row.roofline_ratio()), "±" + percent(spread(row.ratios)),
               row.bandwidth_bound ? "bandwidth" : "compute"});
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
  return text + fmt::format("peak memory {}", format_bytes(static_cast<double>(load.peak_bytes)));
}

void put_key(Json& json, const FeedForwardInfo& layer, int threads) {
  json.field("threads", threads).field("compute", name_of(layer.compute)).field("storage", layer.gate_up.storage);
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

void put_row(Json& json, const BenchSet& set, const SpeedRow& row) {
  json.object();
  put_key(json, set.layer, set.threads);
  json.field("tokens", row.tokens).field("packed_bytes", set.layer.packed_bytes);
  json.field("time_ms", 1e3 * row.time()).field("time_spread", spread(row.samples));
  json.field("gflops", row.gflops()).field("gb_per_s", row.gb_per_s());
  json.field("roofline_ratio", row.roofline_ratio()).field("roofline_spread", spread(row.ratios));
  json.field("limit", row.bandwidth_bound ? "bandwidth" : "compute");
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
  json.key("load").object().field("from", !load.measured ? "not measured" : load.from_files ? "files" : "memory");
  json.field("source_bytes", load.source_bytes).field("threads", load.threads);
  json.field("peak_memory_bytes", load.peak_bytes);
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

std::string bench_table(const BenchReport& report) {
  const Machine& machine = report.machine;
  std::string text = fmt::format("{}: dim {}, hidden {}, {} weights{}\n", headline(report.name), report.config.dim,
                                 report.config.hidden, report.dtype, report.made_up ? ", made from a seed" : "");
  text += fmt::format("  machine  {}, {}; {}, swiglu {} ({})\n", printable(machine.cpu), plural(machine.cpus, "CPU"),
                      machine.compiler, version(), SWIGLU_COMMIT);
  text += fmt::format("  loading  {}\n\n", show_load(report.load));
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
  json.end();
  put_load(json, report.load);
  json.key("rows").array();
  for (const BenchSet& set : report.sets) {
    for (const SpeedRow& row : set.rows) put_row(json, set, row);
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

std::string bench_svg(const BenchReport& report) {
  Chart chart;
  chart.title = fmt::format("{}: dim {}, hidden {}", report.name, report.config.dim, report.config.hidden);
  chart.subtitle =
      fmt::format("{}; {}, swiglu {} ({})", report.machine.cpu, report.machine.compiler, version(), SWIGLU_COMMIT);
  chart.x_title = "tokens a call";
  ChartPanel ratio{.title = "Share of what this machine's limits allow",
                   .series = {},
                   .unit = " %",
                   .reference = 100,
                   .reference_name = "the limit"};
  ChartPanel time{
      .title = "Time per token (dashed: what the limits allow)", .series = {}, .log_y = true, .unit = " ms"};
  for (const BenchSet& set : report.sets) {
    const std::string name = key_of(set.layer, set.threads);
    ChartSeries share{name, {}}, spent{name, {}}, allowed{name, {}};
    allowed.dashed = true;
    for (const SpeedRow& row : set.rows) {
      const auto tokens = static_cast<double>(row.tokens);
      share.points.emplace_back(tokens, 100 * row.roofline_ratio());
      spent.points.emplace_back(tokens, 1e3 * row.time() / tokens);
      allowed.points.emplace_back(tokens, 1e3 * median(row.bound_times) / tokens);
      if (std::find(chart.ticks.begin(), chart.ticks.end(), tokens) == chart.ticks.end()) chart.ticks.push_back(tokens);
    }
    for (ChartSeries* series : {&share, &spent, &allowed}) std::sort(series->points.begin(), series->points.end());
    ratio.series.push_back(std::move(share));
    time.series.push_back(std::move(allowed));
    time.series.push_back(std::move(spent));
  }
  chart.panels = {std::move(ratio), std::move(time)};
  return draw(chart);
}

}  // namespace swiglu::cli
