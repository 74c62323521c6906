// Every row of every kernel table against the scalar table: one test per (ISA, product, tile rows),
// over step counts that cross chunk borders, with denormals and signed zeros among the operands.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/cpu.h"
#include "base/dtype.h"
#include "kernels/kernel.h"

namespace swiglu::testing {
namespace {

using kernels::kPanel;
using kernels::Product;

constexpr const char* kProductNames[] = {"f32_f32",   "f32_bf16",    "f32_f16",     "bf16_bf16",
                                         "bf16_wide", "f32_compact", "bf16_compact"};

float random_value(std::mt19937& engine) {
  std::normal_distribution<float> normal;
  switch (engine() % 40) {
    case 0:
      return -0.0F;
    case 1:
      return 1e-40F;
    case 2:
      return 0.0F;
    case 3:
      return -3e-39F;
    default:
      return normal(engine);
  }
}

// One tile's operands in one table's layout: the same values whatever the layout.
struct Operands {
  std::vector<std::byte> activations;
  std::vector<std::byte> weights;
  std::vector<std::byte> plain;  // of compact weights, as what follows
  std::vector<unsigned char> table{0x3f, 0xbf, 0x3e, 0xbe, 0x40, 0xc0, 0x3d, 0xbd,
                                   0x00, 0x80, 0x7f, 0xff, 0x01, 0x02, 0x03, 0x04};
  std::vector<kernels::Patch> patches;

  // From the scalar encoder; about one word in forty is patched.
  void make_compact(std::int64_t steps) {
    plain = weights;
    patches.resize(static_cast<std::size_t>(steps * kPanel * 2));
    weights.assign(static_cast<std::size_t>(kernels::piece_bytes(Product::bf16_compact, steps)) + 64, std::byte{0x5a});
    const auto found = kernels::kScalar.encode({plain.data(), steps, table.data(), weights.data(), patches.data()});
    patches.resize(static_cast<std::size_t>(found));
    std::sort(patches.begin(), patches.end());
    patches.push_back(kernels::kNoPatch);
  }
  // For a call that begins at `step`.
  [[nodiscard]] kernels::Codes codes(std::int64_t step) const {
    if (patches.empty()) return {};
    const auto* first = patches.data();
    while (kernels::step_of(*first) < step) ++first;
    return {table.data(), first, step};
  }
};

bool is_bf16_compute(Product product) {
  return product == Product::bf16_bf16 || product == Product::bf16_wide || product == Product::bf16_compact;
}

// The same sums from plain weights.
Product plain_of(Product product) {
  return product == Product::f32_compact    ? Product::f32_bf16
         : product == Product::bf16_compact ? Product::bf16_bf16
                                            : product;
}

Operands operands(const kernels::ProductKernels& kernels, Product product, int rows, std::int64_t steps) {
  std::mt19937 engine(static_cast<unsigned>(steps * 100 + rows));
  const bool bf16_weights = plain_of(product) == Product::f32_bf16 || plain_of(product) == Product::bf16_bf16;
  const std::int64_t k = kernels::k_per_step(product) * steps;
  Operands made;
  made.activations.resize(static_cast<std::size_t>(k * rows * (kernels.pairs ? 2 : 4) + 64));
  made.weights.resize(static_cast<std::size_t>(steps * kernels::step_bytes(plain_of(product)) + 64));
  for (std::int64_t i = 0; i < k; ++i) {
    for (int r = 0; r < rows; ++r) {
      float x = random_value(engine);
      const std::uint16_t half = bf16_from_float(x);
      if (is_bf16_compute(product)) x = float_from_bf16(half);
      if (kernels.pairs) {
        std::memcpy(made.activations.data() + (i / 2 * rows + r) * 4 + i % 2 * 2, &half, 2);
      } else {
        std::memcpy(made.activations.data() + (i * rows + r) * 4, &x, 4);
      }
    }
    for (int n = 0; n < kPanel; ++n) {
      const float w = random_value(engine);
      const std::uint16_t half = product == Product::f32_f16 ? f16_from_float(w) : bf16_from_float(w);
      if (product == Product::f32_f32) std::memcpy(made.weights.data() + (i * kPanel + n) * 4, &w, 4);
      if (product == Product::f32_f16) std::memcpy(made.weights.data() + (i * kPanel + n) * 2, &half, 2);
      if (product == Product::bf16_wide) {  // the odd k first
        const float wide = float_from_bf16(half);
        std::memcpy(made.weights.data() + ((i ^ 1) * kPanel + n) * 4, &wide, 4);
      }
      if (bf16_weights) std::memcpy(made.weights.data() + (i / 2 * kPanel + n) * 4 + i % 2 * 2, &half, 2);
    }
  }
  if (kernels::is_compact(product)) made.make_compact(steps);
  return made;
}

class TableRow : public ::testing::Test {
 public:
  TableRow(const kernels::ProductKernels& fast, Product product, int rows)
      : fast_(fast), product_(product), rows_(rows) {}
  void TestBody() override {
    const auto& fast = fast_;
    const auto& scalar = kernels::kScalar.product[static_cast<int>(plain_of(product_))];
    for (const std::int64_t steps : {0, 1, 3, 255, 256, 257, 511, 512, 513, 1025}) {
      const Operands mine = operands(fast, product_, rows_, steps);
      std::vector<float> got(static_cast<std::size_t>(rows_ * kPanel), 1.0F);
      std::vector<float> expected(got.size(), 2.0F);
      const FloatMode mode(is_bf16_compute(product_) ? FloatMode::kFlush : FloatMode::kExact);
      kernels::Ahead ahead;  // fetches whatever is there
      ahead.at = mine.weights.data();
      ahead.bytes = static_cast<std::int64_t>(mine.weights.size());
      ahead.done = steps % 7;
      ahead.every = 1 + rows_ % 3;
      ahead.pages_log2 = rows_ % 4;
      ahead.near_by = rows_ % 2 * 512;
      fast.matmul[rows_](
          {mine.activations.data(), mine.weights.data(), got.data(), steps, false, ahead, nullptr, mine.codes(0)});
      const Operands plain = operands(scalar, plain_of(product_), rows_, steps);
      for (int r = 0; r < rows_; ++r) expect_row(scalar, plain, steps, r, expected);
      ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * 4), 0) << steps << " steps";
    }
  }

