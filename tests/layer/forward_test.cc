// The layer against the oracle, and the promises beside the numbers: arguments, memory, the caller's
// floating-point mode, no allocation in a call.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include <fmt/format.h>
#include <xmmintrin.h>

#include "layer/layers.h"
#include "layer/matmul.h"
#include "support/sanitized.h"
#include "swiglu/files.hpp"
#include "swiglu/reference.hpp"

namespace {
std::atomic<std::int64_t> allocations{0};  // counted by the operators below
}

// Every allocation of this program goes through here.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t align) {
  ++allocations;
  const auto step = static_cast<std::size_t>(align);
  if (void* memory = std::aligned_alloc(step, (bytes + step - 1) / step * step)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace swiglu::testing {
namespace {

std::vector<double> to_double(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// |fast - exact| <= bound for every element of every intermediate.
void expect_within_bounds(const Layer& layer, const Matrix& h, const Options& options) {
  ThreadPool pool(2);
  const FeedForward ffn(layer.source, pool, options);
  const std::vector<double> input = h.doubles();
  const reference::Trace exact = reference::run(layer.source, input, h.rows);
  const reference::Bound bound = reference::bound(layer.source, exact, input, h.rows, ffn.info().compute);
  const LayerTrace fast = ffn.trace(h.view());
  const std::vector<double> out = run(ffn, h).doubles();
  const auto check = [&](const char* what, const std::vector<double>& got, const std::vector<double>& want,
                         const std::vector<double>& limit) {
    ASSERT_EQ(got.size(), want.size()) << what;
    ASSERT_EQ(limit.size(), want.size()) << what;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::abs(got[i] - want[i]), limit[i])
          << what << " element " << i << " of " << layer.source.config.dim << " x " << layer.source.config.hidden
          << ", " << name_of(ffn.info().isa) << ", " << name_of(ffn.info().compute);
    }
  };
  check("norm", to_double(fast.norm), exact.norm, bound.norm);
  check("gate", to_double(fast.gate), exact.gate, bound.gate);
  check("up", to_double(fast.up), exact.up, bound.up);
  check("z", to_double(fast.z), exact.z, bound.z);
  check("down", to_double(fast.down), exact.down, bound.down);
  check("out", out, exact.out, bound.out);
}

TEST(Forward, every_isa_and_compute_type_stays_within_the_derived_bounds) {
  std::uint64_t seed = 100;
  for (const auto& [dim, hidden] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                    {3, 15},
                                    {17, 16},
                                    {64, 172},
                                    {172, 64},
                                    {511, 1025},
                                    {1025, 33},
                                    {2051, 17}}) {
    for (const Data kind : {Data::normal, Data::heavy, Data::denormal}) {
      if (kSanitized && kind != Data::normal) continue;  // the same loads and stores
      for (const Isa isa : available_isas()) {
        ++seed;
        const Matrix h = Matrix::filled(DType::f32, 3, dim, Values(kind, seed), 1.0);
        expect_within_bounds(Layer(dim, hidden, DType::f32, kind, seed), h, {.compute = Compute::f32, .isa = isa});
        expect_within_bounds(Layer(dim, hidden, DType::bf16, kind, seed), h, {.compute = Compute::f32, .isa = isa});
        expect_within_bounds(Layer(dim, hidden, DType::f16, kind, seed), h, {.compute = Compute::f32, .isa = isa});
        expect_within_bounds(Layer(dim, hidden, DType::bf16, kind, seed), h, {.compute = Compute::bf16, .isa = isa});
        expect_within_bounds(Layer(dim, hidden, DType::f64, kind, seed), h, {.compute = Compute::bf16, .isa = isa});
        const Layer::Types mixed{DType::bf16, DType::f32, DType::f16};
        expect_within_bounds(Layer(dim, hidden, mixed, kind, seed), h, {.isa = isa});
      }
    }
  }
}

// The figure for hidden 14336: plain summation would give 2.8e-6.
TEST(Forward, f32_error_at_the_8b_shape_is_below_1_2e_6) {
  const FfnConfig config = kSanitized ? FfnConfig{512, 1792, 1e-5} : FfnConfig{4096, 14336, 1e-5};
  const LayerSource source = random_layer(config, DType::f32, 3);
  ThreadPool pool(0);
  const FeedForward ffn(source, pool);
  const Matrix x = Matrix::filled(DType::f32, 2, config.dim, Values(Data::normal, 4), 1.0);
  std::vector<std::int64_t> outputs;
  for (std::int64_t d = 0; d < config.dim; d += 13) outputs.push_back(d);
  const Runner runner = pool.runner();
  const reference::Trace exact = reference::run(source, x.doubles(), 2, {.outputs = outputs, .runner = &runner});
  const LayerTrace fast = ffn.trace(x.view());
  std::vector<double> got;
  for (std::int64_t t = 0; t < 2; ++t) {
    for (const std::int64_t d : outputs)
      got.push_back(static_cast<double>(fast.down[static_cast<std::size_t>(t * config.dim + d)]));
  }
  const double error = relative_error(got, exact.down);
  RecordProperty("relative_error", fmt::format("{:.3g}", error));
  EXPECT_LE(error, 1.2e-6);
  EXPECT_GT(error, 1e-8);
}

// K = 65536 ones: an accumulator in bf16 would stick at 256.
TEST(Matmul, sums_65536_ones_in_bf16_exactly) {
  constexpr std::int64_t kOnes = 65536;
  const Matrix ones = Matrix::filled(DType::f64, 32, kOnes, Values(Data::normal, 1), 0.0);
  Matrix gate(DType::bf16, 32, kOnes);
  for (std::int64_t i = 0; i < 32 * kOnes; ++i) store_double(gate.bytes.data(), DType::bf16, i, 1.0);
  const auto source = view_source("ones", std::as_const(gate).view());
  ThreadPool pool(2);
  const Runner runner = pool.runner();
  for (const Isa isa : available_isas()) {
    const auto* table = kernels::find_table(name_of(isa));
    for (const auto product : {kernels::Product::bf16_bf16, kernels::Product::f32_bf16}) {
      const bool bf16 = product == kernels::Product::bf16_bf16;
      const bool pairs = table->product[static_cast<int>(product)].pairs;
      const layer::Plan plan{table, bf16 ? FloatMode::kFlush : FloatMode::kExact, bf16, pairs, 2, &runner};
      const layer::Tiling tiling(1, table->product[0].max_rows);
      Buffer memory(kOnes * 4);
      const layer::Tiles tiles{memory.data(), kOnes * layer::bytes_per_k(pairs)};
      std::vector<float> row(static_cast<std::size_t>(kOnes), 1.0F);
      layer::InputPhase{view_f32(row.data(), 1, kOnes), 0, nullptr, 0, 0, tiling, tiles}.run(plan);
      const auto borders = layer::group_borders(kOnes);
      const auto packed = weights::pack_down(*source, {borders.begin(), borders.end()}, DType::bf16,
                                             {*table, runner, Storage::compact});
      std::vector<float> out(32);
      layer::DownPhase{packed, product, owned_subtrees(0, 1),        32,     tiling,
                       tiles,  {},      view_f32(out.data(), 1, 32), nullptr}
          .run(plan);
      for (const float value : out) EXPECT_EQ(value, 65536.0F) << name_of(isa);
    }
  }
}

// bf16 compute rounds twice on the way (n and z), Meta's code eight times.
TEST(Forward, bf16_compute_is_more_accurate_than_metas_rounding) {
  ThreadPool pool(2);
  for (const auto& [dim, hidden] : {std::pair<std::int64_t, std::int64_t>{64, 172}, {256, 688}}) {
    for (const Data kind : {Data::normal, Data::heavy}) {
      double ours = 0;
      double metas = 0;
      for (std::uint64_t seed = 0; seed < (kSanitized ? 3 : 20); ++seed) {
        const Layer layer(dim, hidden, DType::bf16, Data::normal, 1000 + seed);
        const Matrix h = Matrix::filled(DType::bf16, 64, dim, Values(kind, 2000 + seed), 1.0);
        const std::vector<double> input = h.doubles();
        const auto exact = reference::run(layer.source, input, 64);
        const auto meta = reference::run(layer.source, input, 64, {.numerics = reference::Numerics::meta});
        const LayerTrace fast = FeedForward(layer.source, pool, {.compute = Compute::bf16}).trace(h.view());
        ours += std::pow(relative_error(to_double(fast.down), exact.down), 2);
        metas += std::pow(relative_error(meta.down, exact.down), 2);
      }
      EXPECT_LT(std::sqrt(ours / metas), 0.9) << dim << " x " << hidden;
      EXPECT_GT(std::sqrt(ours / metas), 0.2) << "suspiciously good";
    }
  }
}

TEST(Forward, calls_with_a_workspace_do_not_allocate) {
  const Layer layer(172, 511, DType::bf16, Data::normal, 30);
  ThreadPool pool(2);
  const auto reducer = make_local_reducer();
  for (Reducer* r : {static_cast<Reducer*>(nullptr), reducer.get()}) {
    const FeedForward ffn(layer.source, pool, {.reducer = r});
    const Matrix h = Matrix::filled(DType::bf16, 300, 172, Values(Data::normal, 31), 1.0);
    Matrix out(DType::f32, 300, 172);
    const Buffer memory(static_cast<std::int64_t>(ffn.workspace_bytes(300)));
    const std::span<std::byte> workspace(memory.data(), ffn.workspace_bytes(300));
    ffn.block(h.view(), out.view(), workspace);
    const std::int64_t before = allocations;
    ffn.block(h.view(), out.view(), workspace);
    ffn.forward(h.view(), out.view(), workspace);
    EXPECT_EQ(allocations - before, 0);
  }
}

TEST(Forward, the_callers_floating_point_mode_is_untouched) {
  const Layer layer(64, 172, DType::bf16, Data::denormal, 32);
  const Runner inline_runner{[](void*, std::int64_t n, void (*task)(void*, std::int64_t), void* arg) {
                               for (std::int64_t i = 0; i < n; ++i) task(arg, i);
                             },
                             nullptr};
  const Matrix h = Matrix::filled(DType::f32, 3, 64, Values(Data::normal, 33), 1.0);
  for (const Compute compute : {Compute::f32, Compute::bf16}) {
    const FeedForward ffn(layer.source, inline_runner, {.compute = compute});
    const Matrix expected = run(ffn, h);
    const unsigned saved = _mm_getcsr();
    for (const unsigned mode : {0x1F80U, 0x9FC0U, 0x7F80U, 0x1FBFU}) {  // also round-to-zero, and set flags
      _mm_setcsr(mode);
      const Matrix got = run(ffn, h);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(saved);
      EXPECT_EQ(after, mode);
      EXPECT_EQ(got.bytes, expected.bytes) << "the caller's mode changed the result";
    }
  }
}

// Other libraries' threads may be lent to us in a mode of their own, and get them back in it.
TEST(Forward, the_workers_floating_point_modes_are_untouched) {
  static constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  const Runner runner = pool.runner();
  const unsigned saved = _mm_getcsr();
  // As many tasks as threads, none of which ends before all have begun: one on each thread.
  const auto on_each = [&](const std::function<void(std::int64_t)>& work) {
    struct Shared {
      const std::function<void(std::int64_t)>& work;
      std::atomic<int> begun{0};
    } shared{work};
    runner.run(
        runner.ctx, kThreads,
        [](void* arg, std::int64_t i) {
          auto& all = *static_cast<Shared*>(arg);
          ++all.begun;
          while (all.begun < kThreads) std::this_thread::yield();
          all.work(i);
        },
        &shared);
  };
  std::mutex lock;
  std::map<std::thread::id, unsigned> modes;
  on_each([&](std::int64_t i) {
    const unsigned mode = i == 0 ? 0x7F80U : i == 1 ? 0x9FC0U : 0x5F80U;
    _mm_setcsr(mode);
    const std::lock_guard guard(lock);
    modes[std::this_thread::get_id()] = mode;
  });
  for (const Compute compute : {Compute::f32, Compute::bf16}) {
    const Layer layer(64, 172, DType::bf16, Data::denormal, 32);
    const FeedForward ffn(layer.source, pool, {.compute = compute});
    const Matrix h = Matrix::filled(DType::f32, 40, 64, Values(Data::normal, 33), 1.0);
    for (int call = 0; call < 20; ++call) run(ffn, h);
  }
  std::map<std::thread::id, unsigned> after;
  on_each([&](std::int64_t) {
    const unsigned mode = _mm_getcsr() & ~0x3FU;  // without the flags: this test itself computes
    const std::lock_guard guard(lock);
    after[std::this_thread::get_id()] = mode;
  });
  _mm_setcsr(saved);
  EXPECT_EQ(after, modes);
  EXPECT_EQ(after.size(), std::size_t{kThreads});
}

std::int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      std::int64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

TEST(Forward, an_8b_layer_loads_within_its_packed_size_and_64_mib) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory and shadows the rest";
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const std::int64_t before = peak_resident_bytes();
  ThreadPool pool(2);
  Options options;
  options.storage = Storage::plain;
  const FeedForward ffn(random_layer({4096, 14336, 1e-5}, DType::bf16, 1), pool, options);
  const std::int64_t peak = peak_resident_bytes() - before;
  EXPECT_EQ(ffn.info().packed_bytes, std::int64_t{3} * 4096 * 14336 * 2);
  EXPECT_LE(peak, ffn.info().packed_bytes + (std::int64_t{64} << 20));
  EXPECT_GE(peak, ffn.info().packed_bytes / 2) << "the measurement is broken";
}

