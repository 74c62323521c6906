// Hashes of rows and columns; see compare_hashes.h. They are sums of well-mixed values times a key for their place, so
// the order of reading does not matter and a column's sum can be gathered row by row.
#include "compare_hashes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>

#include "compare_values.h"
#include "slices.h"

namespace swiglu::cli {

namespace {

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

/// All NaNs are one, and so are both zeros.
std::uint64_t mixed(double value) {
  return mixed(std::isnan(value) ? 0x7FF8000000000000U : std::bit_cast<std::uint64_t>(value + 0.0));
}

/// What a value at this place of its row or column is multiplied by: odd, so that nothing of it is lost.
std::uint64_t key_of(std::int64_t place) {
  return mixed((static_cast<std::uint64_t>(place) + 1) * 0x9E3779B97F4A7C15U) | 1U;
}

std::vector<std::uint64_t> keys_of(std::int64_t places) {
  std::vector<std::uint64_t> keys;
  keys.reserve(static_cast<std::size_t>(places));
  for (std::int64_t i = 0; i < places; ++i) keys.push_back(key_of(i));
  return keys;
}

/// Elements of a slice, rounded.
std::vector<double> read_rounded(const TensorSource& source, const Slice& slice, DType type) {
  auto values = read_doubles(source, slice);
  if (source.dtype() == type) return values;
  for (double& x : values) x = round_to(type, x);
  return values;
}

}  // namespace

Hashes hash_matrix(const TensorSource& source, DType type, ThreadPool& pool) {
  const auto cols = static_cast<std::size_t>(source.cols());
  Hashes hashes{std::vector<std::uint64_t>(static_cast<std::size_t>(source.rows())), std::vector<std::uint64_t>(cols)};
  const std::vector<std::uint64_t> keys = keys_of(source.cols());
  std::mutex mutex;
  for_slices(source.rows(), source.cols(), pool, [&](const Slice& slice) {
    const auto values = read_rounded(source, slice, type);
    std::vector<std::uint64_t> sums(cols);
    for (std::int64_t r = 0; r < slice.rows; ++r) {
      const double* row = values.data() + r * source.cols();
      const std::uint64_t row_key = key_of(slice.row + r);
      std::uint64_t sum = 0;
      for (std::size_t c = 0; c < cols; ++c) {
        const std::uint64_t value = mixed(row[c]);
        sum += value * keys[c];
        sums[c] += value * row_key;
      }
      hashes.rows[static_cast<std::size_t>(slice.row + r)] = sum;
    }
    const std::lock_guard lock(mutex);
    for (std::size_t c = 0; c < cols; ++c) hashes.cols[c] += sums[c];
  });
  return hashes;
}

std::vector<std::uint64_t> hash_some_rows(const TensorSource& source, DType type) {
  constexpr std::int64_t kRows = 4;
  const std::vector<std::uint64_t> keys = keys_of(source.cols());
  std::vector<std::uint64_t> hashes;
  for (std::int64_t i = 0; i < std::min(kRows, source.rows()); ++i) {
    const auto values = read_rounded(source, {0, i * source.rows() / kRows, 1}, type);
    std::uint64_t sum = 0;
    for (std::size_t c = 0; c < values.size(); ++c) sum += mixed(values[c]) * keys[c];
    hashes.push_back(sum);
  }
  return hashes;
}

}  // namespace swiglu::cli
