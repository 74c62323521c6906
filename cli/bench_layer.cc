// The layer that `bench` measures: which one fits into memory, where its weights come from, and its
// counterpart of denormal numbers.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>

#include "bench.h"
#include "neighbours.h"
#include "report.h"
#include "storage.h"
#include "swiglu/files.hpp"
#include "swiglu/packed.hpp"

namespace swiglu::cli {

namespace {

constexpr std::uint64_t kSeed = 8;
constexpr std::string_view kDefault = "llama-3-8b", kSmaller = "llama-3.2-1b";

/// Of one matrix.
double packed_bytes(const FfnConfig& config, DType dtype, Compute compute) {
  const bool narrow = compute == Compute::bf16 || dtype == DType::bf16 || dtype == DType::f16;
  return static_cast<double>(config.dim) * static_cast<double>(config.hidden) * (narrow ? 2 : 4);
}

double neighbours_bytes(const BenchOptions& options) {
  return options.neighbours == 0 ? 0 : Neighbours::memory_needed(options.neighbours, describe_machine().l3_bytes);
}

/// The packed copy of the largest compute type and what goes with it, in one storage: several are measured one
/// after another where they do not fit together.
double least_needed(const BenchOptions& options, std::int64_t dim, const std::function<double(Compute)>& packed) {
  double most = 0;
  for (const Compute compute : options.computes) most = std::max(most, packed(compute));
  return bytes_needed(most, options, dim) + neighbours_bytes(options);
}

void check_memory(double needed, const std::string& what) {
  const auto available = static_cast<double>(available_memory());
  if (available <= 0 || needed <= available) return;
  const std::string smaller = what.starts_with(kSmaller) ? "" : fmt::format("--preset {}, or ", kSmaller);
  throw Error(ErrorCode::no_memory,
              fmt::format("bench: {} needs about {} of memory, {} are available: try {}--dim and --hidden", what,
                          format_bytes(needed), format_bytes(available), smaller));
}

BenchLayer open_model(const BenchOptions& options) {
  if (options.preset || options.dim || options.dtype) {
    throw Error(ErrorCode::usage, "bench: a MODEL has its own shape and type: leave out --preset, --dim and --dtype");
  }
  OpenOptions open;
  open.eps = options.eps;
  open.hidden = options.hidden;
  open.map = options.map;
  const Checkpoint model = Checkpoint::open(*options.model, open);
  for (const std::string& note : model.notes()) tell(fmt::format("swiglu: note: {}\n", note));
  BenchLayer layer;
  if (!options.layer && model.layers() == 0) static_cast<void>(model.layer(0));  // throws
  const std::int64_t index = options.layer.value_or(model.layer_numbers().front());
  layer.source = model.layer(index, options.expert);
  layer.name = fmt::format("layer {} of {}", index, printable(options.model->string()));
  const bool folder = std::filesystem::is_directory(*options.model);
  for (const TensorInfo& tensor : model.tensors()) {
    if (tensor.layer != index || tensor.role == "norm") continue;
    for (const std::string& file : tensor.files) {
      const auto path = folder ? *options.model / file : *options.model;
      if (std::find(layer.files.begin(), layer.files.end(), path) == layer.files.end()) layer.files.push_back(path);
    }
  }
  check_memory(least_needed(options, layer.source.config.dim,
                            [&](Compute compute) { return cli::packed_bytes(layer.source, compute); }),
               layer.name);
  return layer;
}

struct Shape {
  std::string name;
  FfnConfig config;
};

Shape choose_shape(const BenchOptions& options, DType dtype, std::vector<std::string>& notes) {
  if (options.dim || options.hidden) {
    if (options.preset) {
      throw Error(ErrorCode::usage, "bench: a preset has its own dim and hidden: give --preset, or --dim and --hidden");
    }
    if (!options.dim || !options.hidden) throw Error(ErrorCode::usage, "bench: --dim and --hidden go together");
    return {"a made-up layer", {*options.dim, *options.hidden, 1e-5}};
  }
  const auto shape = [](std::string_view name) {
    const Preset& preset = find_preset(name);
    return Shape{fmt::format("{}'s shape", preset.name), preset.config()};
  };
  if (options.preset) return shape(*options.preset);
  Shape usual = shape(kDefault);
  const double needed = least_needed(options, usual.config.dim,
                                     [&](Compute compute) { return 3 * packed_bytes(usual.config, dtype, compute); });
  const auto available = static_cast<double>(available_memory());
  if (available <= 0 || needed <= available) return usual;
  notes.push_back(fmt::format("{} are available and {} needs about {}: measured {}'s instead", format_bytes(available),
                              usual.name, format_bytes(needed), kSmaller));
  return shape(kSmaller);
}

/// Fills `layer.memory` with the weights of `made`, on all threads, and makes the source read them there.
void hold(BenchLayer& layer, const LayerSource& made, ThreadPool& pool) {
  layer.source = made;
  for (auto* matrix : {&layer.source.gate, &layer.source.up, &layer.source.down}) {
    const TensorSource& from = **matrix;
    layer.memory.emplace_back(static_cast<std::size_t>(from.rows() * from.cols() * size_of(from.dtype())));
    struct Task {
      const TensorSource& from;
      std::byte* to;
    } task{from, layer.memory.back().span().data()};
    const Runner runner = pool.runner();
    runner.run(
        runner.ctx, from.rows(),
        [](void* arg, std::int64_t row) {  // a random source does not throw
          const Task& t = *static_cast<const Task*>(arg);
          t.from.read(row, 1, 0, t.from.cols(), t.to + row * t.from.cols() * size_of(t.from.dtype()));
        },
        &task);
    *matrix = view_source(from.name(), {task.to, from.dtype(), from.rows(), from.cols(), from.cols()});
  }
  layer.held = true;
}

class DenormalSource final : public TensorSource {
 public:
  DenormalSource(DType dtype, std::int64_t rows, std::int64_t cols)
      : TensorSource("denormal weights", dtype, rows, cols) {}
  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    std::uint64_t state = static_cast<std::uint64_t>(row0 * this->cols() + col0) * 0x9e3779b97f4a7c15U + kSeed;
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      put(static_cast<std::byte*>(dst) + i * size_of(dtype()), static_cast<std::uint32_t>(state >> 32));
    }
  }

