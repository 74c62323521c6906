// Errors against the oracle, and bits against themselves.
#include "checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "report.h"
#include "storage.h"

namespace swiglu::cli {

namespace {

double ratio(double squares, double of_squares) { return squares == 0 ? 0 : std::sqrt(squares / of_squares); }

}  // namespace

StageCheck check_stage(std::span<const float> fast, std::span<const double> right, std::span<const double> bound) {
  StageCheck check;
  check.elements = static_cast<std::int64_t>(right.size());
  double errors = 0, bounds = 0, values = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    if (!std::isfinite(right[i]) || !std::isfinite(bound[i])) {
      ++check.skipped;
      continue;
    }
    const double error = std::fabs(static_cast<double>(fast[i]) - right[i]);
    if (!(error <= bound[i])) ++check.outside;  // also when fast is NaN
    errors += error * error;
    bounds += bound[i] * bound[i];
    values += right[i] * right[i];
  }
  check.error = ratio(errors, values);
  check.bound = ratio(bounds, values);
  return check;
}

double relative_error(std::span<const float> fast, std::span<const double> exact) {
  double errors = 0, values = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (!std::isfinite(exact[i])) continue;
    const double error = static_cast<double>(fast[i]) - exact[i];
    errors += error * error;
    values += exact[i] * exact[i];
  }
  return ratio(errors, values);
}

Pools::Pools(int all) {
  auto widest = std::make_unique<ThreadPool>(all);
  for (const int threads : {1, 2}) {
    if (threads < widest->threads()) pools_.push_back(std::make_unique<ThreadPool>(threads));
  }
  pools_.push_back(std::move(widest));
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

void run_rows(const FeedForward& layer, std::span<const float> h, std::span<float> out, std::int64_t first,
              std::int64_t count) {
  const std::int64_t dim = layer.info().config.dim;
  layer.block(view_f32(h.data() + first * dim, count, dim), view_f32(out.data() + first * dim, count, dim));
}

std::vector<Split> splits_of(std::int64_t tokens) {
  std::vector<Split> splits{{"all at once", {tokens}}};
  if (tokens > 1) splits.push_back({"one by one", std::vector<std::int64_t>(static_cast<std::size_t>(tokens), 1)});
  if (tokens > 2) {
    const std::int64_t first = (tokens + 2) / 3;
    splits.push_back({"uneven split", {first, 1, tokens - first - 1}});
  }
  return splits;
}

bool scalar_takes_long(const FfnConfig& config, std::int64_t tokens) {
  return 3.0 * static_cast<double>(config.dim) * static_cast<double>(config.hidden) * static_cast<double>(tokens) > 2e7;
}

namespace {

/// A layer in one of the forms that it can lie in memory.
struct Form {
  const LayerSource& source;
  Storage storage;
  bool of_file;
};

std::vector<Form> forms_of(const LayerSource& source, const LayerSource& unpacked, Compute compute) {
  std::vector<Form> forms;
  if (source.packed != nullptr) forms.push_back({source, Storage::automatic, true});
  forms.push_back({unpacked, Storage::plain, false});
  if (has_bf16(unpacked, compute)) {
    forms.push_back({unpacked, all_bf16(unpacked, compute) ? Storage::compact : Storage::automatic, false});
  }
  return forms;
}

}  // namespace

BitsReport check_bits(const LayerSource& source, const LayerSource& unpacked, Compute compute, Pools& pools,
                      std::span<const float> h, std::int64_t tokens, std::span<const RankRun> ranks,
                      const std::function<void(const std::string&)>& step) {
  BitsReport report;
  const auto splits = splits_of(tokens);
  for (const auto& pool : pools.list()) report.threads.push_back(pool->threads());
  std::vector<Isa> isas = available_isas();
  report.scalar_once = isas.size() > 1 && scalar_takes_long(source.config, tokens);
  std::vector<float> first, out(h.size());
  const auto compare = [&](const FeedForward& layer, const Split& split, const std::string& how) {
    std::int64_t row = 0;
    for (const std::int64_t count : split.counts) {
      run_rows(layer, h, out, row, count);
      row += count;
    }
    if (report.runs++ == 0) first = out;
    same_bits(first, out) ? void(++report.equal) : report.different.push_back(how);
  };
  std::reverse(isas.begin(), isas.end());
  for (const Isa isa : isas) {
    report.isas.emplace_back(name_of(isa));
    step(fmt::format("bits on {}", name_of(isa)));
    const bool once = report.scalar_once && isa == Isa::scalar;
    std::vector<std::string> storages;  // a storage that comes out as one before it is not run again
    for (const Form& form : forms_of(source, unpacked, compute)) {
      SwitchRunner runner;
      runner.use(pools.all().runner());
      Options options;
      options.compute = compute;
      options.storage = form.storage;
      options.isa = isa;
      const FeedForward layer(form.source, runner.runner(), options);
      const std::string storage = storage_of(layer.info()) + (form.of_file ? " of the file" : "");
      if (std::find(storages.begin(), storages.end(), storage) != storages.end()) continue;
      storages.push_back(storage);
      for (const auto& pool : pools.list()) {
        if (once && pool.get() != &pools.all()) continue;
        runner.use(pool->runner());
        for (const Split& split : splits) {
          if (once && &split != &splits.front()) continue;
          compare(layer, split,
                  fmt::format("{}, {}, {}, {}", name_of(isa), storage, plural(pool->threads(), "thread"), split.name));
        }
      }
    }
    if (report.storages.size() < storages.size()) report.storages = storages;
  }
  for (const RankRun& run : ranks) {
    ++report.runs;
    same_bits(first, run.out) ? void(++report.equal) : report.different.push_back(run.how);
  }
  return report;
}

}  // namespace swiglu::cli
