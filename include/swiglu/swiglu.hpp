// The front door of swiglu: the Llama 3 feed-forward sublayer on CPUs.
//
//     out = h + W2 · ( silu(W1 · n) ⊙ (W3 · n) ),   n = RMSNorm(h) = h / sqrt(mean(h²) + eps) ⊙ g
//
// gate = W1, up = W3 (both [hidden, dim]), down = W2 ([dim, hidden]), g = the norm's weight ([dim]).
// This header needs the C++20 standard library only. docs/design.md states the numeric contract.
//
// Unless a function says otherwise: sizes count elements and are 64-bit; matrices are row-major with
// a row stride in elements; pointers need no alignment beyond what is stated; every failure is one
// swiglu::Error; const objects may be used from any number of threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "swiglu/tensors.hpp"

#pragma GCC visibility push(default)
namespace swiglu {

// ---------------------------------------------------------------------------------------------
// The sublayer's shape, and the width recipe

struct FfnConfig {
  std::int64_t dim = 0;
  std::int64_t hidden = 0;
  double eps = 1e-5;
};

/// The hidden width that Meta's code gives (llama_models FeedForward): h = int(2 * (4 * dim) / 3) in
/// IEEE double, times the multiplier when there is one and truncated again, rounded up to a multiple
/// of `multiple_of`. Throws usage for dim or multiple_of <= 0, a multiplier that is not positive and
/// finite, or a result that is 0 or does not fit.
[[nodiscard]] std::int64_t ffn_width(std::int64_t dim, std::int64_t multiple_of = 256,
                                     std::optional<double> multiplier = std::nullopt);

/// A published model's recipe.
struct Preset {
  std::string_view name;  ///< lower case, as published: "llama-3-8b"
  std::int64_t dim;
  std::int64_t layers;
  std::int64_t multiple_of;
  std::optional<double> multiplier;
  double eps;
  int shards;  ///< consolidated.NN.pth files in Meta's release
  [[nodiscard]] FfnConfig config() const { return {dim, ffn_width(dim, multiple_of, multiplier), eps}; }
};
[[nodiscard]] std::span<const Preset> presets();
/// Matching ignores case. Throws usage naming the known presets.
[[nodiscard]] const Preset& find_preset(std::string_view name);

// ---------------------------------------------------------------------------------------------
// Threads

/// How to run `n` independent tasks: task(arg, i) for every i in [0, n), in any order, on any threads,
/// returning when all are done. Tasks never wait for each other and never throw; one needs up to 320 KiB of
/// stack. Fastest when neighbours in i are run by one thread, in order.
struct Runner {
  void (*run)(void* ctx, std::int64_t n, void (*task)(void* arg, std::int64_t i), void* arg);
  void* ctx;
};

/// A fork-join pool, shared by layers and owned by none. The calling thread works too. Workers spin
/// briefly between phases, then sleep. A second caller runs its tasks inline rather than queueing.
/// Survives fork() by starting new workers in the child.
class ThreadPool {
 public:
  /// 0: SWIGLU_THREADS if set, else the CPUs this process may use (affinity and cgroup quota).
  /// Throws usage for a negative number or a malformed SWIGLU_THREADS.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  [[nodiscard]] int threads() const noexcept;
  [[nodiscard]] Runner runner() noexcept;  ///< valid while the pool lives