 private:
  // The scalar kernel on this row alone: also says that a row does not depend on its tile.
  void expect_row(const kernels::ProductKernels& scalar, const Operands& all, std::int64_t steps, int row,
                  std::vector<float>& expected) const {
    const std::int64_t k = static_cast<std::int64_t>(all.activations.size() - 64) / (4 * rows_);
    std::vector<float> one(static_cast<std::size_t>(k) + 1);
    for (std::int64_t i = 0; i < k; ++i) {
      std::memcpy(&one[static_cast<std::size_t>(i)], all.activations.data() + (i * rows_ + row) * 4, 4);
    }
    scalar.matmul[1]({one.data(), all.weights.data(), expected.data() + row * kPanel, steps, false, {}});
  }
  const kernels::ProductKernels& fast_;
  Product product_;
  int rows_;
};

// One test per row of the tables this machine can run, and per row that only other processors use.
const int kRegistered = [] {
  int count = 0;
  const auto add = [&count](const std::string& isa, const kernels::ProductKernels& kernels, Product product) {
    for (int rows = 1; rows <= kernels.max_rows; ++rows, ++count) {
      const std::string name = fmt::format("{}_{}x{}x{}", kProductNames[static_cast<int>(product)], rows, kPanel,
                                           kernels::k_per_step(product));
      ::testing::RegisterTest(
          ("Kernels_" + isa).c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
          [&kernels, product, rows]() -> TableRow* { return new TableRow(kernels, product, rows); });
    }
  };
  for (const Isa isa : available_isas()) {
    const auto& table = *kernels::find_table(name_of(isa));
    for (int p = 0; p < kernels::kProducts; ++p) add(name_of(isa), table.product[p], static_cast<Product>(p));
    if (isa != Isa::avx512 && isa != Isa::avx512bf16) continue;
    const bool dot = isa == Isa::avx512bf16;
    const auto& base = dot ? kernels::kAvx512Bf16 : kernels::kAvx512;
    const auto& vbmi = dot ? kernels::kAvx512Bf16Vbmi : kernels::kAvx512Vbmi;
    const bool has_vbmi = __builtin_cpu_supports("avx512vbmi") != 0;
    for (const Product p : {Product::f32_compact, Product::bf16_compact}) {
      const auto& row = p == Product::f32_compact ? vbmi.f32_compact : vbmi.bf16_compact;
      if (has_vbmi) add(std::string(name_of(isa)) + "_vbmi", row, p);
      add(std::string(name_of(isa)) + "_base", base.product[static_cast<int>(p)], p);
    }
  }
  return count;
}();

