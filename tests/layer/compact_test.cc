// Compact storage: the bits of plain storage whatever the weights are, the same weights back, and packed layers
// that run without packing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <random>

#include <fmt/format.h>

#include "base/cpu.h"
#include "layer/layers.h"
#include "layer/packed_bytes.h"
#include "layer/ranks.h"
#include "support/sanitized.h"
#include "swiglu/files.hpp"

namespace swiglu::testing {
namespace {

using Fill = std::function<std::uint16_t(std::mt19937&)>;

// Layers of bf16 patterns.
Layer bit_layer(std::int64_t dim, std::int64_t hidden, unsigned seed, const Fill& fill) {
  Layer layer(dim, hidden, DType::bf16, Data::normal, seed);
  std::mt19937 engine(seed);
  for (Matrix* matrix : {&layer.gate, &layer.up, &layer.down}) {
    for (std::size_t i = 0; i < matrix->bytes.size(); i += 2) {
      const std::uint16_t half = fill(engine);
      std::memcpy(matrix->bytes.data() + i, &half, 2);
    }
  }
  return layer;
}

std::uint16_t bf16(double x) {
  std::uint16_t half = 0;
  store_double(&half, DType::bf16, 0, x);
  return half;
}

struct Kind {
  const char* name;
  Fill fill;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"normal", [](std::mt19937& e) { return bf16(std::normal_distribution<>(0, 0.02)(e)); }},
      {"constant", [](std::mt19937&) { return std::uint16_t{0x3c55}; }},
      {"all zero", [](std::mt19937&) { return std::uint16_t{0}; }},
      {"all NaN", [](std::mt19937& e) { return static_cast<std::uint16_t>(0x7fc0 | (e() & 0x803f)); }},
      {"denormal", [](std::mt19937& e) { return static_cast<std::uint16_t>(e() & 0x807f); }},
      {"every high byte equally often", [](std::mt19937& e) { return static_cast<std::uint16_t>(e()); }},
      {"a few outliers",
       [](std::mt19937& e) {
         return e() % 4000 == 0 ? static_cast<std::uint16_t>(e()) : bf16(std::normal_distribution<>(0, 1)(e));
       }},
      {"panels of either kind",  // the sequence of weights changes its nature every few rows
       [n = std::uint64_t{0}](std::mt19937& e) mutable {
         return n++ / 3000 % 2 == 0 ? static_cast<std::uint16_t>(e()) : bf16(std::normal_distribution<>(0, 1)(e));
       }}};
  return all;
}

FeedForward with(const LayerSource& source, ThreadPool& pool, Storage storage, Isa isa = Isa::automatic,
                 Compute compute = Compute::automatic) {
  Options options;
  options.storage = storage;
  options.isa = isa;
  options.compute = compute;
  return {source, pool, options};
}

void expect_same(const Matrix& got, const Matrix& expected, const std::string& where) {
  ASSERT_EQ(got.bytes.size(), expected.bytes.size()) << where;
  ASSERT_EQ(std::memcmp(got.bytes.data(), expected.bytes.data(), got.bytes.size()), 0) << where;
}

void expect_same_weights(const LayerSource& got, const Layer& expected, const std::string& where) {
  const auto compare = [&](const TensorSource& source, const Matrix& matrix, const char* role) {
    ASSERT_EQ(source.dtype(), matrix.dtype) << where << role;
    std::vector<std::byte> all(matrix.bytes.size());
    source.read(0, matrix.rows, 0, matrix.cols, all.data());
    ASSERT_EQ(all, matrix.bytes) << where << role;
    // A part from the middle.
    const std::int64_t row = matrix.rows / 3, col = matrix.cols / 3, rows = matrix.rows - row, cols = matrix.cols - col;
    const std::int64_t item = size_of(matrix.dtype);
    std::vector<std::byte> part(static_cast<std::size_t>(rows * cols * item));
    source.read(row, rows, col, cols, part.data());
    for (std::int64_t r = 0; r < rows; ++r) {
      ASSERT_EQ(std::memcmp(part.data() + r * cols * item, matrix.bytes.data() + ((row + r) * matrix.cols + col) * item,
                            static_cast<std::size_t>(cols * item)),
                0)
          << where << role << " row " << r;
    }
  };
  compare(*got.gate, expected.gate, "gate");
  compare(*got.up, expected.up, "up");
  compare(*got.down, expected.down, "down");
}

