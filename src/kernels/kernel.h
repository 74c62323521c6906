// The wall between the layer and the kernels: raw pointers in, raw pointers out, PODs only. Kernels are
// noexcept and check nothing. Kernel translation units include this, <cstddef>, <cstdint> and their
// intrinsics; everything in them is in an anonymous namespace but the one table they export.
//
// Packed weights. A piece is one panel of 32 outputs over one run of k: steps of 128 bytes (f16: 64),
//   32-bit weights    [k]     [2][16] float          1 k per step
//   bf16              [k / 2] [2][16] {even, odd}    2 k per step
//   f16               [k]     [2][16] half           1 k per step
// where the first 16 outputs are gate rows and the second 16 the up rows of the same hidden units
// (gate/up), or 32 neighbouring rows (down). Rows and k beyond the matrix are +0.
// Compact bf16, the same weights in three quarters of the bytes: a block of 192 bytes stands for two steps,
//   low bytes of step 0 [64], of step 1 [64], codes [64]: of step 0 in the lower four bits, of step 1 above
// in the order 8 words of the first 16 outputs, 8 of the second, and so on, which unpack instructions undo. A
// code is an index into the panel's table of 16 high bytes; high bytes that are not there are patched.
// Activations. A tile of m rows over all k, rows innermost:
//   floats  [k][m] float     pairs  [k / 2][m] {even, odd} bf16
#pragma once

#include <cstddef>
#include <cstdint>

namespace swiglu::kernels {

inline constexpr int kLanes = 16;        ///< hidden units of a gate/up panel, half a down panel
inline constexpr int kPanel = 32;        ///< outputs of a panel
inline constexpr int kMaxTileRows = 14;  ///< the most any kernel takes

enum class Elem : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2, f64 = 3 };

/// What a matmul multiplies, and in which order it adds (docs/design.md, "Order of a dot product").
enum class Product : std::uint8_t {
  f32_f32 = 0,    ///< f32 compute, 32-bit weights
  f32_bf16 = 1,   ///< f32 compute, bf16 weights: the even k before the odd
  f32_f16 = 2,    ///< f32 compute, f16 weights
  bf16_bf16 = 3,  ///< bf16 compute, bf16 weights: the odd k before the even
  bf16_wide = 4,  ///< bf16 compute on widened weights: steps of two k, {odd [2][16], even [2][16]} float
  f32_compact = 5,   ///< f32_bf16 on compact weights
  bf16_compact = 6,  ///< bf16_bf16 on compact weights
};
inline constexpr int kProducts = 7;

constexpr bool is_compact(Product product) noexcept {
  return product == Product::f32_compact || product == Product::bf16_compact;
}
/// The product of plain bf16 weights, on compact ones.
constexpr Product compact_of(Product product) noexcept {
  return product == Product::f32_bf16 ? Product::f32_compact : Product::bf16_compact;
}

/// How many k one panel step holds, and its bytes (of compact weights two steps always lie together).
constexpr std::int64_t k_per_step(Product product) noexcept {
  return product == Product::f32_f32 || product == Product::f32_f16 ? 1 : 2;
}
constexpr std::int64_t step_bytes(Product product) noexcept {
  return product == Product::f32_f16 ? 64 : product == Product::bf16_wide ? 256 : is_compact(product) ? 96 : 128;
}
inline constexpr std::int64_t kBlockBytes = 192;  ///< of compact weights
/// What Ahead::every counts: steps, or lines of compact weights.
constexpr std::int64_t counted_bytes(Product product) noexcept {
  return is_compact(product) ? 64 : step_bytes(product);
}
constexpr std::int64_t piece_bytes(Product product, std::int64_t steps) noexcept {
  return (is_compact(product) ? steps + steps % 2 : steps) * step_bytes(product);
}

/// Panel steps between restarts of the accumulators: 512 k in f32 compute, 1024 k in bf16 compute.
constexpr std::int64_t chunk_steps(Product product) noexcept {
  return product == Product::f32_bf16 || product == Product::f32_compact ? 256 : 512;
}

/// A patch of a piece of compact weights: where its high byte lies in the plain piece, and the byte itself.
/// Patches of a piece ascend and end with kNoPatch; a piece has at most kMostCompactSteps steps.
using Patch = std::uint32_t;
inline constexpr Patch kNoPatch = 0xffffffffU;
inline constexpr std::int64_t kMostCompactSteps = (std::int64_t{1} << 17) - 1;
constexpr std::int64_t step_of(Patch patch) noexcept { return patch >> 15; }
constexpr std::int64_t place_in_step(Patch patch) noexcept { return patch >> 8 & 127; }

/// What compact weights need beside their blocks.
struct Codes {
  const unsigned char* table = nullptr;  ///< [16], the panel's
  const Patch* patches = nullptr;        ///< from the first one on that is not before this call's first step
  std::int64_t first_step = 0;           ///< of this call, in its piece
};

/// What to bring into L2 during a matmul: a pair of lines every `every` steps, from `at` on. Runs of 4 KiB
/// << pages_log2 are fetched from all their pages in turn, which keeps more of the memory busy than line after
/// line does; what is left at the end is fetched in order. May lie anywhere; changes no result.
struct Ahead {
  const void* at = nullptr;
  std::int64_t bytes = 0;    ///< the region's size; 0: nothing
  std::int64_t done = 0;     ///< pairs of the region that were fetched before
  std::int64_t every = 1;    ///< at least 1; counts counted_bytes of the product
  int pages_log2 = 0;        ///< 0 ... 5
  std::int64_t near_by = 0;  ///< bytes ahead in `weights` itself to bring into L1 as well; 0: none
};

