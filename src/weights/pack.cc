// Packing: 32 rows are read a block of columns at a time, converted to the packed type where they have another,
// and interleaved by the kernel table's transpose, into memory that the packing thread touches first.
#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/cpu.h"
#include "base/parallel.h"
#include "weights/convert.h"
#include "weights/weights.h"

namespace swiglu::weights {
namespace {

using kernels::Product;

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
  Scratch(std::int64_t rows_bytes, std::int64_t source_bytes)
      : bytes_(rows_bytes + source_bytes), source_(rows_bytes) {}
  [[nodiscard]] std::byte* rows() const noexcept { return bytes_.data(); }
  [[nodiscard]] std::byte* source() const noexcept { return bytes_.data() + source_; }

 private:
  Buffer bytes_;
  std::int64_t source_;
};

// Each running task borrows one, so that there are as many as threads, whoever runs the tasks.
class Scratches {
 public:
  Scratches(std::int64_t rows_bytes, std::int64_t source_bytes)
      : rows_bytes_(rows_bytes), source_bytes_(source_bytes) {}
  Scratch borrow() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        Scratch last = std::move(idle_.back());
        idle_.pop_back();
        return last;
      }
    }
    return {rows_bytes_, source_bytes_};
  }
  void give_back(Scratch scratch) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

 private:
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
  Packer(const kernels::Table& table, std::int64_t panels, std::vector<std::int64_t> borders, Product product,
         std::initializer_list<DType> types)
      : table_(table), first_(borders.front()), last_(borders.back()), product_(product),
        unit_(product == Product::f32_f32 ? 4 : 2), per_step_(kernels::k_per_step(product)),
        item_(std::max(unit_, size_of(std::max(types, [](DType a, DType b) { return size_of(a) < size_of(b); })))),
        direct_(std::all_of(types.begin(), types.end(), [&](DType type) { return is_packed(type); })),
        block_(block_columns(last_ - first_, item_)),
        scratches_(kernels::kPanel * padded_row(block_), kernels::kLanes * block_ * item_) {
    matrix_.panels_ = panels;
    std::vector<std::int64_t> piece_starts;
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      matrix_.steps_.push_back((borders[i + 1] - borders[i] + per_step_ - 1) / per_step_);
      piece_starts.push_back(panel_bytes_);
      panel_bytes_ += matrix_.steps_.back() * kernels::step_bytes(product);  // a multiple of 64
    }
    for (std::int64_t p = 0; p < panels; ++p) {
      for (const std::int64_t start : piece_starts) matrix_.offsets_.push_back(p * panel_bytes_ + start);
    }
    matrix_.bytes_ = Buffer(panels * panel_bytes_);
  }

  template <class HalvesOf>
  PackedMatrix run(const HalvesOf& halves_of, const Runner& runner, const Progress& progress) {
    parallel_for(runner, matrix_.panels_, [&](std::int64_t panel) {
      const FloatMode exact(FloatMode::kExact);
      Scratch scratch = scratches_.borrow();
      pack_panel(panel, {halves_of(panel, 0), halves_of(panel, 1)}, scratch, progress);
      scratches_.give_back(std::move(scratch));
    });
    return std::move(matrix_);
  }

 private:
  // The pieces of a panel follow each other, and all but the last hold whole steps: a panel is one run of steps.
  [[gnu::noinline]] void pack_panel(std::int64_t panel, const Half (&halves)[2], const Scratch& scratch,
                                    const Progress& progress) const {
    std::byte* out = matrix_.bytes_.data() + panel * panel_bytes_;
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
      (product_ == Product::f32_f16 ? table_.interleave16 : table_.interleave32)(out, scratch.rows(), row_bytes, steps);
      out += steps * kernels::step_bytes(product_);
    }
  }

  // To the packed type, +0 up to a whole step.
  void convert_rows(std::byte* rows, std::int64_t row_bytes, const std::byte* source, const Half& half,
                    std::int64_t n) const {
    const DType type = half.source->dtype();
    for (std::int64_t r = 0; r < half.rows; ++r, rows += row_bytes, source += n * size_of(type)) {
      if (is_packed(type)) {
        std::memcpy(rows, source, static_cast<std::size_t>(n * unit_));
      } else if (product_ == Product::f32_f32) {
        convert_to_f32(reinterpret_cast<float*>(rows), source, type, n);
      } else {
        convert_to_bf16(reinterpret_cast<std::uint16_t*>(rows), source, type, n);
      }
      if (n % per_step_ != 0) std::memset(rows + n * unit_, 0, static_cast<std::size_t>(unit_));
    }
  }

  [[nodiscard]] bool is_packed(DType type) const {
    return type == (product_ == Product::f32_f32   ? DType::f32
                    : product_ == Product::f32_f16 ? DType::f16
                                                   : DType::bf16);
  }
  // Of a converted row; one line more than the row where rows would conflict.
  [[nodiscard]] std::int64_t padded_row(std::int64_t n) const {
    const std::int64_t bytes = (n + per_step_ - 1) / per_step_ * per_step_ * unit_;
    return (bytes + kLine - 1) / kLine * kLine + kLine;
  }

  const kernels::Table& table_;
  std::int64_t first_;
  std::int64_t last_;
  Product product_;
  std::int64_t unit_;      // bytes of a packed element
  std::int64_t per_step_;  // elements of a row in a panel step
  std::int64_t item_;      // bytes of an element where it is widest
  bool direct_;            // nothing to convert
  std::int64_t block_;
  std::int64_t panel_bytes_ = 0;
  Scratches scratches_;
  PackedMatrix matrix_;
};

PackedMatrix pack_gate_up(const kernels::Table& table, const TensorSource& gate, const TensorSource& up,
                          std::int64_t row0, std::int64_t row1, Product product, const Runner& runner,
                          const Progress& progress) {
  Packer packer(table, (row1 - row0 + kernels::kLanes - 1) / kernels::kLanes, {0, gate.cols()}, product,
                {gate.dtype(), up.dtype()});
  return packer.run(
      [&](std::int64_t panel, int half) {
        const std::int64_t row = row0 + panel * kernels::kLanes;
        return Half{half == 0 ? &gate : &up, row, std::min<std::int64_t>(kernels::kLanes, row1 - row)};
      },
      runner, progress);
}

PackedMatrix pack_down(const kernels::Table& table, const TensorSource& down, const std::vector<std::int64_t>& borders,
                       Product product, const Runner& runner, const Progress& progress) {
  Packer packer(table, (down.rows() + kernels::kPanel - 1) / kernels::kPanel, borders, product, {down.dtype()});
  return packer.run(
      [&](std::int64_t panel, int half) {
        const std::int64_t row = panel * kernels::kPanel + half * kernels::kLanes;
        return Half{&down, row, std::clamp<std::int64_t>(down.rows() - row, 0, kernels::kLanes)};
      },
      runner, progress);
}

}  // namespace swiglu::weights
