// The same bits for a token whatever the ISA, batch, position, stride, alignment, threads, runner and
// rank count: equality of every output byte, over a grid of shapes that crosses every border there is.
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <thread>

#include <fmt/format.h>

#include "layer/groups.h"
#include "layer/layers.h"
#include "layer/ranks.h"

namespace swiglu::testing {
namespace {

struct Shape {
  std::int64_t dim;
  std::int64_t hidden;
};

void expect_same_bytes(const Matrix& a, const Matrix& b, const std::string& what) {
  if (a.bytes == b.bytes) return;
  const auto wrong = std::mismatch(a.bytes.begin(), a.bytes.end(), b.bytes.begin());
  const auto at = (wrong.first - a.bytes.begin()) / size_of(a.dtype);
  ADD_FAILURE() << what << ": row " << at / a.cols << ", column " << at % a.cols << ": "
                << fmt::format("{:a} and {:a}", load_double(a.bytes.data(), a.dtype, at),
                               load_double(b.bytes.data(), b.dtype, at));
}

Matrix rows_of(const Matrix& m, std::int64_t row0, std::int64_t rows) {
  Matrix part(m.dtype, rows, m.cols);
  const std::int64_t bytes = m.cols * size_of(m.dtype);
  std::memcpy(part.bytes.data(), m.bytes.data() + row0 * bytes, static_cast<std::size_t>(rows * bytes));
  return part;
}

// Every ISA of this machine against the scalar tier.
void expect_isas_agree(Shape shape, DType weights, Compute compute, Data kind, std::int64_t tokens,
                       std::uint64_t seed) {
  const Layer layer(shape.dim, shape.hidden, weights, kind, seed);
  const Matrix h = Matrix::filled(DType::f32, tokens, shape.dim, Values(kind, seed + 99), 1.0);
  ThreadPool pool(2);
  const FeedForward scalar(layer.source, pool, {.compute = compute, .isa = Isa::scalar});
  for (const bool block : {true, false}) {
    const Matrix expected = run(scalar, h, block);
    for (const Isa isa : available_isas()) {
      if (isa == Isa::scalar) continue;
      const FeedForward fast(layer.source, pool, {.compute = compute, .isa = isa});
      expect_same_bytes(run(fast, h, block), expected,
                        fmt::format("{} x {} {} weights, {} compute, data {}, {} tokens, {}, {}", shape.dim,
                                    shape.hidden, name_of(weights), name_of(compute), static_cast<int>(kind), tokens,
                                    block ? "block" : "forward", name_of(isa)));
    }
  }
}

TEST(Invariance, every_isa_gives_the_scalar_bits_over_small_shapes) {
  std::uint64_t seed = 1;
  for (const std::int64_t dim : {1, 3, 17, 64, 172, 511, 1025, 2051}) {
    for (const std::int64_t hidden : {1, 15, 16, 172, 1025}) {
      if (dim * hidden > 600'000) continue;
      for (const Data kind : {Data::normal, Data::wild}) {
        expect_isas_agree({dim, hidden}, DType::f32, Compute::f32, kind, 3, ++seed);
        expect_isas_agree({dim, hidden}, DType::bf16, Compute::bf16, kind, 3, ++seed);
      }
    }
  }
}

TEST(Invariance, every_isa_gives_the_scalar_bits_for_denormals) {
  for (const Shape shape : {Shape{64, 172}, Shape{511, 33}, Shape{33, 1025}}) {
    expect_isas_agree(shape, DType::f32, Compute::f32, Data::denormal, 5, 11);
    expect_isas_agree(shape, DType::bf16, Compute::f32, Data::denormal, 5, 12);
    expect_isas_agree(shape, DType::bf16, Compute::bf16, Data::denormal, 5, 13);
  }
}

TEST(Invariance, every_isa_gives_the_scalar_bits_for_every_stored_type) {
  for (const DType weights : {DType::bf16, DType::f16, DType::f64}) {
    for (const Data kind : {Data::normal, Data::wild}) {
      expect_isas_agree({515, 1031}, weights, Compute::f32, kind, 2, 21);
      expect_isas_agree({65, 35}, weights, Compute::bf16, kind, 7, 22);
    }
  }
}

TEST(Invariance, every_isa_gives_the_scalar_bits_across_chunk_and_group_borders) {
  for (const Shape shape : {Shape{17, 10007}, Shape{4096, 16}, Shape{64, 14336}, Shape{3, 32771}}) {
    expect_isas_agree(shape, DType::f32, Compute::f32, Data::normal, 1, 31);
    expect_isas_agree(shape, DType::bf16, Compute::bf16, Data::normal, 2, 32);
  }
}

TEST(Invariance, Slow_every_isa_gives_the_scalar_bits_at_full_size) {
  for (const Shape shape : {Shape{4096, 14336}, Shape{2051, 10007}, Shape{4096, 1025}, Shape{1025, 32771}}) {
    expect_isas_agree(shape, DType::f32, Compute::f32, Data::normal, 1, 41);
    expect_isas_agree(shape, DType::bf16, Compute::bf16, Data::normal, 2, 42);
    expect_isas_agree(shape, DType::f16, Compute::f32, Data::wild, 1, 43);
  }
}

TEST(Invariance, a_token_does_not_depend_on_its_batch) {
  for (const Isa isa : available_isas()) {
    for (const Compute compute : {Compute::f32, Compute::bf16}) {
      const Layer layer(172, 1025, compute == Compute::f32 ? DType::f32 : DType::bf16, Data::normal, 5);
      ThreadPool pool(2);
      const FeedForward ffn(layer.source, pool, {.compute = compute, .isa = isa});
      const std::int64_t tokens = isa == Isa::scalar ? 40 : 300;  // 300 crosses the 256-row block
      const Matrix h = Matrix::filled(DType::f32, tokens, 172, Values(Data::wild, 6), 1.0);
      const Matrix all = run(ffn, h);
      for (const std::int64_t batch : {1, 2, 3, 5, 6, 7, 8, 13, 14, 15, 29, 37, 255, 257}) {
        if (batch > tokens) continue;
        for (std::int64_t row = 0; row + batch <= tokens; row += batch < 8 ? 41 : batch) {
          expect_same_bytes(run(ffn, rows_of(h, row, batch)), rows_of(all, row, batch),
                            fmt::format("{} {} rows {}+{}", name_of(isa), name_of(compute), row, batch));
        }
      }
    }
  }
}

TEST(Invariance, threads_and_runners_do_not_change_bits) {
  const Layer layer(511, 2051, DType::bf16, Data::heavy, 7);
  const Matrix h = Matrix::filled(DType::bf16, 33, 511, Values(Data::heavy, 8), 1.0);
  ThreadPool one(1);
  const Matrix expected = run(FeedForward(layer.source, one), h);
  for (const int threads : {2, 3, 8}) {
    ThreadPool pool(threads);
    expect_same_bytes(run(FeedForward(layer.source, pool), h), expected, fmt::format("{} threads", threads));
  }
  // A caller's runner that goes backwards, and one that starts a thread per task.
  const Runner backwards{[](void*, std::int64_t n, void (*task)(void*, std::int64_t), void* arg) {
                           for (std::int64_t i = n; i-- > 0;) task(arg, i);
                         },
                         nullptr};
  expect_same_bytes(run(FeedForward(layer.source, backwards), h), expected, "a backwards runner");
  const Runner eager{[](void*, std::int64_t n, void (*task)(void*, std::int64_t), void* arg) {
                       std::vector<std::thread> threads;
                       for (std::int64_t i = 0; i < n; ++i) threads.emplace_back(task, arg, i);
                       for (auto& thread : threads) thread.join();
                     },
                     nullptr};
  expect_same_bytes(run(FeedForward(layer.source, eager), h), expected, "a runner with a thread per task");
}

TEST(Invariance, strides_alignment_and_in_place_do_not_change_bits) {
  const Layer layer(67, 131, DType::f32, Data::normal, 9);
  ThreadPool pool(2);
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const FeedForward ffn(layer.source, pool);
    const Matrix h = Matrix::filled(type, 19, 67, Values(Data::wild, 10), 1.0);
    const Matrix expected = run(ffn, h, true, type);
    // Rows 5 elements apart, one byte off any alignment, in and out.
    const std::int64_t stride = 72;
    const std::int64_t item = size_of(type);
    std::vector<std::byte> in(static_cast<std::size_t>(19 * stride * item + 1), std::byte{0xff});
    std::vector<std::byte> out(in.size(), std::byte{0x5a});
    for (std::int64_t r = 0; r < 19; ++r) {
      std::memcpy(in.data() + 1 + r * stride * item, h.bytes.data() + r * 67 * item,
                  static_cast<std::size_t>(67 * item));
    }
    ffn.block({in.data() + 1, type, 19, 67, stride}, {out.data() + 1, type, 19, 67, stride});
    Matrix dense(type, 19, 67);
    for (std::int64_t r = 0; r < 19; ++r) {
      std::memcpy(dense.bytes.data() + r * 67 * item, out.data() + 1 + r * stride * item,
                  static_cast<std::size_t>(67 * item));
      for (std::int64_t gap = r * stride * item + 1 + 67 * item; r < 18 && gap < (r + 1) * stride * item + 1; ++gap) {
        ASSERT_EQ(out[static_cast<std::size_t>(gap)], std::byte{0x5a}) << "a gap between rows was written";
      }
    }
    expect_same_bytes(dense, expected, "strided and unaligned");
    ffn.block({in.data() + 1, type, 19, 67, stride}, {in.data() + 1, type, 19, 67, stride});
    for (std::int64_t r = 0; r < 19; ++r) {
      std::memcpy(dense.bytes.data() + r * 67 * item, in.data() + 1 + r * stride * item,
                  static_cast<std::size_t>(67 * item));
    }
    expect_same_bytes(dense, expected, "in place");
  }
}

// Rows that lie more than 2^31 elements apart, in memory that is mapped but hardly touched.
TEST(Invariance, strides_beyond_32_bits_do_not_change_bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 7;
  constexpr std::int64_t kRows = 3;
  constexpr std::size_t kBytes = static_cast<std::size_t>(kRows * kStride) * sizeof(float);
  void* mapping = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) GTEST_SKIP() << "cannot map 24 GiB of address space here";
  auto* far = static_cast<float*>(mapping);
  const Layer layer(67, 131, DType::f32, Data::normal, 18);
  ThreadPool pool(2);
  const FeedForward ffn(layer.source, pool);
  const Matrix h = Matrix::filled(DType::f32, kRows, 67, Values(Data::normal, 19), 1.0);
  for (std::int64_t r = 0; r < kRows; ++r) std::memcpy(far + r * kStride, h.bytes.data() + r * 67 * 4, 67 * 4);
  const MutableTensorView rows{far, DType::f32, kRows, 67, kStride};
  ffn.block(rows, rows);
  Matrix got(DType::f32, kRows, 67);
  for (std::int64_t r = 0; r < kRows; ++r) std::memcpy(got.bytes.data() + r * 67 * 4, far + r * kStride, 67 * 4);
  munmap(mapping, kBytes);
  expect_same_bytes(got, run(ffn, h), "rows 2^31 + 7 elements apart");
}

TEST(Invariance, callers_may_share_a_layer) {
  const Layer layer(64, 300, DType::f32, Data::normal, 12);
  ThreadPool pool(2);
  const FeedForward ffn(layer.source, pool);
  const Matrix h = Matrix::filled(DType::f32, 9, 64, Values(Data::normal, 13), 1.0);
  const Matrix expected = run(ffn, h);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int k = 0; k < 20; ++k) expect_same_bytes(run(ffn, h), expected, "concurrent caller");
    });
  }
  for (auto& caller : callers) caller.join();
}