/// The Ahead of a matmul whose weights stream through it once: `far` bytes ahead in weights that begin at
/// `start`, where the piece lies at `offset`. Runs count from `start`, so that they go on from piece to piece.
[[nodiscard]] Ahead stream_ahead(const void* start, std::int64_t offset, std::int64_t size, std::int64_t step_bytes,
                                 std::int64_t far, int pages_log2, std::int64_t near_by) noexcept;

/// One matmul call: sum[i][j] = Σ over the piece, in chunks that restart at +0 and are added in order
/// to a running sum that starts at +0, or goes on if `resume`. `steps` counts panel steps and may be 0.
struct Tile {
  const void* activations;  ///< at the piece's first k
  const void* weights;      ///< 64-byte aligned
  float* sum;               ///< [m][32]
  std::int64_t steps;
  bool resume;  ///< a chunk begins at this piece's first k, and chunks before it are in `sum`
  Ahead ahead;
  float* widened = nullptr;  ///< if given, the weights are also stored as ProductKernels::wide takes them
  Codes codes = {};          ///< of compact weights
};
using Matmul = void (*)(const Tile&);

/// Reads one row, normalises it if asked, rounds it to the compute type, and writes it as row
/// `row` of a tile of `rows`.
struct RowIn {
  const void* source;  ///< [k] of type `type`, any alignment
  Elem type;
  std::int64_t k;
  std::int64_t padded_k;  ///< k .. padded_k are written as +0
  const float* norm;      ///< [k], or null: no normalisation
  float dim;              ///< k as float
  float eps;
  void* tile;
  int row;
  int rows;
  bool round;  ///< bf16 compute
};

/// z = silu(gate) * up for one panel of hidden units, written to the down product's tile.
struct GateUp {
  const float* sum;  ///< [rows][32]: 16 gates, 16 ups
  void* tile;        ///< the z tile at this panel's first k
  int rows;
  int valid;   ///< hidden units that exist; the others are stored as +0
  bool round;  ///< bf16 compute
};

/// out = (sum + 0) + residual for one row of one down panel, converted to the output's type.
struct RowOut {
  const float* sum;      ///< [n]
  const void* residual;  ///< [n] of type residual_type, or null
  void* out;             ///< [n] of type out_type, any alignment; may be residual
  std::int64_t n;
  Elem residual_type;
  Elem out_type;
  bool flush;  ///< bf16 compute: denormals become zero before rounding to bf16
};

/// Plain bf16 steps to compact blocks. The high bytes outside the table are counted, and written as patches.
struct Encode {
  const void* plain;  ///< [steps] of 128 bytes, 64-byte aligned
  std::int64_t steps;
  const unsigned char* table;  ///< [16], all different
  void* blocks;                ///< piece_bytes of them, 64-byte aligned
  Patch* patches;              ///< room for all of them; steps ascend, places within a step need not
};

/// The sums of one product: how the tile must be laid out and the kernels by tile rows.
struct ProductKernels {
  Matmul matmul[kMaxTileRows + 1];  ///< by rows, 1 … max_rows; [0] unused
  int max_rows;
  bool pairs;  ///< activations as bf16 pairs, else as floats
  /// The product that gives the same sums from weights that need no conversion, as Tile::widened leaves them,
  /// worth it when several tiles use them; the product itself where there is nothing to convert.
  Product wide;
};

/// One way to read memory. The value returned only keeps the loads alive; the time is what is measured.
struct ReadProbe {
  const char* name;
  float (*run)(const void* bytes, std::int64_t n);  ///< n a multiple of 4096, 64-byte aligned; finite floats
};
/// Arithmetic on registers alone: rounds × operations_per_round operations (a multiply-add is two).
struct PeakProbe {
  float (*run)(std::int64_t rounds);  ///< null where the ISA has no such instruction
  std::int64_t operations_per_round;
};
inline constexpr int kReadProbes = 11;
struct Probes {
  ReadProbe read[kReadProbes];
  PeakProbe fma;
  PeakProbe bf16_dot;
  PeakProbe int8_dot;
  PeakProbe int8_vnni;  ///< asks more than the ISA: only where the processor has avx512vnni
};

/// One ISA's kernels. Every member is filled. All run in the floating-point mode their caller set.
struct Table {
  ProductKernels product[kProducts];
  void (*row_in)(const RowIn&);
  void (*gate_up[2])(const GateUp&);  ///< [0]: float tiles, [1]: tiles of bf16 pairs
  void (*row_out)(const RowOut&);
  void (*add)(float* dst, const float* left, const float* right, std::int64_t n);
  void (*silu)(float* dst, const float* src, std::int64_t n);
  /// Packing: 32 rows, `row_bytes` apart, to [steps][32], in units of 16 or 32 bits. Rows at any address, `dst`
  /// 64-byte aligned. Quick when row_bytes is not a multiple of 4096: else all rows share one set of L1.
  void (*interleave16)(void* dst, const void* rows, std::int64_t row_bytes, std::int64_t steps);
  void (*interleave32)(void* dst, const void* rows, std::int64_t row_bytes, std::int64_t steps);
  std::int64_t (*encode)(const Encode&);  ///< the number of patches
  Probes probes;
};

extern const Table kScalar;
extern const Table kAvx2;
extern const Table kAvx512;
extern const Table kAvx512Bf16;

/// The rows of compact weights for avx512 and avx512bf16 with VBMI: the same bits, faster on some
/// processors.
struct CompactRows {
  ProductKernels f32_compact;
  ProductKernels bf16_compact;
};
extern const CompactRows kAvx512Vbmi;
extern const CompactRows kAvx512Bf16Vbmi;

/// With the best rows that this machine has. By swiglu::name_of(Isa); null for a name without kernels. Does not ask
/// whether the machine has the ISA.
[[nodiscard]] const Table* find_table(const char* isa) noexcept;

}  // namespace swiglu::kernels
