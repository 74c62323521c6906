// The matmul of every ISA, written once over its vector type V. Included inside the anonymous namespace
// of an ISA's translation unit, after V.
//
// One accumulator per output, k ascending, always fma; chunks restart at +0 and are added in order to a
// running sum that starts at +0. Which outputs share a pass is free; the order within one is not.

template <Product P>
constexpr bool kPairs = V::kHasDot && (P == Product::bf16_bf16 || P == Product::bf16_compact);
// k per step of floats, or one dword of a pair.
template <Product P>
constexpr int kActivationsPerStep = k_per_step(P) == 2 && !kPairs<P> ? 2 : 1;
template <Product P>
constexpr int kWeightBytes = P == Product::f32_f16 ? 2 : 4;
template <Product P>
constexpr std::int64_t kStepBytes = step_bytes(P);

// What a product's weights are once nothing is left to convert: floats, or plain pairs.
template <Product P>
constexpr Product kWide =
    P == Product::bf16_compact && kPairs<P>                                        ? Product::bf16_bf16
    : (P == Product::bf16_bf16 || P == Product::bf16_compact) && !kPairs<P>        ? Product::bf16_wide
    : P == Product::f32_bf16 || P == Product::f32_f16 || P == Product::f32_compact ? Product::f32_f32
                                                                                   : P;

// With all registers taken by sums, loads of the next k must not move up: they would push sums out.
inline __attribute__((always_inline)) void keep_order() { asm volatile("" ::: "memory"); }

template <int M, int N>
inline __attribute__((always_inline)) void clear(V::F (&acc)[M][N]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) acc[m][n] = V::zero();
  }
}

// Adds a chunk's sums to the running ones; vector n's lanes begin at place(n).
template <int M, int N, class Place>
inline __attribute__((always_inline)) void add_to_sums(const V::F (&acc)[M][N], float* sum, bool first,
                                                       const Place& place) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      float* at = sum + m * kPanel + place(n);
      V::store(at, V::add(first ? V::zero() : V::load(at), acc[m][n]));
    }
  }
}

// acc[m][n] += two k of bf16 weights, one after the other: widen(odd, n) gives vector n of either.
template <bool OddFirst, int M, int N, class Widen, class Place>
inline __attribute__((always_inline)) void multiply_halves(V::F (&acc)[M][N], const char* a, const Widen& widen,
                                                           [[maybe_unused]] float* widened, const Place& place) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const bool odd = (half == 0) == OddFirst;
    V::F w[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) w[n] = widen(odd, n);
    if (widened != nullptr) {
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) V::store(widened + half * kPanel + place(n), w[n]);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const V::F x = V::broadcast(a + (odd ? M + m : m) * 4);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[m][n] = V::fma(x, w[n], acc[m][n]);
    }
    if constexpr (M * N >= V::kCrowded) keep_order();
  }
}

// acc[m][n] += one step of the panel's vectors first … first + N - 1.
template <Product P, int M, int N>
inline __attribute__((always_inline)) void multiply_step(V::F (&acc)[M][N], const char* a, const char* b,
                                                         [[maybe_unused]] float* widened) {
  const auto lane = [&b](int n) { return b + n * V::kWidth * kWeightBytes<P>; };
  if constexpr (P == Product::bf16_wide) {
    // A loop whose length the compiler does not see: with all registers taken by sums, g++ would unroll it,
    // interleave the two k and push sums out.
    std::int64_t end = -M * 4;
    asm("" : "+r"(end));
    for (std::int64_t k = M * 4; k != end; k -= M * 4, b += kPanel * 4) {
      const char* x = a + k;
      V::F w[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) w[n] = V::load(lane(n));
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const V::F xm = V::broadcast(x + m * 4);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) acc[m][n] = V::fma(xm, w[n], acc[m][n]);
      }
    }
  } else if constexpr (kPairs<P>) {
    V::F w[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) w[n] = V::load(lane(n));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const V::F x = V::broadcast(a + m * 4);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[m][n] = V::dot_bf16(acc[m][n], x, w[n]);
    }
  } else if constexpr (kActivationsPerStep<P> == 2) {
    multiply_halves<P == Product::bf16_bf16>(
        acc, a, [&](bool odd, int n) { return odd ? V::odd_bf16(lane(n)) : V::even_bf16(lane(n)); }, widened,
        [](int n) { return n * V::kWidth; });
  } else {
    V::F w[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) w[n] = P == Product::f32_f16 ? V::from_f16(lane(n)) : V::load(lane(n));
    if constexpr (kWide<P> != P) {
      if (widened != nullptr) {
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) V::store(widened + n * V::kWidth, w[n]);
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const V::F x = V::broadcast(a + m * 4);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[m][n] = V::fma(x, w[n], acc[m][n]);
    }
  }
}

// Walks the lines of an Ahead. Page g of a run is entered at its line 8 * g, so that no two pages begin at
// the same time.
struct Walk {
  static constexpr std::int64_t kPage = 4096;
  static constexpr std::int64_t kPair = 128;
  const char* run;     // the run's first byte
  const char* end;     // of the region
  std::int64_t size;   // bytes of a run
  std::int64_t page;   // offset of the page whose turn it is
  std::int64_t line;   // offset in each page
  std::int64_t due;    // the step that fetches next; -1: none
  std::int64_t every;

