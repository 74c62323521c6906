// Packed weights byte by byte, from every type and with every kernel table: against the layout of
// kernels/kernel.h written out one element at a time.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "base/cpu.h"
#include "base/dtype.h"
#include "kernels/kernel.h"
#include "weights/weights.h"

namespace swiglu::testing {
namespace {

using kernels::kLanes;
using kernels::kPanel;

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

// Elements of any bit pattern, signalling NaNs included; every fourth an ordinary number.
struct Stored {
  DType type;
  std::int64_t rows;
  std::int64_t cols;
  std::vector<std::byte> bytes;
  Stored(DType type_in, std::int64_t rows_in, std::int64_t cols_in, unsigned seed)
      : type(type_in), rows(rows_in), cols(cols_in), bytes(static_cast<std::size_t>(rows * cols * size_of(type))) {
    std::mt19937 engine(seed);
    std::normal_distribution<double> normal;
    for (auto& byte : bytes) byte = static_cast<std::byte>(engine());
    for (std::int64_t i = 0; i < rows * cols; i += 4) store_double(bytes.data(), type, i, normal(engine));
  }
  [[nodiscard]] std::shared_ptr<const TensorSource> source() const {
    return view_source("weights", {bytes.data(), type, rows, cols, cols});
  }
};

// The one element at (row, k), +0 beyond the matrix; the low bits of what is returned.
std::uint32_t element(const Stored& matrix, std::int64_t row, std::int64_t k, std::int64_t end, DType packed) {
  if (row >= matrix.rows || k >= end) return 0;
  const std::int64_t at = row * matrix.cols + k;
  std::uint32_t bits = 0;
  if (matrix.type == packed) {
    std::memcpy(&bits, matrix.bytes.data() + at * size_of(packed), static_cast<std::size_t>(size_of(packed)));
  } else {
    store_double(&bits, packed, 0, load_double(matrix.bytes.data(), matrix.type, at));
  }
  return bits;
}

// One piece of a panel whose first 16 outputs are the rows from row[0] of matrix[0], and so on.
void expect_piece(const std::byte* piece, const Stored* const (&matrix)[2], const std::int64_t (&row)[2],
                  std::int64_t begin, std::int64_t end, DType packed) {
  const std::int64_t per_step = packed == DType::bf16 ? 2 : 1;
  const auto item = static_cast<std::size_t>(size_of(packed));
  for (std::int64_t k = begin; k < (end - begin + per_step - 1) / per_step * per_step + begin; ++k) {
    for (int lane = 0; lane < kPanel; ++lane) {
      const std::int64_t step = (k - begin) / per_step;
      const std::int64_t at = (step * kPanel + lane) * per_step + (k - begin) % per_step;
      std::uint32_t got = 0;
      std::memcpy(&got, piece + at * static_cast<std::int64_t>(item), item);
      const int half = lane / kLanes;
      ASSERT_EQ(got, element(*matrix[half], row[half] + lane % kLanes, k, end, packed))
          << "k " << k << " lane " << lane;
    }
  }
}

std::vector<DType> packed_types(DType type) {
  if (type == DType::f16) return {DType::f16, DType::f32, DType::bf16};
  return {DType::f32, DType::bf16};
}

// One panel and several, whole and not; k odd, shorter than a vector, and longer than a block of columns.
TEST(Pack, every_table_lays_gate_and_up_out_alike) {
  ThreadPool pool(2);
  const Runner runner = pool.runner();
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {16, 3}, {37, 16}, {50, 67}, {20, 4609}}) {
    for (const DType type : kTypes) {
      const Stored gate(type, rows, cols, 1), up(type, rows, cols, 2);
      for (const DType packed_type : packed_types(type)) {
        for (const Isa isa : available_isas()) {
          const auto packed = weights::pack_gate_up(*gate.source(), *up.source(), 0, rows, packed_type,
                                                    {*kernels::find_table(name_of(isa)), runner});
          ASSERT_EQ(packed.panels(), (rows + kLanes - 1) / kLanes);
          for (std::int64_t p = 0; p < packed.panels(); ++p) {
            SCOPED_TRACE(std::string(name_of(isa)) + " " + name_of(type) + " panel " + std::to_string(p));
            expect_piece(packed.piece(p, 0), {&gate, &up}, {p * kLanes, p * kLanes}, 0, cols, packed_type);
            ASSERT_FALSE(HasFatalFailure());
          }
        }
      }
    }
  }
}

TEST(Pack, gate_and_up_may_have_different_types) {
  ThreadPool pool(1);
  const Runner runner = pool.runner();
  for (const DType first : kTypes) {
    for (const DType second : kTypes) {
      const Stored gate(first, 21, 35, 3), up(second, 21, 35, 4);
      for (const DType packed_type : {DType::f32, DType::bf16}) {
        const auto packed =
            weights::pack_gate_up(*gate.source(), *up.source(), 0, 21, packed_type, {kernels::kScalar, runner});
        for (std::int64_t p = 0; p < 2; ++p) {
          SCOPED_TRACE(std::string(name_of(first)) + " " + name_of(second));
          expect_piece(packed.piece(p, 0), {&gate, &up}, {p * kLanes, p * kLanes}, 0, 35, packed_type);
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
}

// Pieces restart where groups do, wherever the blocks of columns that are read end; some are empty.
TEST(Pack, every_table_lays_down_out_alike) {
  ThreadPool pool(2);
  const Runner runner = pool.runner();
  const std::vector<std::vector<std::int64_t>> cuts = {
      {0, 0, 5}, {0, 32, 32, 64, 95}, {64, 96, 160, 161}, {0, 2048, 4064, 4128, 9001}};
  for (const std::int64_t rows : {1, 16, 31, 49}) {
    for (const auto& borders : cuts) {
      for (const DType type : kTypes) {
        const Stored down(type, rows, borders.back(), 5);
        for (const DType packed_type : packed_types(type)) {
          for (const Isa isa : available_isas()) {
            const auto packed =
                weights::pack_down(*down.source(), borders, packed_type, {*kernels::find_table(name_of(isa)), runner});
            for (std::int64_t p = 0; p < packed.panels(); ++p) {
              for (std::int64_t i = 0; i < packed.pieces(); ++i) {
                SCOPED_TRACE(std::string(name_of(isa)) + " " + name_of(type) + " piece " + std::to_string(i));
                const auto at = static_cast<std::size_t>(i);
                expect_piece(packed.piece(p, i), {&down, &down}, {p * kPanel, p * kPanel + kLanes}, borders[at],
                             borders[at + 1], packed_type);
                ASSERT_FALSE(HasFatalFailure());
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace swiglu::testing