LayerSource packed_source(const Layer& layer, std::shared_ptr<const PackedSource> packed) {
  LayerSource source = layer.source;
  source.gate = source.up = source.down = nullptr;
  source.packed = std::move(packed);
  return source;
}

TEST(Compact, gives_the_bits_of_plain_storage_for_any_weights) {
  ThreadPool one(1), two(2);
  for (const auto& [dim, hidden] : {std::pair<std::int64_t, std::int64_t>{64, 172}, {33, 515}, {1026, 99}}) {
    for (const Kind& kind : kinds()) {
      const Layer layer = bit_layer(dim, hidden, 7, kind.fill);
      const Matrix h = Matrix::filled(DType::f32, 31, dim, Values(Data::normal, 3), 1);
      for (const Compute compute : {Compute::bf16, Compute::f32}) {
        const Matrix expected = run(with(layer.source, one, Storage::plain, Isa::scalar, compute), h);
        for (const Isa isa : available_isas()) {
          for (ThreadPool* pool : {&one, &two}) {
            if (kSanitized && pool == &one) continue;
            const FeedForward ffn = with(layer.source, *pool, Storage::compact, isa, compute);
            const std::string where =
                fmt::format("{} {}x{} {} {} ", kind.name, dim, hidden, name_of(isa), name_of(compute));
            expect_same(run(ffn, h), expected, where);
            for (const std::int64_t rows : {1, 3, 14, 15}) {  // one tile, and several
              Matrix part(DType::f32, rows, dim);
              ffn.block({h.bytes.data(), DType::f32, rows, dim, dim}, part.view());
              ASSERT_EQ(std::memcmp(part.bytes.data(), expected.bytes.data(), part.bytes.size()), 0) << where << rows;
            }
          }
        }
      }
    }
  }
}

// Every shape of tiles, pieces and padding; weights that leave some patches.
TEST(Compact, gives_the_bits_of_plain_storage_for_any_shape) {
  ThreadPool pool(2);
  for (const std::int64_t dim : {1, 2, 3, 4, 15, 16, 17, 31, 33, 511, 1023, 1025, 2051}) {
    for (const std::int64_t hidden : {1, 2, 5, 16, 31, 32, 33, 63, 65, 511, 513, 1055}) {
      if (dim * hidden > 600000) continue;
      const Layer layer = bit_layer(dim, hidden, 11, kinds()[6].fill);
      const Matrix h = Matrix::filled(DType::f32, 17, dim, Values(Data::wild, 5), 1);
      for (const Compute compute : {Compute::bf16, Compute::f32}) {
        const Matrix expected = run(with(layer.source, pool, Storage::plain, Isa::automatic, compute), h);
        for (const Isa isa : available_isas()) {
          if (isa == Isa::scalar && dim * hidden > 40000) continue;
          expect_same(run(with(layer.source, pool, Storage::compact, isa, compute), h), expected,
                      fmt::format("{}x{} {} {}", dim, hidden, name_of(isa), name_of(compute)));
        }
      }
    }
  }
}

TEST(Compact, packed_layers_come_back_weight_for_weight_and_run_as_they_are) {
  ThreadPool pool(2);
  for (const auto& [dim, hidden] : {std::pair<std::int64_t, std::int64_t>{64, 172}, {33, 515}, {1, 1}, {2051, 17}}) {
    for (const Kind& kind : kinds()) {
      const Layer layer = bit_layer(dim, hidden, 13, kind.fill);
      const Matrix h = Matrix::filled(DType::f32, 3, dim, Values(Data::normal, 3), 1);
      for (const Storage storage : {Storage::plain, Storage::compact}) {
        const std::string where = fmt::format("{} {}x{} {} ", kind.name, dim, hidden, name_of(storage));
        const FeedForward ffn = with(layer.source, pool, storage);
        const LayerSource again = packed_source(layer, ffn.packed());
        expect_same_weights(unpack(again, pool.runner()), layer, where);
        const FeedForward loaded(again, pool);
        EXPECT_EQ(loaded.info().packed_bytes, ffn.info().packed_bytes) << where;
        EXPECT_EQ(loaded.info().gate_up.patches, ffn.info().gate_up.patches) << where;
        EXPECT_STREQ(loaded.info().down.storage, ffn.info().down.storage) << where;
        expect_same(run(loaded, h), run(ffn, h), where);
        // With other options it is packed anew: the same bits.
        expect_same(run(with(again, pool, Storage::plain), h), run(ffn, h), where);
        EXPECT_STREQ(with(again, pool, Storage::plain).info().gate_up.storage, "plain bf16");
        expect_same(run(with(again, pool, Storage::automatic, Isa::automatic, Compute::f32), h),
                    run(with(layer.source, pool, storage, Isa::automatic, Compute::f32), h), where);
      }
    }
  }
  for (const DType type : {DType::f32, DType::f16}) {
    const Layer layer(50, 70, type, Data::normal, 2);
    const FeedForward ffn(layer.source, pool);
    const LayerSource again = packed_source(layer, ffn.packed());
    expect_same_weights(unpack(again, pool.runner()), layer, name_of(type));
    const Matrix h = Matrix::filled(DType::f32, 3, 50, Values(Data::normal, 3), 1);
    expect_same(run(FeedForward(again, pool), h), run(ffn, h), name_of(type));
    expect_same(run(with(again, pool, Storage::compact), h), run(ffn, h), name_of(type));
  }
}