  explicit Walk(const Ahead& ahead)
      : run(static_cast<const char*>(ahead.at) + (ahead.done >> (5 + ahead.pages_log2)) * (kPage << ahead.pages_log2)),
        end(static_cast<const char*>(ahead.at) + ahead.bytes), size(kPage << ahead.pages_log2),
        page((ahead.done & ((1 << ahead.pages_log2) - 1)) * kPage), line((ahead.done >> ahead.pages_log2) % 32 * kPair),
        due(ahead.bytes == 0 ? -1 : 0), every(ahead.every) {
    if (end - run < size) {  // the rest, in order
      const std::int64_t pairs = ahead.done & ((32 << ahead.pages_log2) - 1);
      run += pairs / 32 * kPage;
      page = 0;
      line = pairs % 32 * kPair;
      size = kPage;
    }
  }
  __attribute__((always_inline)) void step(std::int64_t s) {
    if (s == due) fetch();
  }
  __attribute__((always_inline)) void fetch() {
    due += every;
    const char* at = run + page + ((line + page / 8) & (kPage - 1));
    __builtin_prefetch(at, 0, 2);
    __builtin_prefetch(at + kPair / 2, 0, 2);
    page += kPage;
    if (page < size) return;
    page = 0;
    line += kPair;
    if (line < kPage) return;
    line = 0;
    run += size;
    if (end - run < size) size = kPage;
  }
};

// Tiles of a few rows and more come from L2, whose own prefetcher leaves 3 to 7 % to gain.
constexpr std::int64_t kNearActivations = 512;

// One chunk for N vectors of the panel, from step `begin` to `end`, added to the running sum (or to +0).
template <Product P, int M, int N>
inline __attribute__((always_inline)) void add_chunk(const char* a, const char* b, std::int64_t begin, std::int64_t end,
                                                     float* sum, bool first, Walk& walk, std::int64_t near_by,
                                                     float* widened) {
  V::F acc[M][N];
  clear(acc);
  for (std::int64_t s = begin; s < end; ++s) {
    walk.step(s);
    if (near_by != 0) {
#pragma GCC unroll 4
      for (int at = 0; at < N * V::kWidth * kWeightBytes<P>; at += 64) __builtin_prefetch(b + near_by + at, 0, 3);
    }
    if constexpr (M >= 4) {
#pragma GCC unroll 4
      for (int at = 0; at < kActivationsPerStep<P> * M * 4; at += 64)
        __builtin_prefetch(a + kNearActivations + at, 0, 3);
    }
    multiply_step<P, M, N>(acc, a, b, widened);
    if (widened != nullptr) widened += kActivationsPerStep<P> * kPanel;
    a += kActivationsPerStep<P> * M * 4;
    b += kStepBytes<P>;
  }
  add_to_sums(acc, sum, first, [](int n) { return n * V::kWidth; });
}

#include "kernels/compact.inl"

template <Product P, int M>
void matmul(const Tile& tile) {
  constexpr int kVectors = kPanel / V::kWidth;
  constexpr int kAtOnce = V::vectors_at_once(M);
  const auto* a = static_cast<const char*>(tile.activations);
  const auto* b = static_cast<const char*>(tile.weights);
  float* widened = kWide<P> == P ? nullptr : tile.widened;
  constexpr int kPasses = kVectors / kAtOnce;
  Walk walk(tile.ahead);
  walk.every *= kPasses;
  [[maybe_unused]] Patches patches(tile.codes);
  if (tile.steps == 0 && !tile.resume) {
    for (int i = 0; i < M * kPanel; ++i) tile.sum[i] = 0.0F;
  }
  for (std::int64_t done = 0; done < tile.steps;) {
    const std::int64_t left = tile.steps - done;
    const std::int64_t steps = left < chunk_steps(P) ? left : chunk_steps(P);
    const bool first = done == 0 && !tile.resume;
    [[maybe_unused]] const Patches at_chunk = patches;
    for (int pass = 0; pass < kPasses; ++pass) {
      if constexpr (is_compact(P)) {
        if (kPasses > 1 && walk.due >= 0) walk.due = kLinesPerBlock * (done / 2);  // every pass fetches its part
        patches = at_chunk;
        const std::int64_t near_by = pass == 0 ? tile.ahead.near_by : 0;
        add_compact_chunk<P, M, kAtOnce>(a, b, pass, done, done + steps, tile.sum, first, walk, near_by, widened,
                                         tile.codes.table, patches);
      } else {
        const int v = pass * kAtOnce;
        if (kPasses > 1 && walk.due >= 0) walk.due = done;
        add_chunk<P, M, kAtOnce>(a, b + v * V::kWidth * kWeightBytes<P>, done, done + steps, tile.sum + v * V::kWidth,
                                 first, walk, tile.ahead.near_by,
                                 widened == nullptr ? nullptr : widened + v * V::kWidth);
      }
    }
    if (widened != nullptr) widened += steps * kActivationsPerStep<P> * kPanel;
    a += steps * kActivationsPerStep<P> * M * 4;
    b += steps * kStepBytes<P>;
    done += steps;
  }
}

template <Product P, int M>
constexpr void fill_rows(ProductKernels& kernels) {
  if constexpr (M > 0) {
    kernels.matmul[M] = matmul<P, M>;
    fill_rows<P, M - 1>(kernels);
  }
}

template <Product P>
constexpr ProductKernels product_kernels() {
  ProductKernels kernels{};
  kernels.max_rows = V::kMaxRows;
  kernels.pairs = kPairs<P>;
  kernels.wide = kWide<P>;
  fill_rows<P, V::kMaxRows>(kernels);
  return kernels;
}
