// swiglu-mpi demo: a Llama-3-8B-sized layer on all ranks, beside one process, with the same bits.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "bench_ranks.h"
#include "checks.h"
#include "demo.h"
#include "storage.h"
#include "swiglu/files.hpp"

namespace swiglu::cli {
namespace {

constexpr std::int64_t kTokenCounts[] = {1, 16, 128, 512};
constexpr std::int64_t kMostTokens = 512;
constexpr double kRowSeconds = 2;

struct Bits {
  std::int64_t runs = 0, equal = 0;
};

/// The first tokens of every batch on all ranks, against the same from one process.
Bits compare_bits(TeamLayer& layer, const FeedForward& alone, std::span<const float> h) {
  const std::int64_t dim = alone.info().config.dim;
  Bits bits;
  for (const std::int64_t tokens : kTokenCounts) {
    std::vector<float> found(static_cast<std::size_t>(tokens * dim)), expected(found.size());
    layer.run(0, true, view_f32(found.data(), tokens, dim));
    run_rows(alone, h, expected, 0, tokens);
    ++bits.runs;
    if (same_bits(found, expected)) ++bits.equal;
  }
  return bits;
}

}  // namespace

int demo_on_ranks(const DemoOptions& options, Team& team) {
  const Stopwatch whole;
  LayerOrigin origin;
  origin.made_up = find_preset("llama-3-8b").config();
  origin.seed = 8;
  const std::int64_t dim = origin.made_up.dim;
  const std::vector<float> h = bf16_input(kMostTokens * dim);
  RankSet set;
  Bits bits;
  std::vector<RankReport> reports;
  {
    Meter meter("demo");
    meter.label("making and packing a Llama-3-8B layer on all ranks");
    meter.update(0, 10);
    team.input(view_f32(h.data(), kMostTokens, dim));
    set.threads = options.threads > 0 ? options.threads : team.default_threads();
    set.overlap = "posted";
    const auto layer = team.make(origin, Compute::automatic, Storage::automatic, Isa::automatic, set.threads);
    set.layer = layer->info();
    reports = team.report();  // before rank 0 holds the whole layer too
    meter.label("packing it in one process");
    const OneProcess alone(random_layer(origin.made_up, origin.dtype, origin.seed), {},
                           team.one_machine() ? set.threads * team.size() : set.threads);
    set.alone_threads = alone.threads();
    for (const std::int64_t tokens : kTokenCounts) {
      meter.label(fmt::format("timing {}", plural(tokens, "token")));
      set.rows.push_back(
          measure_ranks(team, *layer, team.one_machine() ? &alone.layer() : nullptr, h, tokens, kRowSeconds));
    }
    meter.label("comparing bits");
    bits = compare_bits(*layer, alone.layer(), h);
  }
  const bool good = bits.runs == bits.equal;
  if (options.json) {
    Json json;
    json.object().field("schema_version", 1).field("command", "demo").field("ranks", team.size());
    json.field("wire", team.wire()).key("rows").array();
    put_rows(json, set);
    json.end().key("bits").object().field("runs", bits.runs).field("equal", bits.equal).field("pass", good).end();
    json.field("time_ms", whole.seconds() * 1e3).field("pass", good);
    say(json.end().text());
    return good ? 0 : 1;
  }
  say(fmt::format("{}\n", headline(fmt::format("The Llama 3 feed-forward sublayer on {}, each with its share of the "
                                               "weights",
                                               plural(team.size(), "rank")))));
  say(fmt::format("  layer    Llama-3-8B's shape: dim {}, hidden {}; {} weights, made from a seed\n", dim,
                  origin.made_up.hidden, name_of(origin.dtype)));
  say(fmt::format("  packed   {} compute, {}, {}\n\n", name_of(set.layer.compute), storage_of(set.layer),
                  name_of(set.layer.isa)));
  say(show_ranks(reports) + "\n" + show_rows(set) + "\n");
  say(fmt::format("{} same bits {}/{} batches: {} tokens on {} and in one process\n", mark(good), bits.equal, bits.runs,
                  fmt::join(kTokenCounts, ", "), plural(team.size(), "rank")));
  say(fmt::format("{} done      in {}\n\n", mark(good), format_seconds(whole.seconds())));
  say("Next, with your own checkpoint:\n"
      "  mpirun -n 2 swiglu-mpi verify Meta-Llama-3-8B --layer 0\n"
      "  mpirun -n 2 swiglu-mpi run Meta-Llama-3-8B --layer 0 --input h.npy --output out.npy\n");
  return good ? 0 : 1;
}

}  // namespace swiglu::cli
