// Packing: 32 rows are read a block of columns at a time, converted to the packed type where they have another,
// and interleaved by the kernel table's transpose, into memory that the packing thread touches first.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/cpu.h"
#include "base/parallel.h"
#include "weights/compact.h"
#include "weights/convert.h"
#include "weights/weights.h"

namespace swiglu::weights {
namespace {

// Blocks of 32 rows stay in L2 between reading and transposing, and are long enough for positioned reads.
constexpr std::int64_t kRowBytes = 8192;
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kConflict = 4096;  // rows so far apart, or a multiple of it, share one set of L1

// One half of a panel: 16 rows of a source from `row`, of which `rows` exist.
struct Half {
  const TensorSource* source;
  std::int64_t row;
  std::int64_t rows;
};

// What a task needs to pack a panel.
class Scratch {
 public:
  Scratch(std::int64_t plain_bytes, std::int64_t rows_bytes, std::int64_t source_bytes)
      : bytes_(plain_bytes + rows_bytes + source_bytes), rows_(plain_bytes), source_(plain_bytes + rows_bytes) {}
  [[nodiscard]] std::byte* plain() const noexcept { return bytes_.data(); }  ///< a panel, for compact storage
  [[nodiscard]] std::byte* rows() const noexcept { return bytes_.data() + rows_; }
  [[nodiscard]] std::byte* source() const noexcept { return bytes_.data() + source_; }

 private:
  Buffer bytes_;
  std::int64_t rows_;
  std::int64_t source_;
};

// Each running task borrows one, so that there are as many as threads, whoever runs the tasks.
class Scratches {
 public:
  Scratches(std::int64_t plain_bytes, std::int64_t rows_bytes, std::int64_t source_bytes)
      : plain_bytes_(plain_bytes), rows_bytes_(rows_bytes), source_bytes_(source_bytes) {}
  Scratch borrow() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        Scratch last = std::move(idle_.back());
        idle_.pop_back();
        return last;
      }
    }
    return {plain_bytes_, rows_bytes_, source_bytes_};
  }
  void give_back(Scratch scratch) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

 private:
  std::int64_t plain_bytes_;
  std::int64_t rows_bytes_;
  std::int64_t source_bytes_;
  std::mutex mutex_;
  std::vector<Scratch> idle_;
};

// Columns of a block: all of them if they fit, else equal parts whose rows do not conflict.
std::int64_t block_columns(std::int64_t columns, std::int64_t item) {
  const std::int64_t most = kRowBytes / item;
  if (columns <= most) return columns;
  const std::int64_t blocks = (columns + most - 1) / most;
  const std::int64_t block = ((columns + blocks - 1) / blocks + kLine - 1) / kLine * kLine;
  return block * item % kConflict == 0 ? block - kLine : block;
}

}  // namespace

class Packer {
 public:
  Packer(const MatrixShape& shape, DType dtype, const Packing& packing, std::initializer_list<DType> types)
      : packing_(packing), matrix_(shape, dtype, packing.storage), first_(shape.borders.front()),
        last_(shape.borders.back()), dtype_(dtype), unit_(size_of(dtype)), per_step_(dtype == DType::bf16 ? 2 : 1),
        item_(std::max(unit_, size_of(std::max(types, [](DType a, DType b) { return size_of(a) < size_of(b); })))),
        direct_(std::all_of(types.begin(), types.end(), [&](DType type) { return type == dtype; })),
        compact_(matrix_.storage() == Storage::compact), block_(block_columns(last_ - first_, item_)),
        scratches_(compact_ ? matrix_.panel_bytes(false) : 0, kernels::kPanel * padded_row(block_),
                   kernels::kLanes * block_ * item_) {
    const auto memory = std::make_shared<const Buffer>(matrix_.panels() * matrix_.panel_bytes(compact_));
    memory_ = memory->data();
    matrix_.set_stream({memory_, memory->size()});
    matrix_.keep(memory);
  }

  template <class HalvesOf>
  PackedMatrix run(const HalvesOf& halves_of) {
    parallel_for(packing_.runner, matrix_.panels(), [&](std::int64_t panel) {
      const FloatMode exact(FloatMode::kExact);
      Scratch scratch = scratches_.borrow();
      pack_panel(panel, {halves_of(panel, 0), halves_of(panel, 1)}, scratch);
      scratches_.give_back(std::move(scratch));
    });
    return std::move(matrix_);
  }

