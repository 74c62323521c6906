// Hashes of rows and columns; see compare_hashes.h. They are sums of one well-mixed number per element, so the order
// of reading does not matter and a column's sum can be gathered row by row.
#include "compare_hashes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>

#include "compare_slices.h"
#include "compare_values.h"

namespace swiglu::cli {

namespace {

std::uint64_t mixed(double value, std::uint64_t place) {
  // All NaNs are one, and so are both zeros.
  const std::uint64_t bits = std::isnan(value) ? 0x7FF8000000000000U : std::bit_cast<std::uint64_t>(value + 0.0);
  std::uint64_t x = bits + (place + 1) * 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

Hashes hash_matrix(const TensorSource& source, DType type, ThreadPool& pool) {
  const auto cols = static_cast<std::size_t>(source.cols());
  Hashes hashes{std::vector<std::uint64_t>(static_cast<std::size_t>(source.rows())), std::vector<std::uint64_t>(cols)};
  std::mutex mutex;
  for_slices(source.rows(), source.cols(), pool, [&](const Slice& slice) {
    const auto values = read_doubles(source, slice);
    std::vector<std::uint64_t> sums(cols);
    for (std::int64_t r = 0; r < slice.rows; ++r) {
      const double* row = values.data() + r * source.cols();
      const auto number = static_cast<std::size_t>(slice.row + r);
      std::uint64_t sum = 0;
      for (std::size_t c = 0; c < cols; ++c) {
        const double value = round_to(type, row[c]);
        sum += mixed(value, c);
        sums[c] += mixed(value, number);
      }
      hashes.rows[number] = sum;
    }
    const std::lock_guard lock(mutex);
    for (std::size_t c = 0; c < cols; ++c) hashes.cols[c] += sums[c];
  });
  return hashes;
}

std::vector<std::uint64_t> hash_some_rows(const TensorSource& source, DType type) {
  constexpr std::int64_t kRows = 4;
  std::vector<std::uint64_t> hashes;
  for (std::int64_t i = 0; i < std::min(kRows, source.rows()); ++i) {
    const auto values = read_doubles(source, {0, i * source.rows() / kRows, 1});
    std::uint64_t sum = 0;
    for (std::size_t c = 0; c < values.size(); ++c) sum += mixed(round_to(type, values[c]), c);
    hashes.push_back(sum);
  }
  return hashes;
}

}  // namespace swiglu::cli