// What a first tile leaves for the others: the same sums from widened weights, also when chunks come in
// calls of their own.
TEST(KernelTable, widened_weights_give_the_same_bits) {
  for (const Isa isa : available_isas()) {
    for (int p = 0; p < kernels::kProducts; ++p) {
      const auto product = static_cast<Product>(p);
      const auto* table = kernels::find_table(name_of(isa))->product;
      const Product wide = table[p].wide;
      if (wide == product) continue;
      const std::int64_t chunk = kernels::chunk_steps(product);
      const FloatMode mode(is_bf16_compute(product) ? FloatMode::kFlush : FloatMode::kExact);
      for (int rows = 1; rows <= table[p].max_rows; ++rows) {
        for (const std::int64_t steps : {std::int64_t{1}, std::int64_t{3}, chunk, chunk + 1, 2 * chunk + 5}) {
          const Operands mine = operands(table[p], product, rows, steps);
          const std::int64_t a_step = kernels::k_per_step(product) * rows * (table[p].pairs ? 2 : 4);
          const std::int64_t wide_steps = kernels::k_per_step(product) / kernels::k_per_step(wide);
          std::vector<float> expected(static_cast<std::size_t>(rows * kPanel)), first(expected), others(expected);
          table[p].matmul[rows]({mine.activations.data(),
                                 mine.weights.data(),
                                 expected.data(),
                                 steps,
                                 false,
                                 {},
                                 nullptr,
                                 mine.codes(0)});
          std::vector<float> widened(static_cast<std::size_t>(chunk * 2 * kPanel), -1.0F);
          for (std::int64_t at = 0; at < steps; at += chunk) {
            const std::int64_t n = std::min(chunk, steps - at);
            const auto* a = mine.activations.data() + at * a_step;
            const auto* w = mine.weights.data() + at * kernels::step_bytes(product);
            table[p].matmul[rows]({a, w, first.data(), n, at > 0, {}, widened.data(), mine.codes(at)});
            table[static_cast<int>(wide)].matmul[rows]({a, widened.data(), others.data(), n * wide_steps, at > 0, {}});
          }
          const std::size_t bytes = expected.size() * 4;
          ASSERT_EQ(std::memcmp(first.data(), expected.data(), bytes), 0) << name_of(isa) << " " << p << " " << rows;
          ASSERT_EQ(std::memcmp(others.data(), expected.data(), bytes), 0) << name_of(isa) << " " << p << " " << rows;
        }
      }
    }
  }
}

TEST(KernelTable, has_rows_for_every_isa) { EXPECT_GE(kRegistered, 16); }

TEST(KernelTable, finds_tables_by_the_names_of_isas) {
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512bf16}) {
    EXPECT_NE(kernels::find_table(name_of(isa)), nullptr) << name_of(isa);
  }
  EXPECT_EQ(kernels::find_table("automatic"), nullptr);
}

TEST(KernelTable, probes_run_and_have_names_of_their_own) {
  const std::vector<float> memory(64 * 1024 / 4 + 16, 0.5F);
  const auto* aligned =
      reinterpret_cast<const float*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64);
  for (const Isa isa : available_isas()) {
    const kernels::Probes& probes = kernels::find_table(name_of(isa))->probes;
    std::vector<std::string> names;
    for (const kernels::ReadProbe& probe : probes.read) {
      EXPECT_GT(probe.run(aligned, 64 * 1024), 0) << probe.name;  // a sum of loads, so it read something
      EXPECT_EQ(std::count(names.begin(), names.end(), probe.name), 0) << probe.name;
      names.emplace_back(probe.name);
    }
    const bool vnni = __builtin_cpu_supports("avx512vnni") != 0;
    for (const auto* probe : {&probes.fma, &probes.bf16_dot, &probes.int8_dot, &probes.int8_vnni}) {
      EXPECT_EQ(probe->run == nullptr, probe->operations_per_round == 0) << name_of(isa);
      if (probe->run == nullptr || (probe == &probes.int8_vnni && !vnni)) continue;
      EXPECT_TRUE(std::isfinite(probe->run(100))) << name_of(isa);
    }
    EXPECT_NE(probes.fma.run, nullptr);
    EXPECT_EQ(probes.bf16_dot.run != nullptr, isa == Isa::avx512bf16);
  }
}