 private:
  struct [[gnu::visibility("hidden")]] Impl;
  std::unique_ptr<Impl> impl_;
};

/// dst[i] = left[i] + right[i], in the layer's floating-point mode; dst may be left or right.
using AddFloats = void (*)(float* dst, const float* left, const float* right, std::int64_t n);

/// Consecutive reduction groups [first_group, first_group + groups) of 16: a complete subtree of the fixed tree.
struct Subtree {
  int first_group;
  int groups;
};
/// What rank `rank` of `ranks` owns (docs/design.md, "Reduction groups"): at most 3, in order; none for some if
/// ranks > 16.
[[nodiscard]] std::vector<Subtree> owned_subtrees(int rank, int ranks);

/// The sums of a subtree's groups.
struct PartialSum {
  int first_group;
  int groups;
  float* floats;
};

/// Combines the ranks' partial sums in the fixed tree ((0+1)+(2+3))+… over 16 groups, so that the
/// result has the bits of one process. The layer hands over its own addition. In a call of more than 256 tokens
/// it starts the reduction of one block of rows, computes the next, then finishes: one at a time is under way.
/// All ranks must make the same calls, with the same numbers of tokens. mpi.hpp has one over MPI.
class Reducer {
 public:
  virtual ~Reducer() = default;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// Starts the reduction of `parts` (at most 3, complete subtrees, `n` floats each; contents may be
  /// overwritten). `root` receives n floats. Both must stay alive until finish(), which a throw replaces.
  virtual void start(std::span<const PartialSum> parts, std::int64_t n, float* root, AddFloats add) = 0;
  /// Waits for what start() began. Throws communication.
  virtual void finish() = 0;
};

/// The one-process implementation: rank 0 of 1. One instance serves one call at a time.
[[nodiscard]] std::unique_ptr<Reducer> make_local_reducer();

// ---------------------------------------------------------------------------------------------
// Arithmetic and storage

/// What the arithmetic reads. f32: fp32 activations, weights as stored (f64 narrowed once).
/// bf16: activations, z and weights bf16 (weights of other types are rounded once).
/// automatic: bf16 if gate, up and down are all bf16, else f32. Sums are fp32 in both.
enum class Compute : std::uint8_t { automatic = 0, f32 = 1, bf16 = 2 };
[[nodiscard]] const char* name_of(Compute compute) noexcept;
/// Throws usage for an unknown name, as the other parse_ functions.
[[nodiscard]] Compute parse_compute(std::string_view name);

/// How packed bf16 weights lie in memory. plain: 16 bits each. compact: about 12 bits, without loss: the low
/// byte as it is and a 4-bit code for the high byte, of which trained weights use few; panels of weights with
/// more than one high byte in a thousand outside the panel's 16 commonest stay plain (docs/formats.md).
/// automatic: compact for bf16 weights where the instruction set decodes them faster than memory delivers
/// plain ones. Weights packed as f32 or f16 are always plain. All give the same bits.
enum class Storage : std::uint8_t { automatic = 0, plain = 1, compact = 2 };
[[nodiscard]] const char* name_of(Storage storage) noexcept;
[[nodiscard]] Storage parse_storage(std::string_view name);

// ---------------------------------------------------------------------------------------------
// Checkpoints

class PackedSource;  // packed.hpp

/// One layer's weights as they come out of a checkpoint (or of the caller's hands).
struct LayerSource {
  FfnConfig config;
  std::shared_ptr<const TensorSource> gate;  ///< [hidden, dim]
  std::shared_ptr<const TensorSource> up;    ///< [hidden, dim]
  std::shared_ptr<const TensorSource> down;  ///< [dim, hidden]
  std::vector<float> norm;                   ///< [dim]; may be empty if only forward() is called
  /// Weights from a packed file: gate, up and down are null then, and unpack() (packed.hpp) makes them.
  std::shared_ptr<const PackedSource> packed = nullptr;
  /// The norm in the type that it has in the file, one row; null where a layer comes from no file.
  std::shared_ptr<const TensorSource> stored_norm = nullptr;
};

struct OpenOptions {
  std::optional<double> eps;           ///< overrides the file's eps (a bare file carries none)
  std::optional<std::int64_t> hidden;  ///< confirms a width that the metadata contradicts
  /// A packed file's weights stay in the file's pages, shared by all processes that map it, instead of being
  /// read into memory of their own. Opening takes no time; the operating system seldom gives such pages the
  /// size that the fastest run wants, their checksums are not looked at, and whoever cuts the file short
  /// kills the process.
  bool map = false;
  /// false: the first inconsistency throws. true: inconsistencies that leave something readable are
  /// collected in problems(), for inspection; layer() of a damaged layer still throws.
  bool collect_problems = false;
};

/// One feed-forward matrix or norm vector as stored, for inspection.
struct TensorInfo {
  std::string name;  ///< as in the file
  std::string role;  ///< "gate", "up", "down", "norm", or "gate and up" in one tensor
  std::int64_t layer;
  std::string dtype;                ///< the file's own name for it
  std::vector<std::int64_t> shape;  ///< merged over shards; of the experts in one tensor, their number first
  std::vector<std::string> files;   ///< file names without directory, in shard order
  std::int64_t expert = -1;         ///< whose it is, where experts have tensors of their own
};

/// An opened checkpoint of any supported format; the bytes decide which, never the extension.
/// Opening reads headers only. Sources keep the files open, so the Checkpoint may be dropped.
class Checkpoint {
 public:
  /// `path`: a Hugging Face folder, a Meta folder, or one .safetensors, .gguf, .pth, .bin or packed file (of a
  /// split GGUF file the first, whose others lie beside it).
  [[nodiscard]] static Checkpoint open(const std::filesystem::path& path, const OpenOptions& options = {});
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  [[nodiscard]] const std::string& format() const noexcept;  ///< "huggingface", "safetensors", "meta", "gguf", "packed"
  [[nodiscard]] const std::string& family() const noexcept;  ///< "llama", "mistral", …; "" if unknown
  [[nodiscard]] std::int64_t layers() const noexcept;  ///< with a complete feed-forward
  /// Which ones, ascending: 0 … layers() - 1, but for a packed file of some layers only.
  [[nodiscard]] const std::vector<std::int64_t>& layer_numbers() const noexcept;
  [[nodiscard]] const FfnConfig& config() const noexcept;
  [[nodiscard]] std::int64_t shards() const noexcept;  ///< weight files
  [[nodiscard]] std::uint64_t size_bytes() const noexcept;  ///< of those files
  /// Bytes read from the checkpoint's files so far, by opening and by everything that came out of it, configuration
  /// and headers included; mapped pages are not counted. Any thread may ask.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept;
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const noexcept;
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept;
  [[nodiscard]] const std::vector<std::string>& problems() const noexcept;
  /// Of a mixture of experts (Mixtral, Qwen): how many each layer has; else 0.
  [[nodiscard]] std::int64_t experts() const noexcept;
  /// Throws usage when there is no layer i. Reads the norm vector only. Of a mixture of experts one expert's
  /// feed-forward, which must be named then, and only then; what a router makes of several is not in it.
  [[nodiscard]] LayerSource layer(std::int64_t i, std::optional<std::int64_t> expert = std::nullopt) const;
  /// Compares the weights with the checksums that .pth and packed files carry: a read of all of those files,
  /// which opening does without. Throws format naming file and entry. Does nothing for other formats.
  void check_payloads() const;

