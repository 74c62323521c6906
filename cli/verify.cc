// swiglu verify: this machine's fast path against the double-precision oracle, and its bits against
// themselves. The error shown first is the whole way from the input. What passes or fails is each
// stage alone, element by element against the bound the oracle derives for it: such bounds are tight
// enough to notice one missing term.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "checks.h"
#include "commands.h"
#include "elements.h"
#include "inputs.h"
#include "progress.h"
#include "report.h"
#include "storage.h"
#include "swiglu/packed.hpp"

namespace swiglu::cli {

namespace {

constexpr std::array kMatrices = {"norm", "gate", "up", "z", "down", "out"};

/// One layer in one compute type on one input.
struct Result {
  std::string input;
  std::array<double, kMatrices.size()> errors;
  std::array<StageCheck, kMatrices.size()> stages;
  [[nodiscard]] bool good() const {
    return std::all_of(stages.begin(), stages.end(), [](const StageCheck& c) { return c.good(); });
  }
};

struct LayerReport {
  std::int64_t layer;
  Compute compute;
  Isa isa;
  std::string storage;
  std::vector<Result> results;
  BitsReport bits;
  [[nodiscard]] bool good() const {
    return bits.good() && std::all_of(results.begin(), results.end(), [](const Result& r) { return r.good(); });
  }
  [[nodiscard]] std::int64_t skipped() const {
    std::int64_t n = 0;
    for (const Result& r : results) {
      for (const StageCheck& c : r.stages) n += c.skipped;
    }
    return n;
  }
};

std::vector<Compute> computes_of(const VerifyOptions& options, const LayerSource& source) {
  if (options.compute != Compute::automatic) return {options.compute};
  if (all_bf16(source, Compute::automatic)) return {Compute::bf16, Compute::f32};
  return {Compute::f32};
}

Input together(const std::vector<Input>& inputs) {
  Input all{"all", {}, 0};
  for (const Input& input : inputs) {
    all.h.insert(all.h.end(), input.h.begin(), input.h.end());
    all.tokens += input.tokens;
  }
  return all;
}

/// What the ranks give, for each layer and compute type; then they are released.
using RanksRuns = std::vector<std::vector<std::vector<RankRun>>>;
RanksRuns run_layers_on_ranks(Team& team, const VerifyOptions& options, const Checkpoint& model,
                              const std::vector<std::int64_t>& numbers, const Input& all) {
  RanksRuns layers;
  const int threads = options.threads > 0 ? options.threads : team.default_threads();
  for (const std::int64_t number : numbers) {
    const LayerSource source = model.layer(number, options.expert);
    LayerOrigin origin;
    origin.model = options.model;
    origin.layer = number;
    origin.expert = options.expert;
    origin.open.map = options.map;
    auto& computes = layers.emplace_back();
    for (const Compute compute : computes_of(options, source)) {
      computes.push_back(run_on_ranks(team, origin, source, compute, all.h, all.tokens, threads));
    }
  }
  tell(show_ranks(team.report()));
  team.release();
  return layers;
}

/// The oracle once per input, then every compute type against it: a layer of a packed file as it is, by the
/// weights that come out of it. `before` of `layers` are done.
std::vector<LayerReport> verify_layer(std::int64_t index, const LayerSource& source, const std::vector<Input>& inputs,
                                      const VerifyOptions& options, Pools& pools, Meter& meter, std::int64_t before,
                                      std::int64_t layers, const std::vector<std::vector<RankRun>>& ranks) {
  std::vector<LayerReport> reports;
  const Runner runner = pools.all().runner();
  reference::Request request;
  request.runner = &runner;
  const std::vector<Compute> computes = computes_of(options, source);
  const std::size_t each = 1 + inputs.size() + available_isas().size();
  const auto steps = static_cast<std::int64_t>(inputs.size() + computes.size() * each);
  std::int64_t step = 0;
  const auto doing = [&](const std::string& what) {
    meter.label(fmt::format("layer {}: {}", index, what));
    meter.update(before * steps + step++, layers * steps);
  };
  const LayerSource unpacked = unpack(source, runner);
  std::vector<std::vector<double>> doubles;
  std::vector<reference::Trace> exact;
  for (const Input& input : inputs) {
    doing(fmt::format("the oracle, {} input", input.name));
    doubles.emplace_back(input.h.begin(), input.h.end());
    exact.push_back(reference::run(unpacked, doubles.back(), input.tokens, request));
  }
  for (const Compute compute : computes) {
    Options layer_options;
    layer_options.compute = compute;
    doing("packing");
    const FeedForward layer(source, pools.all(), layer_options);
    reports.push_back({index, compute, layer.info().isa, storage_of(layer.info()), {}, {}});
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Input& input = inputs[i];
      doing(fmt::format("{} against its bounds, {} input", name_of(compute), input.name));
      const std::int64_t dim = source.config.dim;
      const LayerTrace fast = layer.trace(view_f32(input.h.data(), input.tokens, dim));
      std::vector<float> out(input.h.size());
      run_rows(layer, input.h, out, 0, input.tokens);
      reference::Request staged = request;
      staged.from = &fast;
      const auto right = reference::run(unpacked, doubles[i], input.tokens, staged);
      const auto bound = reference::bound(unpacked, right, doubles[i], input.tokens, compute, staged);
      reports.back().results.push_back(
          {input.name,
           {relative_error(fast.norm, exact[i].norm), relative_error(fast.gate, exact[i].gate),
            relative_error(fast.up, exact[i].up), relative_error(fast.z, exact[i].z),
            relative_error(fast.down, exact[i].down), relative_error(out, exact[i].out)},
           {check_stage(fast.norm, right.norm, bound.norm), check_stage(fast.gate, right.gate, bound.gate),
            check_stage(fast.up, right.up, bound.up), check_stage(fast.z, right.z, bound.z),
            check_stage(fast.down, right.down, bound.down), check_stage(out, right.out, bound.out)}});
    }
  }
  const Input all = together(inputs);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    reports[i].bits = check_bits(source, unpacked, reports[i].compute, pools, all.h, all.tokens,
                                 ranks.empty() ? std::span<const RankRun>{} : ranks[i], doing);
  }
  return reports;
}