 private:
  [[gnu::noinline]] void pack_panel(std::int64_t p, const Half (&halves)[2], const Scratch& scratch) {
    std::byte* place = memory_ + p * matrix_.panel_bytes(compact_);
    Panel& panel = matrix_.panel(p);
    panel.bytes = place;
    if (!compact_) return interleave(halves, scratch, place);
    interleave(halves, scratch, scratch.plain());
    const std::int64_t plain_bytes = matrix_.panel_bytes(false);
    const std::int64_t steps = plain_bytes / kernels::step_bytes(kernels::Product::bf16_bf16);
    const std::int64_t patches = choose_table(panel, scratch.plain(), steps);
    panel.compact = few_enough(patches, steps);
    if (panel.compact) return encode_panel(panel, matrix_, packing_.table, scratch.plain(), patches, place);
    panel.own = Buffer(plain_bytes);
    panel.bytes = panel.own.data();
    std::memcpy(panel.own.data(), scratch.plain(), static_cast<std::size_t>(plain_bytes));
  }

  // The pieces of a panel follow each other, and all but the last hold whole steps: a panel is one run of steps.
  void interleave(const Half (&halves)[2], const Scratch& scratch, std::byte* out) const {
    const Progress& progress = packing_.progress;
    for (std::int64_t k = first_; k < last_; k += block_) {
      const std::int64_t n = std::min(block_, last_ - k);
      const std::int64_t steps = (n + per_step_ - 1) / per_step_;
      const bool direct = direct_ && n % per_step_ == 0;
      const std::int64_t row_bytes = direct ? n * unit_ : padded_row(n);
      std::byte* rows = scratch.rows();
      for (const Half& half : halves) {
        if (half.rows > 0) {
          half.source->read(half.row, half.rows, k, n, direct ? rows : scratch.source());
          if (!direct) convert_rows(rows, row_bytes, scratch.source(), half, n);
          if (progress.advance != nullptr) progress.advance(progress.ctx, half.rows * n);
        }
        std::memset(rows + half.rows * row_bytes, 0,
                    static_cast<std::size_t>((kernels::kLanes - half.rows) * row_bytes));
        rows += kernels::kLanes * row_bytes;
      }
      const kernels::Table& table = packing_.table;
      (dtype_ == DType::f16 ? table.interleave16 : table.interleave32)(out, scratch.rows(), row_bytes, steps);
      out += steps * kernels::kPanel * per_step_ * unit_;
    }
  }

  // To the packed type, +0 up to a whole step.
  void convert_rows(std::byte* rows, std::int64_t row_bytes, const std::byte* source, const Half& half,
                    std::int64_t n) const {
    const DType type = half.source->dtype();
    for (std::int64_t r = 0; r < half.rows; ++r, rows += row_bytes, source += n * size_of(type)) {
      if (type == dtype_) {
        std::memcpy(rows, source, static_cast<std::size_t>(n * unit_));
      } else if (dtype_ == DType::f32) {
        convert_to_f32(reinterpret_cast<float*>(rows), source, type, n);
      } else {
        convert_to_bf16(reinterpret_cast<std::uint16_t*>(rows), source, type, n);
      }
      if (n % per_step_ != 0) std::memset(rows + n * unit_, 0, static_cast<std::size_t>(unit_));
    }
  }

  // Of a converted row; one line more than the row where rows would conflict.
  [[nodiscard]] std::int64_t padded_row(std::int64_t n) const {
    const std::int64_t bytes = (n + per_step_ - 1) / per_step_ * per_step_ * unit_;
    return (bytes + kLine - 1) / kLine * kLine + kLine;
  }

  const Packing& packing_;
  PackedMatrix matrix_;
  std::int64_t first_;
  std::int64_t last_;
  DType dtype_;
  std::int64_t unit_;      // bytes of a packed element
  std::int64_t per_step_;  // elements of a row in a panel step
  std::int64_t item_;      // bytes of an element where it is widest
  bool direct_;            // nothing to convert
  bool compact_;
  std::int64_t block_;
  Scratches scratches_;
  std::byte* memory_ = nullptr;
};

PackedMatrix pack_gate_up(const TensorSource& gate, const TensorSource& up, std::int64_t row0, std::int64_t row1,
                          DType dtype, const Packing& packing) {
  Packer packer(gate_up_shape(row0, row1, gate.cols()), dtype, packing, {gate.dtype(), up.dtype()});
  return packer.run([&](std::int64_t panel, int half) {
    const std::int64_t row = row0 + panel * kernels::kLanes;
    return Half{half == 0 ? &gate : &up, row, std::min<std::int64_t>(kernels::kLanes, row1 - row)};
  });
}

PackedMatrix pack_down(const TensorSource& down, const std::vector<std::int64_t>& borders, DType dtype,
                       const Packing& packing) {
  Packer packer(down_shape(down.rows(), borders), dtype, packing, {down.dtype()});
  return packer.run([&](std::int64_t panel, int half) {
    const std::int64_t row = panel * kernels::kPanel + half * kernels::kLanes;
    return Half{&down, row, std::clamp<std::int64_t>(down.rows() - row, 0, kernels::kLanes)};
  });
}

}  // namespace swiglu::weights
