// swiglu run: one layer of a checkpoint on the rows of a .npy file. All that can be refused cheaply
// is refused before weights are read: the output's place, the input, the model's headers.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "commands.h"
#include "elements.h"
#include "inputs.h"
#include "outputs.h"
#include "progress.h"
#include "report.h"
#include "storage.h"
#include "swiglu/packed.hpp"
#include "team.h"

namespace swiglu::cli {

namespace {

struct Job {
  const RunOptions& options;
  const Array& input;
  std::int64_t tokens;
  std::int64_t dim;
  int threads;
  Array output;
  std::string arithmetic{};  ///< "compute bf16, compact bf16 (12.03 bits a weight, 265 MB), avx512"
  const char* prepared = "packed";
  double prepare_seconds = 0, compute_seconds = 0;
  std::string ranks{};  ///< a table, if there are several
};

void run_fused(Job& job, const LayerSource& source, ThreadPool& pool) {
  Options options;
  options.compute = job.options.compute;
  options.storage = job.options.storage;
  Meter meter(source.packed == nullptr ? "packing" : "loading");
  options.progress = Meter::callback;
  options.progress_ctx = &meter;
  Stopwatch watch;
  const FeedForward layer(source, pool, options);
  job.prepare_seconds = watch.seconds();
  const FeedForwardInfo& info = layer.info();
  if (as_packed(source, info)) job.prepared = job.options.open.map ? "mapped" : "read";
  if (const std::string note = packed_anew(source, info); !note.empty()) tell(fmt::format("swiglu: note: {}\n", note));
  job.arithmetic = fmt::format("compute {}, {} ({}), {}", name_of(info.compute), storage_of(info), show_bits(info),
                               name_of(info.isa));

  const std::int64_t dim = source.config.dim;
  const TensorView in{job.input.bytes.data(), job.input.dtype, job.tokens, dim, dim};
  const MutableTensorView out{job.output.bytes.data(), job.output.dtype, job.tokens, dim, dim};
  watch = {};
  if (job.options.block) {
    layer.block(in, out);
  } else {
    layer.forward(in, out);
  }
  job.compute_seconds = watch.seconds();
}

/// Every rank opens the model and packs its share; the rows travel from here.
void run_on_ranks(Job& job, Team& team) {
  const RunOptions& o = job.options;
  const std::int64_t dim = job.dim;
  team.input({job.input.bytes.data(), job.input.dtype, job.tokens, dim, dim});
  LayerOrigin origin;
  origin.model = o.model;
  origin.layer = o.layer;
  origin.expert = o.expert;
  origin.open = o.open;
  Stopwatch watch;
  const auto layer = team.make(origin, o.compute, o.storage, Isa::automatic, job.threads);
  job.prepare_seconds = watch.seconds();
  const FeedForwardInfo& info = layer->info();
  job.arithmetic =
      fmt::format("compute {}, {}, {}, {}{}", name_of(info.compute), storage_of(info), name_of(info.isa),
                  plural(team.size(), "rank"), team.wire() == "f32" ? "" : ", wire bf16 (not the bits of one process)");
  watch = {};
  layer->run(0, o.block, {job.output.bytes.data(), job.output.dtype, job.tokens, dim, dim});
  job.compute_seconds = watch.seconds();
  job.ranks = show_ranks(team.report());
}

/// Meta's arithmetic, in slices of tokens: the oracle keeps every intermediate in double.
void run_meta(Job& job, const LayerSource& stored, ThreadPool& pool) {
  constexpr std::int64_t kSlice = 64;
  const Runner runner = pool.runner();
  const LayerSource source = unpack(stored, runner);
  const auto dim = static_cast<std::size_t>(source.config.dim);
  const auto in_row = dim * static_cast<std::size_t>(size_of(job.input.dtype));
  const auto out_row = dim * static_cast<std::size_t>(size_of(job.output.dtype));
  const reference::Request request{
      .numerics = reference::Numerics::meta, .block = job.options.block, .outputs = {}, .runner = &runner};
  job.arithmetic = "numerics meta";
  Meter meter("computing as Meta's code does");
  const Stopwatch watch;
  for (std::int64_t first = 0; first < job.tokens; first += kSlice) {
    const std::int64_t count = std::min(kSlice, job.tokens - first);
    const auto at = static_cast<std::size_t>(first), rows = static_cast<std::size_t>(count);
    const auto h = to_doubles(job.input.dtype, std::span(job.input.bytes).subspan(at * in_row, rows * in_row));
    const auto bytes = from_doubles(job.output.dtype, reference::run(source, h, count, request).out);
    std::copy(bytes.begin(), bytes.end(), job.output.bytes.begin() + static_cast<std::ptrdiff_t>(at * out_row));
    meter.update(first + count, job.tokens);
  }
  job.compute_seconds = watch.seconds();
}

/// "of 32"; in a file of some layers "of the 3 in the file".
std::string among(const Checkpoint& model) {
  if (model.layer_numbers().back() == model.layers() - 1) return fmt::format("of {}", model.layers());
  return fmt::format("of the {} in the file", model.layers());
}

}  // namespace

int run(const RunOptions& options, Team* team) {
  const bool meta = options.numerics == reference::Numerics::meta;
  if (meta && options.compute != Compute::automatic) {
    throw Error(ErrorCode::usage, "run: --numerics meta has its own roundings: leave --compute out");
  }
  if (meta && options.storage != Storage::automatic) {
    throw Error(ErrorCode::usage, "run: --numerics meta packs nothing: leave --storage out");
  }
  check_writable(options.output);
  const Array input = read_npy(options.input, options.u2_is_bf16);
  const Checkpoint model = Checkpoint::open(options.model, options.open);
  for (const std::string& note : model.notes()) tell(fmt::format("swiglu: note: {}\n", note));
  const LayerSource source = model.layer(options.layer, options.expert);
  const std::int64_t tokens = tokens_of(input, options.input, source.config.dim, options.model);

  const int threads = options.threads > 0 || team == nullptr ? options.threads : team->default_threads();
  Job job{options, input, tokens, source.config.dim, threads, {options.dtype.value_or(input.dtype), input.shape, {}}};
  job.output.bytes.resize(input.bytes.size() / static_cast<std::size_t>(size_of(input.dtype)) *
                          static_cast<std::size_t>(size_of(job.output.dtype)));
  ThreadPool pool(threads);
  if (team != nullptr) {
    run_on_ranks(job, *team);
  } else if (meta) {
    run_meta(job, source, pool);
  } else {
    run_fused(job, source, pool);
  }
  write_npy(options.output, job.output.dtype, job.output.shape, job.output.bytes);
  tell(fmt::format("run: layer {} {} (dim {}, hidden {}), part {}, {} {} -> {}, {}, {}: {}computed in {}; {}\n",
                   options.layer, among(model), source.config.dim, source.config.hidden,
                   options.block ? "block" : "ffn", format_shape(input.shape), name_of(input.dtype),
                   name_of(job.output.dtype), job.arithmetic,
                   plural(pool.threads(), "thread") + (team == nullptr ? "" : " each"),
                   meta ? "" : fmt::format("{} in {}, ", job.prepared, format_seconds(job.prepare_seconds)),
                   format_seconds(job.compute_seconds), printable(options.output.string())));
  tell(job.ranks);
  return 0;
}

}  // namespace swiglu::cli