std::string show_table(const std::vector<LayerReport>& reports) {
  Table table;
  table.column("layer");
  table.column("compute", Table::Align::left);
  table.column("input", Table::Align::left);
  table.column("", Table::Align::left);
  for (const char* name : kMatrices) table.column(name);
  table.column("same bits");
  table.column("", Table::Align::left);
  for (const LayerReport& report : reports) {
    bool first = true;
    for (const Result& result : report.results) {
      std::vector<std::string> errors{first ? std::to_string(report.layer) : "", first ? name_of(report.compute) : "",
                                      result.input, "error"};
      std::vector<std::string> stages{"", "", "", "stage"}, bounds{"", "", "", "bound"};
      for (std::size_t m = 0; m < kMatrices.size(); ++m) {
        const StageCheck& c = result.stages[m];
        errors.push_back(format_error(result.errors[m]));
        stages.push_back((c.good() ? "" : "✗ ") + format_error(c.error));
        bounds.push_back(format_error(c.bound));
      }
      errors.push_back(first ? fmt::format("{}/{}", report.bits.equal, report.bits.runs) : "");
      errors.emplace_back(result.good() && (!first || report.bits.good()) ? "✓" : "✗");
      table.row(std::move(errors));
      table.row(std::move(stages));
      table.row(std::move(bounds));
      first = false;
    }
  }
  return table.text();
}

std::string show_failures(const std::vector<LayerReport>& reports) {
  std::string text;
  for (const LayerReport& report : reports) {
    const std::string where =
        fmt::format("{} layer {}, compute {}", mark(false), report.layer, name_of(report.compute));
    for (const Result& result : report.results) {
      for (std::size_t m = 0; m < kMatrices.size(); ++m) {
        const StageCheck& c = result.stages[m];
        if (c.good()) continue;
        text += fmt::format("{}, {} input, {}: {} of {} elements outside their bound\n", where, result.input,
                            kMatrices[m], c.outside, c.elements);
      }
    }
    for (const std::string& how : report.bits.different) text += fmt::format("{}: other bits with {}\n", where, how);
  }
  return text;
}