  struct [[gnu::visibility("hidden")]] Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl) noexcept;

 private:
  friend class PackedWriter;  // takes along what the weights came from
  std::unique_ptr<Impl> impl_;
};

// ---------------------------------------------------------------------------------------------
// The layer

/// Instruction sets, slowest first. All give the same bits.
enum class Isa : std::uint8_t { automatic = 0, scalar = 1, avx2 = 2, avx512 = 3, avx512bf16 = 4 };
[[nodiscard]] const char* name_of(Isa isa) noexcept;
/// Throws usage for an unknown name.
[[nodiscard]] Isa parse_isa(std::string_view name);
/// Those this machine can run, slowest first.
[[nodiscard]] std::vector<Isa> available_isas();

struct Options {
  Compute compute = Compute::automatic;  ///< of a packed layer: what it was packed for
  Storage storage = Storage::automatic;  ///< of a packed layer: as it was packed
  Isa isa = Isa::automatic;  ///< automatic: SWIGLU_ISA if set, else the fastest here
  Reducer* reducer = nullptr;  ///< not owned; this layer then packs only its rank's groups
  /// Called from packing threads with (bytes packed so far, bytes in all); must be quick.
  void (*progress)(void* ctx, std::int64_t done, std::int64_t total) = nullptr;
  void* progress_ctx = nullptr;
};