TEST(Compact, is_three_quarters_of_plain_and_says_what_it_did) {
  ThreadPool pool(2);
  const auto info = [&](const Fill& fill) {
    return with(bit_layer(512, 1024, 3, fill).source, pool, Storage::compact).info();
  };
  const auto normal = info(kinds()[0].fill);
  EXPECT_STREQ(normal.gate_up.storage, "compact bf16");
  EXPECT_EQ(normal.gate_up.panels, 64);
  EXPECT_EQ(normal.down.panels, 16);
  EXPECT_EQ(normal.gate_up.plain_panels + normal.down.plain_panels, 0);
  EXPECT_GT(normal.gate_up.patches, 0);
  EXPECT_LT(normal.gate_up.patches, 2 * 512 * 1024 / 1000);
  EXPECT_LT(normal.bits_per_weight, 12.05);
  const auto wild = info(kinds()[5].fill);
  EXPECT_EQ(wild.gate_up.plain_panels, wild.gate_up.panels);
  EXPECT_EQ(wild.gate_up.patches, 0);
  EXPECT_LT(wild.bits_per_weight, 16.05);
  const auto zero = info(kinds()[2].fill);
  EXPECT_EQ(zero.gate_up.patches, 0);
}

TEST(Compact, is_for_weights_packed_as_bf16) {
  ThreadPool pool(1);
  const Layer layer(32, 32, DType::f32, Data::normal, 1);
  EXPECT_STREQ(with(layer.source, pool, Storage::compact).info().gate_up.storage, "plain f32");
  EXPECT_STREQ(with(layer.source, pool, Storage::compact, Isa::automatic, Compute::bf16).info().down.storage,
               "compact bf16");
  EXPECT_STREQ(with(layer.source, pool, Storage::automatic).info().down.storage, "plain f32");
}

// Every byte of an index changed: refused, or a file that means something else but stays inside its bounds.
TEST(Compact, an_index_from_a_hostile_file_is_checked) {
  ThreadPool pool(1);
  const Layer layer = bit_layer(40, 70, 17, kinds()[6].fill);
  const FeedForward ffn = with(layer.source, pool, Storage::compact);
  const Matrix h = Matrix::filled(DType::f32, 15, 40, Values(Data::normal, 3), 1);
  int refused = 0;
  for (const auto part : {PackedSource::Part::gate_up, PackedSource::Part::down}) {
    const auto size = static_cast<std::size_t>(ffn.packed()->matrix(part).index_bytes);
    for (std::size_t at = 0; at < size; ++at) {
      for (const int change : {1, 0x80, 0xff}) {
        const auto bytes = std::make_shared<PackedBytes>(*ffn.packed());
        bytes->index[static_cast<std::size_t>(part)][at] ^= static_cast<std::byte>(change);
        bool bad = false;
        try {
          const FeedForward damaged(packed_source(layer, bytes), pool);
          run(damaged, h);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::format);
          ++refused;
          bad = true;
        }
        try {  // a rank checks what the others own as well
          run_on_ranks(packed_source(layer, bytes), pool, 3, h);
          EXPECT_FALSE(bad);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::format);
          EXPECT_TRUE(bad);
        }
      }
    }
  }
  EXPECT_GT(refused, 300);
}