// row_in and row_out on every pair of types and on lengths around the vector widths.
TEST(KernelTable, row_conversions_have_the_scalar_bits) {
  std::mt19937 engine(5);
  for (const Isa isa : available_isas()) {
    const auto& table = *kernels::find_table(name_of(isa));
    for (const auto out_type : {kernels::Elem::f32, kernels::Elem::bf16, kernels::Elem::f16, kernels::Elem::f64}) {
      for (const auto in_type : {kernels::Elem::f32, kernels::Elem::bf16, kernels::Elem::f16, kernels::Elem::f64}) {
        for (const std::int64_t n : {1, 7, 8, 9, 15, 16, 17, 31, 32, 100}) {
          std::vector<std::byte> residual(static_cast<std::size_t>(n) * 8);
          std::vector<float> sum(static_cast<std::size_t>(n));
          for (auto& byte : residual) byte = static_cast<std::byte>(engine());  // any bit pattern
          for (auto& value : sum) value = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
          for (const bool flush : {false, true}) {
            std::vector<std::byte> got(static_cast<std::size_t>(n) * 8);
            std::vector<std::byte> expected(got.size());
            const FloatMode mode(flush ? FloatMode::kFlush : FloatMode::kExact);
            table.row_out({sum.data(), residual.data(), got.data(), n, in_type, out_type, flush});
            kernels::kScalar.row_out({sum.data(), residual.data(), expected.data(), n, in_type, out_type, flush});
            ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0)
                << name_of(isa) << " in " << static_cast<int>(in_type) << " out " << static_cast<int>(out_type) << " n "
                << n;
          }
        }
      }
    }
  }
}

// Any bit pattern, any distance between rows, any address; nothing but the steps asked for is written.
TEST(KernelTable, transposes_copy_32_rows_to_steps_of_32) {
  std::mt19937 engine(9);
  for (const Isa isa : available_isas()) {
    const auto& table = *kernels::find_table(name_of(isa));
    for (const std::int64_t unit : {2, 4}) {
      for (const std::int64_t steps : {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 100}) {
        for (const std::int64_t gap : {0, 1, 62, 4096}) {
          const std::int64_t row_bytes = steps * unit + gap;
          std::vector<std::byte> rows(static_cast<std::size_t>(kPanel * row_bytes + 1));
          for (auto& byte : rows) byte = static_cast<std::byte>(engine());
          const auto size = static_cast<std::size_t>(steps * unit * kPanel);
          std::vector<std::byte> memory(size + 128, std::byte{0x5a});
          auto* dst = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
          const std::byte* from = rows.data() + gap % 2;
          (unit == 2 ? table.interleave16 : table.interleave32)(dst, from, row_bytes, steps);
          for (std::int64_t s = 0; s < steps; ++s) {
            for (std::int64_t r = 0; r < kPanel; ++r) {
              ASSERT_EQ(std::memcmp(dst + (s * kPanel + r) * unit, from + r * row_bytes + s * unit,
                                    static_cast<std::size_t>(unit)),
                        0)
                  << name_of(isa) << " unit " << unit << " steps " << steps << " step " << s << " row " << r;
            }
          }
          ASSERT_EQ(dst[size], std::byte{0x5a}) << name_of(isa) << " unit " << unit << " steps " << steps;
        }
      }
    }
  }
}