TEST(Forward, zero_tokens_touch_nothing) {
  const Layer layer(17, 33, DType::f32, Data::normal, 34);
  ThreadPool pool(2);
  const FeedForward ffn(layer.source, pool);
  EXPECT_EQ(ffn.workspace_bytes(0), 0U);
  ffn.block({nullptr, DType::f32, 0, 17, 17}, {nullptr, DType::f32, 0, 17, 17}, {});
  ffn.forward({nullptr, DType::f32, 0, 17, 17}, {nullptr, DType::f32, 0, 17, 17});
}

TEST(Forward, workspace_is_bounded) {
  const Layer layer(64, 172, DType::f32, Data::normal, 35);
  ThreadPool pool(1);
  const FeedForward ffn(layer.source, pool);
  EXPECT_EQ(ffn.workspace_bytes(256), ffn.workspace_bytes(std::int64_t{1} << 40));
  EXPECT_GE(ffn.workspace_bytes(2), ffn.workspace_bytes(1));
}

template <class Call>
void expect_error(ErrorCode code, const std::string& part, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "expected an error about " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.text();
    EXPECT_NE(error.text().find(part), std::string::npos) << error.text();
  }
}

TEST(Forward, refuses_arguments_that_do_not_fit_before_writing) {
  const Layer layer(16, 32, DType::f32, Data::normal, 36);
  ThreadPool pool(1);
  const FeedForward ffn(layer.source, pool);
  std::vector<float> h(64, 1.0F);
  std::vector<float> out(64, 7.0F);
  const std::vector<float> untouched = out;
  const TensorView good = view_f32(h.data(), 2, 16);
  const MutableTensorView good_out = view_f32(out.data(), 2, 16);
  expect_error(ErrorCode::shape, "expected dim 16", [&] { ffn.block(view_f32(h.data(), 2, 15), good_out); });
  expect_error(ErrorCode::shape, "2 rows, the output 3", [&] { ffn.block(good, view_f32(out.data(), 3, 16)); });
  expect_error(ErrorCode::usage, "stride 8", [&] { ffn.block({h.data(), DType::f32, 2, 16, 8}, good_out); });
  expect_error(ErrorCode::usage, "null", [&] { ffn.block({nullptr, DType::f32, 2, 16, 16}, good_out); });
  expect_error(ErrorCode::usage, "overlap", [&] { ffn.block(good, view_f32(h.data() + 4, 2, 16)); });
  expect_error(ErrorCode::usage, "workspace", [&] { ffn.block(good, good_out, {}); });
  EXPECT_EQ(out, untouched);
  LayerSource bare = layer.source;
  bare.norm.clear();
  const FeedForward no_norm(bare, pool);
  expect_error(ErrorCode::usage, "without a norm vector", [&] { no_norm.block(good, good_out); });
  no_norm.forward(good, good_out);
}

