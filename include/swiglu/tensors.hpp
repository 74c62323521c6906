// Errors, element types and matrices: what every other header of swiglu speaks in. Included by swiglu.hpp,
// whose opening lines hold here too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace swiglu {

// ---------------------------------------------------------------------------------------------
// Errors

/// Why something failed. The values are fixed: they are also the C ABI's codes.
enum class ErrorCode : int {
  usage = 1,          ///< arguments that do not fit (a layer out of range, an ISA this machine lacks)
  not_found = 2,      ///< a file, tensor or layer that should exist does not
  io = 3,             ///< the operating system refused a read or write (disk full, no permission)
  format = 4,         ///< bytes that break the rules of their file format
  shape = 5,          ///< shapes or widths that contradict each other
  unsupported = 6,    ///< well-formed, but not something this library computes
  no_memory = 7,      ///< an allocation failed
  communication = 8,  ///< another rank failed or could not be reached
  internal = 9,       ///< a fault of this library
};

/// The one exception type. The text is one line that names file, tensor, expected and found;
/// control characters that came out of files are escaped in it.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string text) : code_(code), text_(std::move(text)) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  ErrorCode code_;
  std::string text_;
};

// ---------------------------------------------------------------------------------------------
// Elements and views

/// Element types of activations and weights. bf16 is the upper half of an IEEE float; f16 is IEEE half.
enum class DType : std::uint8_t { f32 = 0, bf16 = 1, f16 = 2, f64 = 3 };

[[nodiscard]] constexpr std::int64_t size_of(DType t) noexcept { return t == DType::f64 ? 8 : t == DType::f32 ? 4 : 2; }
[[nodiscard]] constexpr const char* name_of(DType t) noexcept {
  constexpr const char* kNames[] = {"f32", "bf16", "f16", "f64"};
  return kNames[static_cast<int>(t)];
}

/// A matrix in somebody's memory: row r, column c is element r * stride + c of `data`.
/// `data` may be unaligned and may be null when rows or cols is 0. stride >= cols.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
};
struct MutableTensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
  operator TensorView() const noexcept { return {data, dtype, rows, cols, stride}; }
};
/// Views of dense float matrices [rows, cols], the commonest case.
[[nodiscard]] inline TensorView view_f32(const float* data, std::int64_t rows, std::int64_t cols) noexcept {
  return {data, DType::f32, rows, cols, cols};
}
[[nodiscard]] inline MutableTensorView view_f32(float* data, std::int64_t rows, std::int64_t cols) noexcept {
  return {data, DType::f32, rows, cols, cols};
}

/// A matrix that can be read piece by piece: caller memory, a file range, a sharded or strided view.
/// Weights reach the packed form only through this. Implement it to bring weights from elsewhere.
class TensorSource {
 public:
  TensorSource(std::string name, DType dtype, std::int64_t rows, std::int64_t cols)
      : name_(std::move(name)), dtype_(dtype), rows_(rows), cols_(cols) {}
  virtual ~TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }  ///< for error texts
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t cols() const noexcept { return cols_; }

  /// Copies rows [row0, row0+rows) × columns [col0, col0+cols), all inside the matrix, to `dst` as
  /// rows * cols elements of dtype(), row-major and dense. Called from several threads at once.
  /// Throws Error (io when bytes that were there at opening are gone).
  virtual void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const = 0;

 private:
  std::string name_;
  DType dtype_;
  std::int64_t rows_;
  std::int64_t cols_;
};

/// A source that reads the caller's memory, which must outlive it.
[[nodiscard]] std::shared_ptr<const TensorSource> view_source(std::string name, const TensorView& view);

/// All elements as floats, row-major: exact, but for f64, which is rounded to nearest. For a norm's weights, say.
[[nodiscard]] std::vector<float> read_floats(const TensorSource& source);

}  // namespace swiglu
#pragma GCC visibility pop