/// One packed matrix of a layer (gate and up together, or down).
struct PackedInfo {
  const char* storage = "";  ///< "plain f32", "plain bf16", "plain f16" or "compact bf16"
  std::int64_t bytes = 0;  ///< in memory, tables and patches included
  double bits_per_weight = 0;  ///< 8 * bytes / elements; 0 of a rank that owns nothing
  std::int64_t panels = 0;  ///< of 32 outputs each
  std::int64_t plain_panels = 0;  ///< of compact storage: those that stayed plain
  std::int64_t patches = 0;  ///< of compact storage: high bytes outside their panel's table
};

/// What a layer turned out to be.
struct FeedForwardInfo {
  FfnConfig config;
  Isa isa;
  Compute compute;
  PackedInfo gate_up, down;
  std::int64_t packed_bytes;
  double bits_per_weight;
};

/// Every intermediate of the sublayer, as floats, [tokens, …] dense. NaN is the canonical one.
struct LayerTrace {
  std::vector<float> norm;  ///< n as the gate/up products read it (rounded in bf16 compute)
  std::vector<float> gate, up, z;  ///< [tokens, hidden]; z as the down product reads it
  std::vector<float> down;  ///< [tokens, dim], before the residual
};

/// The packed sublayer. Immutable after construction: any number of threads may call it at once,
/// each with its own workspace (with a Reducer: one call at a time).
/// A token's output depends on that token alone: the bits are the same for every batch size, row
/// position, stride, thread count, runner, storage, ISA and number of ranks.
class FeedForward {
 public:
  /// Reads and packs the weights, in parallel, streaming: peak memory is the packed size plus small
  /// buffers. The pool or runner must outlive the layer. Throws shape, usage, unsupported, io, no_memory.
  /// A layer from a packed file is read as it is (or not even read: OpenOptions::map), after every table, offset
  /// and patch in it was checked (format); options that it does not fit make it pack anew. With a Reducer only the
  /// rank's share is read, of packed files and others.
  FeedForward(const LayerSource& layer, ThreadPool& pool, const Options& options = {});
  FeedForward(const LayerSource& layer, Runner runner, const Options& options = {});
  FeedForward(FeedForward&&) noexcept;
  FeedForward& operator=(FeedForward&&) noexcept;
  ~FeedForward();

  [[nodiscard]] const FeedForwardInfo& info() const noexcept;

  /// This layer's packed weights, for a packed file. They lie in the layer, which must outlive the source.
  /// Throws usage of a layer that holds only one rank's share.
  [[nodiscard]] std::shared_ptr<const PackedSource> packed() const;

  /// Bytes of workspace that block() and forward() need for this many tokens; bounded, because
  /// tokens run in blocks of at most 256 rows. 0 tokens need 0 bytes.
  [[nodiscard]] std::size_t workspace_bytes(std::int64_t tokens) const noexcept;

  /// out = h + FFN(norm(h)). h and out are [tokens, dim]; out may be h itself (same data, type and
  /// stride) but may not overlap it otherwise. Throws usage or shape for arguments that do not fit,
  /// before anything is written. With a workspace (64-byte aligned) nothing is allocated.
  void block(const TensorView& h, const MutableTensorView& out, std::span<std::byte> workspace) const;
  void block(const TensorView& h, const MutableTensorView& out) const;

  /// y = w2(silu(w1 x) * w3 x), without norm and residual. The same rules.
  void forward(const TensorView& x, const MutableTensorView& y, std::span<std::byte> workspace) const;
  void forward(const TensorView& x, const MutableTensorView& y) const;

  /// The intermediates for h, for study and verification; `normalise` false takes h as n. Allocates.
  [[nodiscard]] LayerTrace trace(const TensorView& h, bool normalise = true) const;

 private:
  struct [[gnu::visibility("hidden")]] Impl;
  std::unique_ptr<Impl> impl_;
};

/// The library's version, "MAJOR.MINOR.PATCH".
[[nodiscard]] const char* version() noexcept;

}  // namespace swiglu
#pragma GCC visibility pop