TEST(Invariance, a_local_reducer_changes_no_bit) {
  const Layer layer(172, 777, DType::bf16, Data::normal, 14);
  ThreadPool pool(2);
  const Matrix h = Matrix::filled(DType::f32, 270, 172, Values(Data::normal, 15), 1.0);
  const auto reducer = make_local_reducer();
  for (const Compute compute : {Compute::f32, Compute::bf16}) {
    const Matrix expected = run(FeedForward(layer.source, pool, {.compute = compute}), h);
    expect_same_bytes(run(FeedForward(layer.source, pool, {.compute = compute, .reducer = reducer.get()}), h), expected,
                      "one-process reducer");
  }
}

// Does everything at the last moment, and spoils the sums afterwards.
class LateReducer final : public Reducer {
 public:
  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int size() const noexcept override { return 1; }
  void start(std::span<const PartialSum> parts, std::int64_t n, float* root, AddFloats) override {
    EXPECT_EQ(root_, nullptr);
    EXPECT_EQ(parts.size(), 1U);
    part_ = parts.front().floats, n_ = n, root_ = root;
    std::fill(root, root + n, 1e30F);
    ++reductions_;
  }
  void finish() override {
    std::copy(part_, part_ + n_, root_);
    std::fill(part_, part_ + n_, -1e30F);
    root_ = nullptr;
  }
  [[nodiscard]] int reductions() const { return reductions_; }