// Every bf16 pattern in every place of a block comes back, on every tier and with tables of any bytes, and
// encoders agree byte for byte.
TEST(KernelTable, encoders_agree_and_lose_nothing) {
  std::mt19937 engine(3);
  constexpr std::int64_t kSteps = 2 * 128 + 1;  // an odd piece
  for (std::uint32_t start = 0; start < 65536; start += 8191) {
    Operands block;
    for (auto& byte : block.table) byte = 0;
    for (std::size_t i = 0; i < 16; ++i) block.table[i] = static_cast<unsigned char>(start / 256 + i * 11);
    block.weights.resize(kSteps * 128);
    for (std::int64_t i = 0; i < kSteps * 64; ++i) {
      const auto half =
          static_cast<std::uint16_t>(start + static_cast<std::uint32_t>(i) * (start % 2 == 0 ? 1U : engine()));
      std::memcpy(block.weights.data() + i * 2, &half, 2);
    }
    Operands scalar = block;
    scalar.make_compact(kSteps);
    for (const Isa isa : available_isas()) {
      const auto& table = *kernels::find_table(name_of(isa));
      std::vector<std::byte> blocks(scalar.weights.size(), std::byte{0x5a});
      std::vector<kernels::Patch> patches(kSteps * 64 + 1, kernels::kNoPatch);
      const auto found =
          table.encode({block.weights.data(), kSteps, block.table.data(), blocks.data(), patches.data()});
      std::sort(patches.begin(), patches.begin() + found);
      patches.resize(static_cast<std::size_t>(found) + 1);
      ASSERT_EQ(patches, scalar.patches) << name_of(isa);
      ASSERT_EQ(blocks, scalar.weights) << name_of(isa);
    }
    // Decoded here, from the description in kernel.h.
    std::size_t patch = 0;
    for (std::int64_t i = 0; i < kSteps * 64; ++i) {
      const std::int64_t step = i / 64, line = i % 64 / 32, word = i % 32;
      const std::int64_t at = word / 8 * 16 + line * 8 + word % 8;
      const auto* in = reinterpret_cast<const unsigned char*>(scalar.weights.data()) + step / 2 * 192;
      unsigned char high = scalar.table[in[128 + at] >> (4 * (step % 2)) & 15];
      if ((scalar.patches[patch] >> 8) == static_cast<std::uint32_t>(2 * i + 1)) {
        high = static_cast<unsigned char>(scalar.patches[patch++]);
      }
      std::uint16_t half = 0;
      std::memcpy(&half, block.weights.data() + i * 2, 2);
      ASSERT_EQ(half, static_cast<std::uint16_t>(in[step % 2 * 64 + at] | high << 8)) << "weight " << i;
    }
    ASSERT_EQ(scalar.patches[patch], kernels::kNoPatch);
  }
}

// Through the decoders of the kernels themselves, as what a first tile leaves for the others.
TEST(KernelTable, every_bf16_pattern_in_every_place_of_a_block_comes_back) {
  constexpr std::int64_t kSteps = 512, kWeights = kSteps * 64, kPlaces = 128;
  std::vector<float> activations(kSteps * 2 + 64), sum(kPanel), widened(kWeights + 64);
  for (std::uint32_t turn = 0; turn < 2 * kPlaces; ++turn) {  // half the patterns, moved on by a place each time
    Operands block;
    block.weights.resize(kWeights * 2);
    const auto pattern = [turn](std::int64_t i) {
      return static_cast<std::uint16_t>(turn / kPlaces * kWeights + (i + turn) % kWeights);
    };
    for (std::int64_t i = 0; i < kWeights; ++i) {
      const std::uint16_t half = pattern(i);
      std::memcpy(block.weights.data() + i * 2, &half, 2);
    }
    block.make_compact(kSteps);
    for (const Isa isa : available_isas()) {
      const auto& table = *kernels::find_table(name_of(isa));
      std::vector<std::byte> blocks(block.weights.size(), std::byte{0x5a});
      std::vector<kernels::Patch> patches(block.patches.size() + 1);
      table.encode({block.plain.data(), kSteps, block.table.data(), blocks.data(), patches.data()});
      ASSERT_EQ(blocks, block.weights) << name_of(isa);
      const auto& row = table.product[static_cast<int>(Product::bf16_compact)];
      const FloatMode mode(FloatMode::kFlush);
      row.matmul[1]({activations.data(), blocks.data(), sum.data(), kSteps, false, {}, widened.data(), block.codes(0)});
      for (std::int64_t i = 0; i < kWeights; ++i) {
        const std::int64_t step = i / 64, lane = i % 64 / 2, odd = i % 2;
        std::uint16_t half = 0;  // plain pairs, or floats, the odd k first
        const std::int64_t at = row.pairs ? i * 2 : (step * 2 * kPanel + (1 - odd) * kPanel + lane) * 4 + 2;
        std::memcpy(&half, reinterpret_cast<const std::byte*>(widened.data()) + at, 2);
        ASSERT_EQ(half, pattern(i)) << name_of(isa) << " turn " << turn << " weight " << i;
      }
    }
  }
}

}  // namespace
}  // namespace swiglu::testing
