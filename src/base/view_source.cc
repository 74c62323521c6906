// TensorSource over the caller's memory; and the library's version.
#include <cstring>

#include <fmt/format.h>

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/text.h"
#include "swiglu/swiglu.hpp"

namespace swiglu {
namespace {

class ViewSource final : public TensorSource {
 public:
  ViewSource(std::string name, const TensorView& view)
      : TensorSource(std::move(name), view.dtype, view.rows, view.cols), view_(view) {}
  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    const std::int64_t item = size_of(view_.dtype);
    if (rows == 0 || cols == 0) return;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(static_cast<std::byte*>(dst) + r * cols * item,
                  static_cast<const std::byte*>(view_.data) + ((row0 + r) * view_.stride + col0) * item,
                  static_cast<std::size_t>(cols * item));
    }
  }

 private:
  TensorView view_;
};

}  // namespace

std::shared_ptr<const TensorSource> view_source(std::string name, const TensorView& view) {
  constexpr std::int64_t kMostElements = INT64_MAX / 16;  // their bytes are a number, too
  if (view.rows < 0 || view.cols < 0 || view.stride < view.cols ||
      (view.data == nullptr && view.rows != 0 && view.cols != 0) ||
      (view.rows > 0 && view.stride > kMostElements / view.rows)) {
    throw Error(ErrorCode::usage, fmt::format("{}: not a matrix: {} x {}, stride {}, data {}", escaped(name), view.rows,
                                              view.cols, view.stride, view.data == nullptr ? "null" : "given"));
  }
  return std::make_shared<ViewSource>(std::move(name), view);
}

std::vector<float> read_floats(const TensorSource& source) {
  const std::int64_t n = source.rows() * source.cols();
  std::vector<std::byte> stored(static_cast<std::size_t>(n * size_of(source.dtype())));
  source.read(0, source.rows(), 0, source.cols(), stored.data());
  std::vector<float> floats(static_cast<std::size_t>(n));
  const FloatMode exact(FloatMode::kExact);
  for (std::int64_t i = 0; i < n; ++i) {
    store_double(floats.data(), DType::f32, i, load_double(stored.data(), source.dtype(), i));
  }
  return floats;
}

const char* version() noexcept { return SWIGLU_VERSION; }

}  // namespace swiglu
