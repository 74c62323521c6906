// swiglu pack: layers of a checkpoint as a file of packed layers, one in memory at a time. What can be refused
// cheaply is refused before weights are read: the layers, the output's place, a file of the model as the output.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "commands.h"
#include "layers.h"
#include "outputs.h"
#include "progress.h"
#include "report.h"
#include "storage.h"

namespace swiglu::cli {

namespace {

constexpr std::string_view kStart = "SWIGLUPK";  // of every packed file: docs/formats.md

/// Also where the output is another name for such a file.
void check_apart(const PackOptions& options, const Checkpoint& model) {
  const bool folder = std::filesystem::is_directory(options.model);
  std::set<std::filesystem::path> files;
  for (const TensorInfo& tensor : model.tensors()) {
    for (const std::string& file : tensor.files) files.insert(folder ? options.model / file : options.model);
  }
  for (const auto& file : files) {
    std::error_code missing;
    if (!std::filesystem::equivalent(file, options.output, missing)) continue;
    throw Error(ErrorCode::usage, fmt::format("pack: {} is a file of MODEL: choose another --output",
                                              printable(options.output.string())));
  }
}

/// Over all layers. Each is packed and then written, which counts as half of it.
class Progress {
 public:
  Progress(Meter& meter, std::size_t layers) : meter_(meter), halves_(2 * static_cast<std::int64_t>(layers)) {}
  void next() { ++half_; }
  void update(std::int64_t done, std::int64_t total) const noexcept {
    constexpr std::int64_t kSteps = 1000;  // of a half
    const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
    meter_.update(half_ * kSteps + static_cast<std::int64_t>(share * kSteps), halves_ * kSteps);
  }
  static void callback(void* ctx, std::int64_t done, std::int64_t total) noexcept {
    static_cast<const Progress*>(ctx)->update(done, total);
  }

 private:
  Meter& meter_;
  std::int64_t half_ = 0;
  const std::int64_t halves_;
};

/// What the layers turned out to be.
struct Total {
  std::set<std::string> computes, storages;
  double bits = 0, weights = 0;
  void add(const FeedForwardInfo& layer) {
    computes.emplace(name_of(layer.compute));
    storages.insert(storage_of(layer));
    bits += 8 * static_cast<double>(layer.packed_bytes);
    weights += 3 * static_cast<double>(layer.config.dim) * static_cast<double>(layer.config.hidden);
  }
};

Total pack_layers(const PackOptions& options, const Checkpoint& model, const std::vector<std::int64_t>& layers,
                  PackedWriter& writer, ThreadPool& pool) {
  Total total;
  Meter meter("packing");
  Progress progress(meter, layers.size());
  Options packing;
  packing.compute = options.compute;
  packing.storage = options.storage;
  packing.progress = Progress::callback;
  packing.progress_ctx = &progress;
  for (const std::int64_t number : layers) {
    const LayerSource source = model.layer(number, options.expert);
    meter.label(fmt::format("packing layer {}", number));
    const FeedForward layer(source, pool, packing);
    progress.next();
    meter.label(fmt::format("writing layer {}", number));
    writer.add(number, *layer.packed(), source.norm,
               [&progress](std::int64_t done, std::int64_t all) { progress.update(done, all); });
    progress.next();
    total.add(layer.info());
  }
  return total;
}

}  // namespace

int pack(const PackOptions& options) {
  const Stopwatch watch;
  check_writable(options.output);
  const Checkpoint model = Checkpoint::open(options.model, options.open);
  const std::vector<std::int64_t> layers = choose_layers(options.model, model, options.layers);
  check_apart(options, model);
  check_replaceable("--output", options.output, kStart);
  PackedWriter writer(options.output, model);
  for (const std::string& note : model.notes()) tell(fmt::format("swiglu: note: {}\n", note));
  ThreadPool pool(options.threads);
  const Total total = pack_layers(options, model, layers, writer, pool);
  writer.commit();
  tell(fmt::format(
      "pack: {} of {} (dim {}, hidden {}), compute {}, {} ({:.4g} bits a weight), {}: {} written in {}; {}\n",
      layers.size(), plural(model.layers(), "layer"), model.config().dim, model.config().hidden,
      fmt::join(total.computes, " and "), fmt::join(total.storages, " and "), total.bits / total.weights,
      plural(pool.threads(), "thread"), format_bytes(static_cast<double>(std::filesystem::file_size(options.output))),
      format_seconds(watch.seconds()), printable(options.output.string())));
  return 0;
}

}  // namespace swiglu::cli