 private:
  float* part_ = nullptr;
  std::int64_t n_ = 0;
  float* root_ = nullptr;
  int reductions_ = 0;
};

TEST(Invariance, the_number_of_ranks_changes_no_bit) {
  ThreadPool pool(2);
  for (const std::int64_t hidden : {1, 15, 172, 1025, 10007}) {
    const Layer layer(33, hidden, DType::bf16, Data::normal, 16);
    const Matrix h = Matrix::filled(DType::f32, 20, 33, Values(Data::normal, 17), 1.0);
    for (const Compute compute : {Compute::f32, Compute::bf16}) {
      const Matrix expected = run(FeedForward(layer.source, pool, {.compute = compute}), h);
      for (const int ranks : {2, 3, 5, 7, 8, 16, 19}) {
        expect_same_bytes(run_on_ranks(layer.source, pool, ranks, h, {.compute = compute}), expected,
                          fmt::format("hidden {} on {} ranks", hidden, ranks));
      }
    }
  }
}

// Three blocks of rows, whose sums alternate between two places, with the output written over the input.
TEST(Invariance, reductions_that_overlap_with_the_next_block_change_no_bit) {
  ThreadPool pool(2);
  const Layer layer(33, 172, DType::bf16, Data::normal, 18);
  const Matrix h = Matrix::filled(DType::f32, 600, 33, Values(Data::normal, 19), 1.0);
  for (const Compute compute : {Compute::f32, Compute::bf16}) {
    const Matrix expected = run(FeedForward(layer.source, pool, {.compute = compute}), h);
    LateReducer reducer;
    const FeedForward ffn(layer.source, pool, {.compute = compute, .reducer = &reducer});
    Matrix in_place = h;
    ffn.block(in_place.view(), in_place.view());
    expect_same_bytes(in_place, expected, "reduced late");
    EXPECT_EQ(reducer.reductions(), 3);
  }
}

