// swiglu compare: do two checkpoints, of whatever formats, hold the same feed-forward, and if not, why. Differences of
// the models as a whole first, then layer by layer. 0 only for the same values; after rounding if that is allowed.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "commands.h"
#include "compare_layer.h"
#include "compare_report.h"
#include "report.h"

namespace swiglu::cli {

namespace {

/// --hidden is for whichever of the two contradicts itself: the other one may well have another width.
Checkpoint open_with(const std::filesystem::path& path, const OpenOptions& options) {
  try {
    return Checkpoint::open(path, {.eps = options.eps, .hidden = {}});
  } catch (const Error& fault) {
    if (fault.code() != ErrorCode::shape || !options.hidden) throw;
  }
  return Checkpoint::open(path, options);
}

/// A file without a configuration beside it: the eps that it was opened with is an assumption.
bool is_bare(const std::filesystem::path& path, const Checkpoint& model) {
  return model.format() == "safetensors" || (model.format() == "meta" && !std::filesystem::is_directory(path));
}

struct Pair {
  Checkpoint a, b;
  std::vector<std::string> notes;
};

/// A bare file beside one with an eps is taken to have the same.
Pair open_both(const CompareOptions& options) {
  Pair pair{open_with(options.a, options.open), open_with(options.b, options.open), {}};
  const bool bare_a = is_bare(options.a, pair.a), bare_b = is_bare(options.b, pair.b);
  if (bare_a != bare_b && !options.open.eps) {
    OpenOptions other = options.open;
    other.eps = (bare_a ? pair.b : pair.a).config().eps;
    (bare_a ? pair.a : pair.b) = open_with(bare_a ? options.a : options.b, other);
    pair.notes.push_back(
        fmt::format("{} carries no eps: taken to be {}'s {}", bare_a ? "A" : "B", bare_a ? "B" : "A", *other.eps));
  }
  for (const auto& [name, model] : {std::pair{"A", &pair.a}, std::pair{"B", &pair.b}}) {
    if (model->layers() == 0) {
      throw Error(ErrorCode::not_found, fmt::format("{}: no feed-forward layer",
                                                    printable((model == &pair.a ? options.a : options.b).string())));
    }
    for (const std::string& note : model->notes()) pair.notes.push_back(fmt::format("{}: {}", name, note));
  }
  return pair;
}

void compare_shapes(CompareReport& report) {
  const FfnConfig &a = report.a.config(), &b = report.b.config();
  if (a.dim != b.dim) {
    report.differences.push_back(fmt::format("dim {} in A and {} in B", a.dim, b.dim));
  }
  if (a.hidden != b.hidden) {
    report.differences.push_back(fmt::format("hidden {} in A and {} in B", a.hidden, b.hidden));
  }
  if (static_cast<float>(a.eps) != static_cast<float>(b.eps)) {  // floats are what the norm adds
    report.differences.push_back(fmt::format("eps {} in A and {} in B", a.eps, b.eps));
  }
}

/// Which layers both have; without one given, those that only one has are a difference.
std::vector<std::int64_t> common_layers(CompareReport& report) {
  if (report.options.layer) {
    for (const Checkpoint* model : {&report.a, &report.b}) {
      const auto& numbers = model->layer_numbers();
      const std::int64_t wanted = *report.options.layer;
      if (!std::binary_search(numbers.begin(), numbers.end(), wanted))
        static_cast<void>(model->layer(wanted));  // throws
    }
    return {*report.options.layer};
  }
  const auto &a = report.a.layer_numbers(), &b = report.b.layer_numbers();
  std::vector<std::int64_t> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(report.only_a));
  std::set_difference(b.begin(), b.end(), a.begin(), a.end(), std::back_inserter(report.only_b));
  for (const auto& [name, only] : {std::pair{"A", &report.only_a}, std::pair{"B", &report.only_b}}) {
    if (only->empty()) continue;
    report.differences.push_back(
        fmt::format("layer{} {} only in {}", only->size() == 1 ? "" : "s", show_numbers(*only), name));
  }
  return common;
}

}  // namespace

int compare(const CompareOptions& options) {
  const Stopwatch watch;
  const Pair pair = open_both(options);
  CompareReport report{options, pair.a, pair.b, {}, pair.notes, {}, {}, {}};
  compare_shapes(report);
  const std::vector<std::int64_t> layers = common_layers(report);
  std::vector<Input> inputs;
  if (pair.a.config().dim == pair.b.config().dim) inputs = make_inputs(options.input, pair.a.config().dim, options.a);
  ThreadPool pool(options.threads);
  report.threads = pool.threads();
  {
    Meter meter("comparing");
    ModelPair models(pair.a, pair.b, options.expert, pool, meter);
    for (const std::int64_t number : layers) {
      report.layers.push_back(models.compare_layer(number, inputs, std::ssize(report.layers), std::ssize(layers)));
    }
  }
  report.seconds = watch.seconds();
  say(options.json ? comparison_json(report) : show_comparison(report));
  const Verdict verdict = report.verdict();
  return verdict == Verdict::same || (verdict == Verdict::same_after_rounding && options.allow_rounding) ? 0 : 1;
}

}  // namespace swiglu::cli
