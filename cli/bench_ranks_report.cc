// How measurements on ranks look: a table and a JSON document.
#include <fmt/format.h>

#include <optional>

#include "bench_ranks.h"
#include "outputs.h"
#include "storage.h"

namespace swiglu::cli {
namespace {

std::string show_set(const RankSet& set, int ranks) {
  std::string text = fmt::format(
      "{}\n\n",
      headline(fmt::format("{} compute, {}, {}, {} of {}{}", name_of(set.layer.compute), storage_of(set.layer),
                           name_of(set.layer.isa), plural(ranks, "rank"), plural(set.threads, "thread"),
                           set.alone_threads == 0
                               ? fmt::format(", overlap {}", set.overlap)
                               : fmt::format("; beside one process of {}", plural(set.alone_threads, "thread")))));
  return text + show_rows(set) + "\n";
}

}  // namespace

std::string show_rows(const RankSet& set) {
  Table table;
  for (const char* title : {"tokens", "time", "spread", "one process", "speed", "spread", "computing", "uneven",
                            "exchanging", "sent a rank"}) {
    table.column(title);
  }
  for (const RankRow& row : set.rows) {
    const bool alone = !row.alone.empty();
    std::int64_t sent = 0;
    for (const RankReport& r : row.reports) sent = std::max(sent, r.bytes_sent);
    table.row({std::to_string(row.tokens), format_seconds(median(row.samples)),
               fmt::format("±{:.0f} %", 100 * spread(row.samples)), alone ? format_seconds(median(row.alone)) : "-",
               alone ? fmt::format("{:.2f}", median(row.speeds)) : "-",
               alone ? fmt::format("±{:.0f} %", 100 * spread(row.speeds)) : "-", format_seconds(row.computing()),
               format_seconds(row.unevenness()), format_seconds(row.exchanging()),
               format_bytes(static_cast<double>(sent))});
  }
  return table.text();
}

void put_rows(Json& json, const RankSet& set) {
  for (const RankRow& row : set.rows) {
    json.object().field("threads", set.threads).field("compute", name_of(set.layer.compute));
    json.field("storage", storage_of(set.layer)).field("isa", name_of(set.layer.isa)).field("tokens", row.tokens);
    json.field("ranks", std::ssize(row.reports)).field("overlap", set.overlap);
    const double time = median(row.samples);
    json.field("time_ms", time * 1e3).field("gflops", 1e-9 * row.work.flops / time);
    if (!row.alone.empty()) {
      json.field("one_process_threads", set.alone_threads);
      json.field("one_process_time_ms", median(row.alone) * 1e3).field("speed_ratio", median(row.speeds));
    }
    json.field("computing_ms", row.computing() * 1e3).field("uneven_ms", row.unevenness() * 1e3);
    json.field("exchanging_ms", row.exchanging() * 1e3).key("samples_ms").array();
    for (const double sample : row.samples) json.value(sample * 1e3);
    json.end().key("by_rank").array();
    for (const RankReport& r : row.reports) {
      json.object().field("rank", r.rank).field("computing_ms", r.compute_seconds * 1e3);
      json.field("exchanging_ms", r.exchange_seconds * 1e3).field("bytes_sent", r.bytes_sent);
      json.field("packed_bytes", r.packed_bytes).field("workspace_bytes", r.workspace_bytes);
      json.field("peak_memory_bytes", r.peak_bytes).field("mpi_memory_bytes", r.first_bytes);
      json.field("bytes_read", r.bytes_read).field("load_time_ms", r.load_seconds * 1e3).end();
    }
    json.end().end();
  }
}

int show_bench_on_ranks(const BenchOptions& options, Team& team, const std::vector<RankSet>& sets) {
  const bool to_stdout = options.json && options.json->empty();
  std::string document;
  if (options.json) {
    Json json;
    json.object().field("schema_version", 1).field("command", "bench").field("ranks", team.size());
    json.field("wire", team.wire()).key("rows").array();
    for (const RankSet& set : sets) put_rows(json, set);
    document = json.end().end().text();
  }
  if (options.json && !to_stdout) {
    NewFile file = open_output("--json", *options.json, "{");
    file.write(document);
    file.commit();
    tell(fmt::format("bench: wrote {}\n", printable(options.json->string())));
  }
  if (to_stdout) {
    say(document);
    return 0;
  }
  for (const RankSet& set : sets) say(show_set(set, team.size()));
  say("time: of a call by all ranks. speed: one process's time / it, in the same rounds. computing: of the slowest\n"
      "rank; uneven: how much longer than the quickest; exchanging: sums, on the rank that waits least for "
      "others.\n\n");
  const RankSet& first = sets.front();
  say("each rank, in the calls of the first table's last row\n\n" + show_ranks(first.rows.back().reports));
  if (team.wire() != "f32") say("note: wire bf16: results are not the bits of one process\n");
  return 0;
}

}  // namespace swiglu::cli
