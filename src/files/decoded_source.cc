// Sources over encoded bytes: quantised blocks and 8-bit floats as the f32 values they stand for. What is decoded is
// read again whenever it is asked for; nothing is kept.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/cpu.h"
#include "base/dtype.h"
#include "files/source.h"

namespace swiglu::files {
namespace {

class DecodedSource final : public TensorSource {
 public:
  DecodedSource(std::string name, EncodedMatrix m)
      : TensorSource(std::move(name), DType::f32, m.rows, m.cols), m_(std::move(m)) {}

  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    if (rows == 0 || cols == 0) return;
    const FloatMode exact(FloatMode::kExact);
    const std::int64_t block = m_.encoding->block;
    const std::int64_t first = col0 / block;
    const std::int64_t last = (col0 + cols + block - 1) / block;
    const std::int64_t at_once = std::max<std::int64_t>(1, kElementsAtOnce / block);
    std::vector<std::byte> stored(static_cast<std::size_t>(std::min(at_once, last - first) * m_.encoding->bytes));
    std::vector<float> values(static_cast<std::size_t>(std::min(at_once, last - first) * block));
    auto* out = static_cast<std::byte*>(dst);
    for (std::int64_t r = row0; r < row0 + rows; ++r) {
      for (std::int64_t b = first; b < last; b += at_once) {
        const std::int64_t count = std::min(at_once, last - b);
        m_.file->read(m_.offset + static_cast<std::uint64_t>(r * m_.row_bytes + b * m_.encoding->bytes),
                      {stored.data(), static_cast<std::size_t>(count * m_.encoding->bytes)});
        m_.encoding->decode(stored.data(), count, values.data());
        const std::int64_t from = std::max(b * block, col0);
        const std::int64_t to = std::min((b + count) * block, col0 + cols);
        std::memcpy(out, values.data() + (from - b * block), static_cast<std::size_t>(to - from) * sizeof(float));
        out += static_cast<std::size_t>(to - from) * sizeof(float);
      }
    }
  }

 private:
  static constexpr std::int64_t kElementsAtOnce = 16384;
  EncodedMatrix m_;
};

// Apart from its caller, which sets the floating-point mode.
[[gnu::noinline]] void multiply(std::byte* row, std::int64_t cols, float factor) {
  for (std::int64_t c = 0; c < cols; ++c) {
    float value = 0;
    std::memcpy(&value, row + static_cast<std::size_t>(c) * sizeof value, sizeof value);
    value *= factor;
    std::memcpy(row + static_cast<std::size_t>(c) * sizeof value, &value, sizeof value);
  }
}

class ScaledSource final : public TensorSource {
 public:
  ScaledSource(std::shared_ptr<const TensorSource> values, std::shared_ptr<const TensorSource> factors)
      : TensorSource(values->name(), DType::f32, values->rows(), values->cols()), values_(std::move(values)),
        factors_(std::move(factors)) {}

  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    if (rows == 0 || cols == 0) return;
    std::vector<std::byte> factors(static_cast<std::size_t>(rows * size_of(factors_->dtype())));
    factors_->read(row0, rows, 0, 1, factors.data());
    values_->read(row0, rows, col0, cols, dst);
    const FloatMode exact(FloatMode::kExact);
    for (std::int64_t r = 0; r < rows; ++r) {
      multiply(static_cast<std::byte*>(dst) + static_cast<std::size_t>(r * cols) * sizeof(float), cols,
               static_cast<float>(load_double(factors.data(), factors_->dtype(), r)));
    }
  }

 private:
  std::shared_ptr<const TensorSource> values_, factors_;
};

}  // namespace

std::shared_ptr<const TensorSource> make_decoded_source(std::string name, EncodedMatrix matrix) {
  return std::make_shared<DecodedSource>(std::move(name), std::move(matrix));
}

std::shared_ptr<const TensorSource> scale_rows(std::shared_ptr<const TensorSource> values,
                                               std::shared_ptr<const TensorSource> factors) {
  return std::make_shared<ScaledSource>(std::move(values), std::move(factors));
}

}  // namespace swiglu::files