 private:
  void put(std::byte* at, std::uint32_t random) const {
    const std::uint32_t single = (random & 0x807fffffU) | 1U;  // f64 weights are narrowed to such
    const auto half = static_cast<std::uint16_t>((random & (dtype() == DType::f16 ? 0x83ffU : 0x807fU)) | 1U);
    float number = 0;
    std::memcpy(&number, &single, sizeof number);
    const auto wide = static_cast<double>(number);
    switch (dtype()) {
      case DType::f32:
        std::memcpy(at, &single, sizeof single);
        break;
      case DType::f64:
        std::memcpy(at, &wide, sizeof wide);
        break;
      case DType::bf16:
      case DType::f16:
        std::memcpy(at, &half, sizeof half);
        break;
    }
  }
};

}  // namespace

std::int64_t BenchLayer::source_bytes() const {
  std::int64_t bytes = 0;
  if (source.packed != nullptr) {
    for (const auto part : {PackedSource::Part::gate_up, PackedSource::Part::down}) {
      const PackedSource::Matrix matrix = source.packed->matrix(part);
      bytes += matrix.index_bytes + matrix.payload_bytes;
    }
    return bytes;
  }
  for (const auto* matrix : {&source.gate, &source.up, &source.down}) {
    bytes += (*matrix)->rows() * (*matrix)->cols() * size_of((*matrix)->dtype());
  }
  return bytes;
}

double packed_bytes(const LayerSource& source, Compute compute) {
  double bytes = 0;
  for (const DType dtype : dtypes_of(source)) bytes += packed_bytes(source.config, dtype, compute);
  return bytes;
}

double bytes_needed(double packed, const BenchOptions& options, std::int64_t dim) {
  constexpr double kProbeAndRest = 96.0 * (1 << 20);  // the least memory that shows a limit, and the process
  const auto tokens = static_cast<double>(*std::max_element(options.tokens.begin(), options.tokens.end()));
  return 1.02 * packed + 10 * tokens * static_cast<double>(dim) + kProbeAndRest;
}

std::vector<Storage> storages_of(const BenchOptions& options, const LayerSource& source, Compute compute) {
  if (!options.storages.empty()) return options.storages;
  if (all_bf16(source, compute)) return {Storage::plain, Storage::compact};
  if (has_bf16(source, compute)) return {Storage::plain, Storage::automatic};  // of a part only
  return {Storage::automatic};
}

BenchLayer open_bench_layer(const BenchOptions& options, std::vector<std::string>& notes) {
  if (options.model) return open_model(options);
  if (options.layer || options.eps || options.map) {
    throw Error(ErrorCode::usage, "bench: --layer, --eps and --map need a MODEL");
  }
  const DType dtype = options.dtype.value_or(DType::bf16);
  const Shape shape = choose_shape(options, dtype, notes);
  double needed = least_needed(options, shape.config.dim,
                               [&](Compute compute) { return 3 * packed_bytes(shape.config, dtype, compute); });
  check_memory(needed, shape.name);
  BenchLayer layer;
  layer.name = shape.name;
  layer.made_up = true;
  layer.source = random_layer(shape.config, dtype, kSeed);
  for (const Compute compute : options.computes) {  // rather two storages at once than a figure for loading
    const auto at_once = static_cast<double>(storages_of(options, layer.source, compute).size());
    const double packed = at_once * cli::packed_bytes(layer.source, compute);
    needed = std::max(needed, bytes_needed(packed, options, shape.config.dim) + neighbours_bytes(options));
  }
  const auto available = static_cast<double>(available_memory());
  if (available > 0 && needed + 2 * static_cast<double>(layer.source_bytes()) > available) {
    notes.emplace_back("too little memory to hold the weights beside their packed copy: no figure for loading");
  } else {
    ThreadPool pool;
    hold(layer, LayerSource(layer.source), pool);
  }
  return layer;
}

LayerSource denormal_layer(const LayerSource& source) {
  const auto [gate, up, down] = dtypes_of(source);
  const std::int64_t dim = source.config.dim, hidden = source.config.hidden;
  LayerSource denormal;
  denormal.config = source.config;
  denormal.gate = std::make_shared<DenormalSource>(gate, hidden, dim);
  denormal.up = std::make_shared<DenormalSource>(up, hidden, dim);
  denormal.down = std::make_shared<DenormalSource>(down, dim, hidden);
  denormal.norm = source.norm;
  return denormal;
}

}  // namespace swiglu::cli