TEST(Forward, refuses_sources_that_contradict_the_config) {
  const Layer layer(16, 32, DType::f32, Data::normal, 37);
  ThreadPool pool(1);
  const auto with = [&](auto change) {
    LayerSource source = layer.source;
    change(source);
    return [source, &pool] { const FeedForward ffn(source, pool); };
  };
  expect_error(ErrorCode::shape, "expected 33 x 16, found 32 x 16", with([](LayerSource& s) { s.config.hidden = 33; }));
  expect_error(ErrorCode::shape, "down", with([&](LayerSource& s) { s.down = s.gate; }));
  expect_error(ErrorCode::usage, "missing", with([](LayerSource& s) { s.up = nullptr; }));
  expect_error(ErrorCode::shape, "norm", with([](LayerSource& s) { s.norm.resize(3); }));
  expect_error(ErrorCode::usage, "eps", with([](LayerSource& s) { s.config.eps = -1; }));
  expect_error(ErrorCode::shape, "dim 0", with([](LayerSource& s) { s.config.dim = 0; }));
}

TEST(Forward, a_source_that_fails_while_packing_fails_the_construction) {
  class Failing final : public TensorSource {
   public:
    Failing() : TensorSource("bad.weights", DType::f32, 4096, 64) {}
    void read(std::int64_t row0, std::int64_t, std::int64_t, std::int64_t, void*) const override {
      if (row0 > 1000) throw Error(ErrorCode::io, "bad.weights: gone");
    }
  };
  const Layer layer(64, 4096, DType::f32, Data::normal, 38);
  LayerSource source = layer.source;
  source.up = std::make_shared<Failing>();
  ThreadPool pool(2);
  expect_error(ErrorCode::io, "gone", [&] { const FeedForward ffn(source, pool); });
}

TEST(Forward, inf_and_nan_follow_ieee_and_stay_in_their_rows) {
  const Layer layer(64, 172, DType::f32, Data::normal, 39);
  ThreadPool pool(2);
  const FeedForward ffn(layer.source, pool);
  Matrix h = Matrix::filled(DType::f32, 3, 64, Values(Data::normal, 40), 1.0);
  const Matrix clean = run(ffn, h);
  store_double(h.bytes.data(), DType::f32, 64 + 5, std::numeric_limits<double>::quiet_NaN());
  const Matrix out = run(ffn, h);
  for (std::int64_t c = 0; c < 64; ++c) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, out.bytes.data() + (64 + c) * 4, 4);
    EXPECT_EQ(bits, 0x7fc00000U);
  }
  EXPECT_TRUE(std::equal(out.bytes.begin(), out.bytes.begin() + 256, clean.bytes.begin()));
  EXPECT_TRUE(std::equal(out.bytes.end() - 256, out.bytes.end(), clean.bytes.end() - 256));
}

}  // namespace
}  // namespace swiglu::testing
