// How a stored tensor, or a part of one, becomes a matrix source; see layers.h. Knows shapes and encodings, no names.
#include <fmt/format.h>

#include "base/text.h"
#include "files/layers.h"

namespace swiglu::files {
namespace {

// Bytes from one row to the next.
std::int64_t row_bytes(const StoredTensor& tensor, std::int64_t stride) {
  if (tensor.encoding != nullptr) return stride / tensor.encoding->block * tensor.encoding->bytes;
  return tensor.dtype ? stride * size_of(*tensor.dtype) : 0;
}

StoredTensor part_from(const StoredTensor& whole, std::int64_t first) {
  StoredTensor part = whole;
  part.offset += static_cast<std::uint64_t>(first * row_bytes(whole, whole.strides.front()));
  return part;
}

class Maker {
 public:
  Maker(const std::string& name, const StoredTensor& tensor) : name_(name), tensor_(tensor) {}

  std::shared_ptr<const TensorSource> make(std::int64_t rows, std::int64_t cols, const StoredTensor* scale) const {
    if (!tensor_.dtype && tensor_.encoding == nullptr) {
      fail(ErrorCode::unsupported, "type F32, F16, BF16 or F64", escaped(tensor_.dtype_name));
    }
    check_shape(rows, cols);
    const bool eight_bit = tensor_.encoding != nullptr && tensor_.encoding->name.starts_with("F8_");
    if (eight_bit && scale == nullptr) {
      fail(ErrorCode::unsupported,
           fmt::format("a scale for each row of {} (weight_scale, or Meta's fp8_scales file)", tensor_.encoding->name),
           "none");
    }
    if (!eight_bit && scale != nullptr) {
      fail(ErrorCode::unsupported, "8-bit floats, as there is a scale for its rows", escaped(tensor_.dtype_name));
    }
    const std::int64_t row_stride = tensor_.shape.size() == 2 ? tensor_.strides.front() : cols;
    if (tensor_.encoding != nullptr) return decoded(rows, cols, row_stride, scale);
    FileMatrix matrix;
    matrix.file = tensor_.file;
    matrix.offset = tensor_.offset;
    matrix.dtype = *tensor_.dtype;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.col_stride = tensor_.strides.back();
    matrix.row_stride = row_stride;
    return make_source(name_, std::move(matrix));
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& expected, const std::string& found) const {
    throw Error(code, fmt::format("{}: tensor {}: expected {}, found {}", escaped(tensor_.file->name()), escaped(name_),
                                  expected, found));
  }

  void check_shape(std::int64_t rows, std::int64_t cols) const {
    std::vector<std::int64_t> wanted;
    if (rows != 1) wanted.push_back(rows);
    wanted.push_back(cols);
    if (tensor_.shape == wanted || (rows == 1 && tensor_.shape == std::vector<std::int64_t>{1, cols})) return;
    const bool transposed = rows != cols && tensor_.shape == std::vector<std::int64_t>{cols, rows};
    fail(ErrorCode::shape, "shape " + shape_text(wanted),
         shape_text(tensor_.shape) + (transposed ? ", transposed" : ""));
  }

  std::shared_ptr<const TensorSource> decoded(std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
                                              const StoredTensor* scale) const {
    if (cols > 1 && tensor_.strides.back() != 1) {
      fail(ErrorCode::unsupported, "neighbours of a row side by side",
           fmt::format("a stride of {} (save the tensor contiguous)", tensor_.strides.back()));
    }
    EncodedMatrix matrix;
    matrix.file = tensor_.file;
    matrix.offset = tensor_.offset;
    matrix.encoding = tensor_.encoding;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.row_bytes = row_bytes(tensor_, row_stride);
    auto values = make_decoded_source(name_, std::move(matrix));
    if (scale == nullptr) return values;
    if (!scale->dtype || (scale->shape != std::vector{rows} && scale->shape != std::vector<std::int64_t>{rows, 1})) {
      fail(ErrorCode::shape, fmt::format("a scale of shape [{}, 1] of floats", rows),
           fmt::format("{} of {}", shape_text(scale->shape), escaped(scale->dtype_name)));
    }
    FileMatrix factors;
    factors.file = scale->file;
    factors.offset = scale->offset;
    factors.dtype = *scale->dtype;
    factors.rows = rows;
    factors.cols = 1;
    factors.row_stride = scale->strides.front();
    return scale_rows(std::move(values), make_source(name_ + " (scale)", std::move(factors)));
  }

  const std::string& name_;
  const StoredTensor& tensor_;
};

}  // namespace

StoredTensor rows_of(const StoredTensor& matrix, std::int64_t first, std::int64_t count) {
  StoredTensor part = part_from(matrix, first);
  part.shape.front() = count;
  return part;
}

StoredTensor matrix_of(const StoredTensor& stack, std::int64_t index) {
  StoredTensor part = part_from(stack, index);
  part.shape.erase(part.shape.begin());
  part.strides.erase(part.strides.begin());
  return part;
}

std::shared_ptr<const TensorSource> matrix_source(const std::string& name, const StoredTensor& tensor,
                                                  std::int64_t rows, std::int64_t cols, const StoredTensor* scale) {
  return Maker(name, tensor).make(rows, cols, scale);
}

}  // namespace swiglu::files