std::string show_json(const VerifyOptions& options, const Checkpoint& model, const std::vector<LayerReport>& reports,
                      int threads, int ranks, bool good) {
  Json json;
  json.object().field("schema_version", 1).field("command", "verify").field("model", options.model.string());
  json.field("dim", model.config().dim).field("hidden", model.config().hidden).field("eps", model.config().eps);
  json.field("threads", threads);
  if (ranks > 0) json.field("ranks", ranks);
  json.field("pass", good);
  if (!options.input) json.field("seed", kInputSeed);
  json.list("notes", model.notes()).key("layers").array();
  for (const LayerReport& report : reports) {
    json.object().field("layer", report.layer).field("compute", name_of(report.compute));
    json.field("storage", report.storage)
        .field("isa", name_of(report.isa))
        .field("pass", report.good())
        .key("inputs")
        .array();
    for (const Result& result : report.results) {
      json.object().field("input", result.input).field("pass", result.good());
      for (std::size_t m = 0; m < kMatrices.size(); ++m) {
        const StageCheck& c = result.stages[m];
        json.key(kMatrices[m]).object().field("relative_error", result.errors[m]);
        json.field("stage_relative_error", c.error).field("stage_relative_bound", c.bound);
        json.field("elements", c.elements).field("skipped", c.skipped).field("outside_bound", c.outside);
        json.field("pass", c.good()).end();
      }
      json.end();
    }
    json.end().key("bits").object().field("runs", report.bits.runs).field("equal", report.bits.equal);
    json.list("isas", report.bits.isas).list("storages", report.bits.storages).list("threads", report.bits.threads);
    json.list("different", report.bits.different).field("scalar_once", report.bits.scalar_once);
    json.field("pass", report.bits.good()).end().end();
  }
  return json.end().end().text();
}

}  // namespace

int verify(const VerifyOptions& options, Team* team) {
  const Checkpoint model = Checkpoint::open(options.model, {.eps = {}, .hidden = {}, .map = options.map});
  if (model.layers() == 0) {
    throw Error(ErrorCode::not_found, fmt::format("{}: no feed-forward layer", printable(options.model.string())));
  }
  const std::vector<Input> inputs = make_inputs(options.input, model.config().dim, options.model);
  const std::vector<std::int64_t> numbers = options.layer ? std::vector{*options.layer} : model.layer_numbers();
  RanksRuns ranks(numbers.size());
  const int size = team == nullptr ? 0 : team->size();
  if (team != nullptr) ranks = run_layers_on_ranks(*team, options, model, numbers, together(inputs));
  Pools pools(options.threads);
  std::vector<LayerReport> reports;
  const Stopwatch watch;
  {
    Meter meter("verifying");
    std::int64_t done = 0;
    for (const std::int64_t i : numbers) {
      auto layer = verify_layer(i, model.layer(i, options.expert), inputs, options, pools, meter, done,
                                std::ssize(numbers), ranks[static_cast<std::size_t>(done)]);
      ++done;
      std::move(layer.begin(), layer.end(), std::back_inserter(reports));
    }
  }
  const bool good = std::all_of(reports.begin(), reports.end(), [](const LayerReport& r) { return r.good(); });
  const int threads = pools.all().threads();
  if (options.json) {
    say(show_json(options, model, reports, threads, size, good));
    return good ? 0 : 1;
  }
  say(fmt::format("{}\n", headline(fmt::format("{}: {}, dim {}, hidden {}, eps {}", printable(options.model.string()),
                                               plural(model.layers(), "layer"), model.config().dim,
                                               model.config().hidden, model.config().eps))));
  const BitsReport& bits = reports.front().bits;
  say(
      fmt::format("error:  {} against the double-precision oracle, relative L2, on {} per input\n"
                  "stage:  the part of it that this stage added; bound: what it may add, checked element by element\n",
                  name_of(reports.front().isa), plural(inputs.front().tokens, "token")));
  say(fmt::format("bits:   {}; {}; {} threads; all at once, one by one, uneven split{}\n\n", fmt::join(bits.isas, ", "),
                  fmt::join(bits.storages, ", "), fmt::join(bits.threads, ", "),
                  std::string(bits.scalar_once ? "; scalar once in each storage" : "") +
                      (size > 0 ? fmt::format("; and on {}", plural(size, "rank")) : "")));
  say(show_table(reports) + "\n");
  for (const std::string& note : model.notes()) say(fmt::format("note: {}\n", note));
  std::int64_t skipped = 0;
  for (const LayerReport& report : reports) skipped += report.skipped();
  if (skipped > 0) {
    say(fmt::format("note: {} where weights or input are NaN or Inf took no part\n", plural(skipped, "element")));
  }
  say(show_failures(reports));
  say(good ? fmt::format("{} every element within its bound, every run the same bits ({})\n", mark(true),
                         format_seconds(watch.seconds()))
           : fmt::format("{} this machine does not compute what it should: please report it\n", mark(false)));
  return good ? 0 : 1;
}

}  // namespace swiglu::cli
