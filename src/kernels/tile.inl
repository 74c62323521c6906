// The matmul of every ISA, written once over its vector type V. Included inside the anonymous namespace
// of an ISA's translation unit, after V.
//
// One accumulator per output, k ascending, always fma; chunks restart at +0 and are added in order to a
// running sum that starts at +0. Which outputs share a pass is free; the order within one is not.

// Panel steps between restarts: 512 k in f32 compute, 1024 k in bf16 compute.
template <Product P>
constexpr std::int64_t kChunkSteps = P == Product::f32_bf16 ? 256 : 512;
template <Product P>
constexpr bool kPairs = V::kHasDot && P == Product::bf16_bf16;
// k per step of floats, or one dword of a pair.
template <Product P>
constexpr int kActivationsPerStep = (P == Product::f32_bf16 || (P == Product::bf16_bf16 && !kPairs<P>)) ? 2 : 1;
template <Product P>
constexpr int kWeightBytes = P == Product::f32_f16 ? 2 : 4;

// acc[m][n] += one step of the panel's vectors first … first + N - 1.
template <Product P, int M, int N>
inline __attribute__((always_inline)) void multiply_step(V::F (&acc)[M][N], const char* a, const char* b) {
  const auto lane = [b](int n) { return b + n * V::kWidth * kWeightBytes<P>; };
  if constexpr (kPairs<P>) {
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
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const bool odd = (half == 0) == (P == Product::bf16_bf16);
      V::F w[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) w[n] = odd ? V::odd_bf16(lane(n)) : V::even_bf16(lane(n));
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const V::F x = V::broadcast(a + (odd ? M + m : m) * 4);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) acc[m][n] = V::fma(x, w[n], acc[m][n]);
      }
    }
  } else {
    V::F w[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) w[n] = P == Product::f32_f16 ? V::from_f16(lane(n)) : V::load(lane(n));
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const V::F x = V::broadcast(a + m * 4);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) acc[m][n] = V::fma(x, w[n], acc[m][n]);
    }
  }
}

// Lines to bring into L2 while the sums go on; all vectors of a panel share them.
struct Prefetch {
  const char* at;
  std::int64_t step;
};

// One chunk for N vectors of the panel, added to the running sum (or to +0 for the first chunk).
template <Product P, int M, int N>
inline __attribute__((always_inline)) void add_chunk(const char* a, const char* b, std::int64_t steps, float* sum,
                                                     bool first, Prefetch next) {
  V::F acc[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) acc[m][n] = V::zero();
  }
  for (std::int64_t s = 0; s < steps; ++s) {
    __builtin_prefetch(next.at, 0, 2);
    __builtin_prefetch(next.at + 64, 0, 2);
    next.at += next.step;
    multiply_step<P, M, N>(acc, a, b);
    a += kActivationsPerStep<P> * M * 4;
    b += kPanel * kWeightBytes<P>;
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      float* at = sum + m * kPanel + n * V::kWidth;
      V::store(at, V::add(first ? V::zero() : V::load(at), acc[m][n]));
    }
  }
}

template <Product P, int M>
void matmul(const Tile& tile) {
  constexpr int kVectors = kPanel / V::kWidth;
  constexpr int kAtOnce = V::vectors_at_once(M);
  const auto* a = static_cast<const char*>(tile.activations);
  const auto* b = static_cast<const char*>(tile.weights);
  Prefetch next{static_cast<const char*>(tile.prefetch), tile.prefetch_step};
  if (tile.steps == 0) {
    for (int i = 0; i < M * kPanel; ++i) tile.sum[i] = 0.0F;
  }
  for (std::int64_t done = 0; done < tile.steps;) {
    const std::int64_t left = tile.steps - done;
    const std::int64_t steps = left < kChunkSteps<P> ? left : kChunkSteps<P>;
    for (int v = 0; v < kVectors; v += kAtOnce) {
      add_chunk<P, M, kAtOnce>(a, b + v * V::kWidth * kWeightBytes<P>, steps, tile.sum + v * V::kWidth, done == 0,
                               v == 0 ? next : Prefetch{b, 0});
    }
    next.at += steps * next.step;
    a += steps * kActivationsPerStep<P> * M * 4;
    b += steps * kPanel * kWeightBytes<P>;
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
  fill_rows<P, V::kMaxRows>(kernels);
  return kernels;
}