TEST(Groups, cover_the_hidden_units_in_whole_granules) {
  for (const std::int64_t hidden : {1, 15, 31, 32, 33, 172, 511, 512, 513, 1025, 10007, 14336, 53248}) {
    const auto borders = layer::group_borders(hidden);
    EXPECT_EQ(borders.front(), 0);
    EXPECT_EQ(borders.back(), hidden);
    for (std::size_t g = 0; g < 16; ++g) {
      EXPECT_LE(borders[g], borders[g + 1]);
      EXPECT_TRUE(borders[g] % 32 == 0 || borders[g] == hidden);
    }
  }
  EXPECT_EQ(layer::group_borders(14336)[1], 896);
}

TEST(Groups, ranks_own_at_most_three_complete_subtrees) {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    int next = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto trees = owned_subtrees(rank, ranks);
      EXPECT_LE(trees.size(), 3U) << rank << " of " << ranks;
      EXPECT_EQ(layer::owned_groups(rank, ranks).first, trees.empty() ? 0 : next);
      for (const Subtree& tree : trees) {
        EXPECT_EQ(tree.first_group, next);
        EXPECT_EQ(tree.first_group % tree.groups, 0);
        next += tree.groups;
      }
      EXPECT_EQ(layer::owned_groups(rank, ranks).last, trees.empty() ? 0 : next);
    }
    EXPECT_EQ(next, 16);
  }
}

}  // namespace
}  // namespace swiglu::testing