// A source whose index cannot be held in memory.
struct Unholdable final : PackedSource {
  std::shared_ptr<const PackedSource> from;
  explicit Unholdable(std::shared_ptr<const PackedSource> from_in) : from(std::move(from_in)) {}
  [[nodiscard]] std::string name() const override { return "unholdable"; }
  [[nodiscard]] FfnConfig config() const override { return from->config(); }
  [[nodiscard]] Compute compute() const override { return from->compute(); }
  [[nodiscard]] Matrix matrix(Part part) const override { return from->matrix(part); }
  void read_index(Part, std::span<std::byte>) const override { throw std::bad_alloc(); }
  void read_payload(Part part, std::int64_t offset, std::span<std::byte> dst) const override {
    from->read_payload(part, offset, dst);
  }
  [[nodiscard]] std::shared_ptr<const std::byte> view_payload(Part) const override { return nullptr; }
};

TEST(Compact, a_packed_layer_that_memory_cannot_hold_is_an_error_that_names_it) {
  ThreadPool pool(1);
  const Layer layer = bit_layer(40, 70, 17, kinds()[6].fill);
  const FeedForward ffn = with(layer.source, pool, Storage::compact);
  LayerSource source = layer.source;
  source.packed = std::make_shared<const Unholdable>(ffn.packed());
  for (const bool unpacks : {false, true}) {
    try {
      unpacks ? static_cast<void>(unpack(source, pool.runner())) : static_cast<void>(FeedForward(source, pool));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::no_memory);
      EXPECT_EQ(error.text(), "unholdable, gate and up: it does not fit in memory");
    }
  }
}

TEST(Compact, sizes_that_do_not_fit_the_shape_are_refused) {
  ThreadPool pool(1);
  const Layer layer = bit_layer(40, 70, 17, kinds()[6].fill);
  const FeedForward ffn = with(layer.source, pool, Storage::compact);
  const auto refuse = [&](const std::function<void(PackedBytes&)>& change, ErrorCode code, const char* word) {
    const auto bytes = std::make_shared<PackedBytes>(*ffn.packed());
    change(*bytes);
    LayerSource source = packed_source(layer, bytes);
    source.config = bytes->shape;
    source.norm.clear();
    Meeting meeting;
    MeetingReducer rank(1, 3, meeting);
    Options share;
    share.reducer = &rank;
    const std::function<void()> ways[] = {[&] { static_cast<void>(FeedForward(source, pool)); },
                                          [&] { static_cast<void>(FeedForward(source, pool, share)); },
                                          [&] { static_cast<void>(unpack(source, pool.runner())); }};
    for (const auto& way : ways) {
      try {
        way();
        ADD_FAILURE() << word;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.text();
        EXPECT_NE(error.text().find(word), std::string::npos) << error.text();
      }
    }
  };
  const auto both = [](PackedBytes& b, auto change) {
    for (auto& matrix : b.matrices) change(matrix);
  };
  refuse([](PackedBytes& b) { b.payload[0].pop_back(); }, ErrorCode::format, "payload");
  refuse([](PackedBytes& b) { b.payload[1].resize(b.payload[1].size() + 64); }, ErrorCode::format, "payload");
  refuse([](PackedBytes& b) { b.payload[0].clear(); }, ErrorCode::format, "payload");
  refuse([](PackedBytes& b) { b.index[0].pop_back(); }, ErrorCode::format, "index");
  refuse([](PackedBytes& b) { b.index[0].resize(b.index[0].size() + 4); }, ErrorCode::format, "patches");
  refuse([](PackedBytes& b) { b.index[1].clear(); }, ErrorCode::format, "index");
  refuse([&](PackedBytes& b) { both(b, [](auto& m) { m.storage = Storage::plain; }); }, ErrorCode::format, "payload");
  refuse([&](PackedBytes& b) { both(b, [](auto& m) { m.dtype = DType::f32; }); }, ErrorCode::format, "compact");
  refuse([&](PackedBytes& b) { both(b, [](auto& m) { m.dtype = DType::f64; }); }, ErrorCode::format, "f64");
  refuse(
      [](PackedBytes& b) {
        b.shape.hidden = std::int64_t{1} << 40;
        b.shape.dim = 1;
      },
      ErrorCode::format, "payload");
  refuse(
      [](PackedBytes& b) {
        b.shape.hidden = 1;
        b.shape.dim = std::int64_t{1} << 40;
      },
      ErrorCode::format, "");
  refuse([](PackedBytes& b) { b.shape.hidden = -1; }, ErrorCode::shape, "hidden -1");
}

}  // namespace
}  // namespace swiglu::testing
