// Packing: rows are read in column blocks, converted to the packed type, and interleaved by 16.
#include <algorithm>
#include <cstring>

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "weights/weights.h"

namespace swiglu::weights {
namespace {

using kernels::Product;

constexpr std::int64_t kColumnBlock = 4096;  // 32 rows of f64 are 1 MiB

template <class Packed>
Packed converted(const void* source, DType type, std::int64_t i, bool to_bf16) {
  if constexpr (sizeof(Packed) == 4) {
    static_cast<void>(to_bf16);
    return static_cast<float>(load_double(source, type, i));  // exact but for f64, which is narrowed once
  } else {
    std::uint16_t half = 0;
    if (to_bf16 && type != DType::bf16) {
      half = bf16_from_double(load_double(source, type, i));
    } else {
      std::memcpy(&half, static_cast<const char*>(source) + i * 2, 2);
    }
    return half;
  }
}

// `n` elements of a source row to the packed type, +0 up to `padded`.
template <class Packed>
void convert_row(Packed* dst, const void* source, DType type, std::int64_t n, std::int64_t padded, bool to_bf16) {
  const bool same = sizeof(Packed) == 4 ? type == DType::f32 : (type == DType::bf16 || !to_bf16);
  if (same) {
    std::memcpy(dst, source, static_cast<std::size_t>(n) * sizeof(Packed));
  } else {
    for (std::int64_t i = 0; i < n; ++i) dst[i] = converted<Packed>(source, type, i, to_bf16);
  }
  std::fill(dst + n, dst + padded, Packed{0});
}

// 32 rows of `steps` units to [steps][32]: the transpose that makes neighbours of outputs.
template <class Unit>
void interleave(void* dst, const std::byte* rows, std::int64_t row_bytes, std::int64_t steps) {
  auto* out = static_cast<Unit*>(dst);
  for (std::int64_t s = 0; s < steps; ++s, out += kernels::kPanel) {
    for (int lane = 0; lane < kernels::kPanel; ++lane) {
      std::memcpy(out + lane, rows + lane * row_bytes + s * static_cast<std::int64_t>(sizeof(Unit)), sizeof(Unit));
    }
  }
}

// One half of a panel: 16 rows of a source from `row`, of which `rows` exist.
struct Half {
  const TensorSource* source;
  std::int64_t row;
  std::int64_t rows;
};

}  // namespace

class Packer {
 public:
  Packer(std::int64_t panels, std::vector<std::int64_t> borders, Product product)
      : borders_(std::move(borders)), product_(product) {
    matrix_.panels_ = panels;
    const std::int64_t per_step = kernels::k_per_step(product);
    std::int64_t panel_bytes = 0;
    for (std::size_t i = 0; i + 1 < borders_.size(); ++i) {
      matrix_.steps_.push_back((borders_[i + 1] - borders_[i] + per_step - 1) / per_step);
      piece_starts_.push_back(panel_bytes);
      panel_bytes += matrix_.steps_.back() * kernels::step_bytes(product);  // a multiple of 64
    }
    for (std::int64_t p = 0; p < panels; ++p) {
      for (const std::int64_t start : piece_starts_) matrix_.offsets_.push_back(p * panel_bytes + start);
    }
    matrix_.bytes_ = Buffer(panels * panel_bytes);
  }

  template <class HalvesOf>
  PackedMatrix run(const HalvesOf& halves_of, const Runner& runner, const Progress& progress) {
    parallel_for(runner, matrix_.panels_, [&](std::int64_t panel) {
      const FloatMode exact(FloatMode::kExact);
      pack_panel(panel, halves_of(panel, 0), halves_of(panel, 1), progress);
    });
    return std::move(matrix_);
  }

 private:
  [[gnu::noinline]] void pack_panel(std::int64_t panel, const Half& first, const Half& second,
                                    const Progress& progress) {
    std::vector<std::byte> source;
    std::vector<std::byte> rows;
    for (std::size_t i = 0; i + 1 < borders_.size(); ++i) {
      auto* out = matrix_.bytes_.data() + matrix_.offsets_[static_cast<std::size_t>(panel) * (borders_.size() - 1) + i];
      for (std::int64_t k = borders_[i]; k < borders_[i + 1]; k += kColumnBlock) {
        const std::int64_t n = std::min(kColumnBlock, borders_[i + 1] - k);
        const std::int64_t per_step = kernels::k_per_step(product_);
        const std::int64_t steps = (n + per_step - 1) / per_step;
        const std::int64_t element = product_ == Product::f32_f32 ? 4 : 2;
        // One line more than the row: strides that are multiples of 4096 would share one cache set.
        const std::int64_t row_bytes = steps * per_step * element + 64;
        rows.assign(static_cast<std::size_t>(row_bytes * kernels::kPanel), std::byte{0});
        for (const Half* half : {&first, &second}) {
          if (half->rows == 0) continue;
          const std::int64_t item = size_of(half->source->dtype());
          source.resize(static_cast<std::size_t>(half->rows * n * item));
          half->source->read(half->row, half->rows, k, n, source.data());
          auto* dst = rows.data() + (half == &first ? 0 : row_bytes * kernels::kLanes);
          for (std::int64_t r = 0; r < half->rows; ++r) {
            convert(dst + r * row_bytes, source.data() + r * n * item, half->source->dtype(), n, steps * per_step);
          }
          if (progress.advance != nullptr) progress.advance(progress.ctx, half->rows * n);
        }
        if (product_ == Product::f32_f16) {
          interleave<std::uint16_t>(out, rows.data(), row_bytes, steps);
        } else {
          interleave<std::uint32_t>(out, rows.data(), row_bytes, steps);
        }
        out += steps * kernels::step_bytes(product_);
      }
    }
  }

  void convert(std::byte* dst, const std::byte* source, DType type, std::int64_t n, std::int64_t padded) const {
    if (product_ == Product::f32_f32) {
      convert_row(reinterpret_cast<float*>(dst), source, type, n, padded, false);
    } else {
      convert_row(reinterpret_cast<std::uint16_t*>(dst), source, type, n, padded, product_ != Product::f32_f16);
    }
  }

  std::vector<std::int64_t> borders_;
  Product product_;
  std::vector<std::int64_t> piece_starts_;
  PackedMatrix matrix_;
};

PackedMatrix pack_gate_up(const TensorSource& gate, const TensorSource& up, std::int64_t row0, std::int64_t row1,
                          Product product, const Runner& runner, const Progress& progress) {
  Packer packer((row1 - row0 + kernels::kLanes - 1) / kernels::kLanes, {0, gate.cols()}, product);
  return packer.run(
      [&](std::int64_t panel, int half) {
        const std::int64_t row = row0 + panel * kernels::kLanes;
        return Half{half == 0 ? &gate : &up, row, std::min<std::int64_t>(kernels::kLanes, row1 - row)};
      },
      runner, progress);
}

PackedMatrix pack_down(const TensorSource& down, const std::vector<std::int64_t>& borders, Product product,
                       const Runner& runner, const Progress& progress) {
  Packer packer((down.rows() + kernels::kPanel - 1) / kernels::kPanel, borders, product);
  return packer.run(
      [&](std::int64_t panel, int half) {
        const std::int64_t row = panel * kernels::kPanel + half * kernels::kLanes;
        return Half{&down, row, std::clamp<std::int64_t>(down.rows() - row, 0, kernels::kLanes)};
      },
      runner, progress);
}

}  // namespace swiglu::weights
