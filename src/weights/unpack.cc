// Packed weights as matrices again, element for element; see weights.h. For whoever looks at weights: the layer
// never reads them this way.
#include <cstring>

#include "weights/weights.h"

namespace swiglu::weights {
namespace {

class UnpackedSource final : public TensorSource {
 public:
  UnpackedSource(std::string name, std::shared_ptr<const PackedMatrix> matrix, Rows which, std::int64_t rows,
                 std::int64_t cols)
      : TensorSource(std::move(name), matrix->dtype(), rows, cols), matrix_(std::move(matrix)), which_(which) {}

  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    auto* out = static_cast<std::byte*>(dst);
    for (std::int64_t r = 0; r < rows; ++r, out += cols * size_of(dtype())) {
      const std::int64_t row = row0 + r;
      const bool down = which_ == Rows::down;
      const std::int64_t lanes = down ? kernels::kPanel : kernels::kLanes;
      const std::int64_t lane = row % lanes + (which_ == Rows::up ? kernels::kLanes : 0);
      const Panel& panel = matrix_->panel(row / lanes);
      panel.compact ? read_compact(row / lanes, lane, col0, cols, out) : read_plain(panel, lane, col0, cols, out);
    }
  }

 private:
  // The pieces of a panel follow each other, and all but the last hold whole blocks: a panel is one run.
  void read_plain(const Panel& panel, std::int64_t lane, std::int64_t col0, std::int64_t cols, std::byte* out) const {
    const std::int64_t item = size_of(dtype()), per_step = dtype() == DType::bf16 ? 2 : 1;
    for (std::int64_t k = col0; k < col0 + cols; ++k, out += item) {
      const std::int64_t at = (k / per_step * kernels::kPanel + lane) * per_step + k % per_step;
      std::memcpy(out, panel.bytes + at * item, static_cast<std::size_t>(item));
    }
  }

  void read_compact(std::int64_t p, std::int64_t lane, std::int64_t col0, std::int64_t cols, std::byte* out) const {
    const Panel& panel = matrix_->panel(p);
    const std::int64_t in_block = lane % 16 / 4 * 16 + lane / 16 * 8 + lane % 4 * 2;
    for (std::int64_t k = col0; k < col0 + cols; ++k) {
      const auto* block = reinterpret_cast<const unsigned char*>(panel.bytes + k / 4 * kernels::kBlockBytes);
      const std::int64_t step = k / 2 % 2, at = in_block + k % 2;
      out[(k - col0) * 2] = static_cast<std::byte>(block[64 * step + at]);
      out[(k - col0) * 2 + 1] = static_cast<std::byte>(panel.table[block[128 + at] >> (4 * step) & 15]);
    }
    std::int64_t first_step = 0;
    for (std::int64_t i = 0; i < matrix_->pieces(); ++i) {
      for (const kernels::Patch patch : matrix_->patches(p, i)) {
        const std::int64_t place = kernels::place_in_step(patch);
        const std::int64_t k = (first_step + kernels::step_of(patch)) * 2 + place / 2 % 2;
        if (place / 4 == lane && k >= col0 && k < col0 + cols) out[(k - col0) * 2 + 1] = static_cast<std::byte>(patch);
      }
      first_step += matrix_->steps(i);
    }
  }

  std::shared_ptr<const PackedMatrix> matrix_;
  Rows which_;
};

}  // namespace

std::shared_ptr<const TensorSource> unpack_rows(std::string name, std::shared_ptr<const PackedMatrix> matrix,
                                                Rows which, std::int64_t rows, std::int64_t cols) {
  return std::make_shared<const UnpackedSource>(std::move(name), std::move(matrix), which, rows, cols);
}

}  // namespace swiglu::weights
