// The commands: what each one is told, and the function that does it.
// main.cc fills the options from the command line; a command knows nothing of how they were written.
// Each function returns the exit code 0 (done) or 1 (found a difference or an inconsistency) and
// throws swiglu::Error for everything else. Results go to stdout, all else to stderr.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "swiglu/files.hpp"
#include "swiglu/reference.hpp"
#include "swiglu/swiglu.hpp"

namespace swiglu::cli {

class Team;  // all ranks of swiglu-mpi (team.h); null for one process, and only for commands that ranks run

/// Of swiglu-mpi's commands.
struct RanksOptions {
  std::string wire = "f32";
  double timeout_seconds = 120;
};

struct DemoOptions {
  int threads = 0;  ///< 0: the library's default, here and below
  bool json = false;
};
int demo(const DemoOptions& options, Team* team);

struct InspectOptions {
  std::filesystem::path model;
  bool stats = false;
  bool json = false;
};
int inspect(const InspectOptions& options);

struct RunOptions {
  std::filesystem::path model, input, output;
  std::int64_t layer = 0;
  std::optional<std::int64_t> expert;  ///< of a mixture of experts, here and below
  bool block = true;  ///< false: --part ffn
  Compute compute = Compute::automatic;
  Storage storage = Storage::automatic;
  reference::Numerics numerics = reference::Numerics::exact;  ///< exact stands for fused, the fast path
  int threads = 0;
  std::optional<DType> dtype;  ///< of the output; nothing: the input's
  bool u2_is_bf16 = false;
  OpenOptions open;
};
int run(const RunOptions& options, Team* team);

struct VerifyOptions {
  std::filesystem::path model;
  std::optional<std::int64_t> layer;  ///< nothing: all
  std::optional<std::int64_t> expert;
  std::optional<std::filesystem::path> input;
  Compute compute = Compute::automatic;
  int threads = 0;
  bool map = false;
  bool json = false;
};
int verify(const VerifyOptions& options, Team* team);

struct CompareOptions {
  std::filesystem::path a, b;
  std::optional<std::int64_t> layer;  ///< nothing: all
  std::optional<std::int64_t> expert;
  std::optional<std::filesystem::path> input;
  bool allow_rounding = false;
  int threads = 0;
  bool json = false;
  OpenOptions open;  ///< `hidden` of whichever of the two needs it
};
int compare(const CompareOptions& options);

struct PackOptions {
  std::filesystem::path model, output;
  std::vector<std::pair<std::int64_t, std::int64_t>> layers;  ///< ascending ranges, first and last; empty: all
  std::optional<std::int64_t> expert;
  Compute compute = Compute::automatic;
  Storage storage = Storage::automatic;
  int threads = 0;
  OpenOptions open;
};
int pack(const PackOptions& options);

struct SynthOptions {
  std::optional<std::string> preset;
  std::optional<std::int64_t> dim, hidden, layers;
  CheckpointFormat format = CheckpointFormat::huggingface;
  int shards = 1;
  TensorType type = TensorType::bf16;
  std::uint64_t seed = 1;
  std::filesystem::path output;
};
int synth(const SynthOptions& options);

struct ConvertOptions {
  std::filesystem::path model, output;
  CheckpointFormat format = CheckpointFormat::huggingface;
  int shards = 1;
  std::optional<TensorType> type;                           ///< of the matrices; nothing: as in the model
  std::vector<std::pair<std::int64_t, std::int64_t>> layers;  ///< as in PackOptions
  std::optional<std::int64_t> expert;
  bool all = false;  ///< the whole model, within its format
  OpenOptions open;
};
int convert(const ConvertOptions& options);

struct BenchOptions {
  std::optional<std::filesystem::path> model;  ///< nothing: a made-up layer of `preset` or `dim` and `hidden`
  std::optional<std::string> preset;
  std::optional<std::int64_t> dim, hidden;  ///< with a model, `hidden` confirms its width
  std::optional<double> eps;                ///< of a model
  bool map = false;                         ///< a model that is a packed file
  std::optional<std::int64_t> layer;        ///< of a model; nothing: 0
  std::optional<std::int64_t> expert;       ///< of a model
  std::optional<DType> dtype;               ///< of made-up weights; nothing: bf16
  std::vector<std::int64_t> tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  std::vector<int> threads;  ///< empty: 1 and all
  std::vector<Compute> computes = {Compute::automatic};
  std::vector<Isa> isas = {Isa::automatic};
  std::vector<Storage> storages;  ///< empty: plain and compact of weights that are packed as bf16
  int neighbours = 0;             ///< threads that take bandwidth away meanwhile
  std::optional<std::filesystem::path> json;  ///< an empty path: stdout
  std::optional<std::filesystem::path> svg;
};
int bench(const BenchOptions& options, Team* team);

struct WidthOptions {
  std::int64_t dim = 0;
  std::int64_t multiple_of = 256;
  std::optional<double> multiplier;
};
int width(const WidthOptions& options);

}  // namespace swiglu::cli
