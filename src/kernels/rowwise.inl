// Everything that works along a row, written once over an ISA's vector type V: reading and normalising
// inputs, silu(gate) * up, finishing outputs. Included after V, inside the anonymous namespace.
// Each operation and its order are the contract of docs/design.md; all tiers give the same bits.

constexpr int kBlock = 256;  // floats converted at a time; a multiple of 16

constexpr std::int64_t elem_bytes(Elem type) { return type == Elem::f64 ? 8 : type == Elem::f32 ? 4 : 2; }

inline V::F load_as_float(const char* source, Elem type) {
  switch (type) {
    case Elem::bf16:
      return V::from_bf16(source);
    case Elem::f16:
      return V::from_f16(source);
    case Elem::f64:
      return V::from_f64(source);
    case Elem::f32:
      break;
  }
  return V::load(source);
}

// n <= kBlock elements of any type to floats; up to the next multiple of 16 is filled with +0.
inline void load_block(float* dst, const char* source, Elem type, std::int64_t n) {
  const std::int64_t whole = n - n % V::kWidth;
  for (std::int64_t i = 0; i < whole; i += V::kWidth) {
    V::store(dst + i, load_as_float(source + i * elem_bytes(type), type));
  }
  if (whole < n) {
    alignas(64) char tail[V::kWidth * 8] = {};
    __builtin_memcpy(tail, source + whole * elem_bytes(type), static_cast<std::size_t>((n - whole) * elem_bytes(type)));
    V::store(dst + whole, load_as_float(tail, type));
  }
  const std::int64_t filled = (n + V::kWidth - 1) / V::kWidth * V::kWidth;
  for (std::int64_t i = filled; i % kLanes != 0; ++i) dst[i] = 0.0F;
}

// Σ h² in 16 lanes, folded i with i + 8, + 4, + 2, + 1; then 1 / sqrt(s / dim + eps).
inline float inverse_rms(const RowIn& in) {
  constexpr int kParts = kLanes / V::kWidth;
  alignas(64) float block[kBlock];
  V::F lanes[kParts];
  for (auto& lane : lanes) lane = V::zero();
  const auto* source = static_cast<const char*>(in.source);
  for (std::int64_t k = 0; k < in.k; k += kBlock) {
    const std::int64_t n = in.k - k < kBlock ? in.k - k : kBlock;
    load_block(block, source + k * elem_bytes(in.type), in.type, n);
    for (std::int64_t i = 0; i < n; i += kLanes) {
      for (int p = 0; p < kParts; ++p) {
        const V::F x = V::load(block + i + p * V::kWidth);
        lanes[p] = V::fma(x, x, lanes[p]);
      }
    }
  }
  alignas(64) float sum[kLanes];
  for (int p = 0; p < kParts; ++p) V::store(sum + p * V::kWidth, lanes[p]);
  for (int width = kLanes / 2; width >= 1; width /= 2) {
    for (int i = 0; i < width; ++i) sum[i] = sum[i] + sum[i + width];
  }
  const float mean = sum[0] / in.dim;
  return 1.0F / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + in.eps)));
}

// Rows of float tiles hold floats (bf16 compute: already rounded and widened again); pair tiles hold bf16.
inline void write_row(const float* values, std::int64_t n, void* tile, std::int64_t k, int row, int rows, bool pairs) {
  if (pairs) {
    auto* dst = static_cast<char*>(tile) + (k / 2 * rows + row) * 4;
    std::uint16_t halves[kBlock];
    for (std::int64_t i = 0; i < n; i += V::kWidth) V::to_bf16(halves + i, V::load(values + i));
    for (std::int64_t i = 0; i < n; i += 2, dst += rows * 4) __builtin_memcpy(dst, halves + i, 4);
  } else {
    auto* dst = static_cast<float*>(tile) + k * rows + row;
    for (std::int64_t i = 0; i < n; ++i, dst += rows) *dst = values[i];
  }
}

// bf16 compute: denormals become signed zero, then round to nearest even; kept widened.
inline V::F round_to_bf16(V::F x) {
  alignas(64) std::uint16_t halves[V::kWidth];
  V::to_bf16(halves, V::flush(x));
  return V::from_bf16(reinterpret_cast<const char*>(halves));
}

template <bool kPairTile>
void row_in_as(const RowIn& in) {
  const bool normalise = in.norm != nullptr;
  const float r = normalise ? inverse_rms(in) : 0.0F;
  const auto* source = static_cast<const char*>(in.source);
  alignas(64) float block[kBlock];
  alignas(64) float weight[kBlock];
  for (std::int64_t k = 0; k < in.padded_k; k += kBlock) {
    const std::int64_t padded = in.padded_k - k < kBlock ? in.padded_k - k : kBlock;
    const std::int64_t n = in.k - k < padded ? in.k - k : padded;
    load_block(block, source + k * elem_bytes(in.type), in.type, n);
    if (normalise) load_block(weight, reinterpret_cast<const char*>(in.norm + k), Elem::f32, n);
    for (std::int64_t i = 0; i < n; i += V::kWidth) {
      V::F x = V::load(block + i);
      if (normalise) x = V::mul(V::mul(x, V::set(r)), V::load(weight + i));
      if (in.round) x = kPairTile ? V::flush(x) : round_to_bf16(x);
      V::store(block + i, x);
    }
    for (std::int64_t i = n < 0 ? 0 : n; i < padded; ++i) block[i] = 0.0F;  // 0 * Inf of a padded lane is NaN
    write_row(block, padded, in.tile, k, in.row, in.rows, kPairTile);
  }
}

void row_in(const RowIn& in) { V::kHasDot&& in.round ? row_in_as<V::kHasDot>(in) : row_in_as<false>(in); }

// The operations of docs/design.md, "silu", one by one.
inline V::F silu_of(V::F x) {
  const V::F limit = V::set(-150.0F);
  const V::F y = V::max(limit, V::negative_abs(x));  // a NaN in the second operand survives
  const V::I n = V::to_int(V::mul(y, V::set(1.44269504F)));
  const V::F whole = V::from_int(n);
  V::F r = V::fma(whole, V::set(-0.693359375F), y);
  r = V::fma(whole, V::set(2.12194440e-4F), r);
  V::F p = V::set(1.9875691500e-4F);
  p = V::fma(p, r, V::set(1.3981999507e-3F));
  p = V::fma(p, r, V::set(8.3334519073e-3F));
  p = V::fma(p, r, V::set(4.1665795894e-2F));
  p = V::fma(p, r, V::set(1.6666665459e-1F));
  p = V::fma(p, r, V::set(5.0000001201e-1F));
  p = V::add(V::fma(p, V::mul(r, r), r), V::set(1.0F));
  const V::I half = V::half_of(n);
  const V::F scale1 = V::power_of_two(half);
  const V::F scale2 = V::power_of_two(V::subtract(n, half));
  const V::F t = V::mul(V::mul(p, scale1), scale2);
  const V::F below = V::mul(V::mul(V::mul(p, V::max(limit, x)), scale1), scale2);
  const V::F numerator = V::select(V::less(x, V::zero()), below, x);
  return V::div(numerator, V::add(V::set(1.0F), t));
}

template <bool kPairTile>
void gate_up(const GateUp& in) {
  alignas(64) float z[kLanes];
  for (int row = 0; row < in.rows; ++row) {
    const float* gate = in.sum + row * kPanel;
    for (int i = 0; i < kLanes; i += V::kWidth) {
      V::F value = V::mul(silu_of(V::load(gate + i)), V::load(gate + kLanes + i));
      if (in.round) value = kPairTile ? V::flush(value) : round_to_bf16(value);
      V::store(z + i, value);
    }
    for (int i = in.valid; i < kLanes; ++i) z[i] = 0.0F;  // never the computed lane: 0 * Inf is NaN
    write_row(z, kLanes, in.tile, 0, row, in.rows, kPairTile);
  }
}

inline void store_as(char* out, V::F x, Elem type, bool flush) {
  switch (type) {
    case Elem::f32:
      V::store(out, x);
      break;
    case Elem::bf16:
      V::to_bf16(out, flush ? V::flush(x) : x);
      break;
    case Elem::f16:
      V::to_f16(out, x);
      break;
    case Elem::f64:
      V::to_f64(out, x);
      break;
  }
}

void row_out(const RowOut& in) {
  const auto* residual = static_cast<const char*>(in.residual);
  auto* out = static_cast<char*>(in.out);
  for (std::int64_t i = 0; i < in.n; i += V::kWidth) {
    const std::int64_t n = in.n - i < V::kWidth ? in.n - i : V::kWidth;
    const bool whole = n == V::kWidth;
    alignas(64) char edge[V::kWidth * 8] = {};
    V::F y = V::zero();
    if (whole) {
      y = V::load(in.sum + i);
    } else {
      __builtin_memcpy(edge, in.sum + i, static_cast<std::size_t>(n * 4));
      y = V::load(edge);
    }
    y = V::add(y, V::zero());
    if (residual != nullptr) {
      const std::int64_t bytes = elem_bytes(in.residual_type);
      const char* source = residual + i * bytes;
      if (!whole) {
        __builtin_memcpy(edge, source, static_cast<std::size_t>(n * bytes));
        source = edge;
      }
      y = V::add(load_as_float(source, in.residual_type), y);
    }
    y = V::select(V::is_nan(y), V::set(__builtin_nanf("")), y);
    const std::int64_t bytes = elem_bytes(in.out_type);
    store_as(whole ? out + i * bytes : edge, y, in.out_type, in.flush);
    if (!whole) __builtin_memcpy(out + i * bytes, edge, static_cast<std::size_t>(n * bytes));
  }
}

void add(float* dst, const float* left, const float* right, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) V::store(dst + i, V::add(V::load(left + i), V::load(right + i)));
  for (; i < n; ++i) dst[i] = left[i] + right[i];
}

void silu(float* dst, const float* src, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += V::kWidth) {
    const std::int64_t here = n - i < V::kWidth ? n - i : V::kWidth;
    alignas(64) float edge[V::kWidth] = {};
    __builtin_memcpy(edge, src + i, static_cast<std::size_t>(here * 4));
    V::store(edge, silu_of(V::load(edge)));
    __builtin_memcpy(dst + i, edge, static_cast<std::size_t>(here * 4));
  }
}

constexpr Table make_table() {
  return {.product = {product_kernels<Product::f32_f32>(), product_kernels<Product::f32_bf16>(),
                      product_kernels<Product::f32_f16>(), product_kernels<Product::bf16_bf16>(),
                      product_kernels<Product::bf16_wide>(), product_kernels<Product::f32_compact>(),
                      product_kernels<Product::bf16_compact>()},
          .row_in = row_in,
          .gate_up = {gate_up<false>, gate_up<V::kHasDot>},
          .row_out = row_out,
          .add = add,
          .silu = silu,
          .interleave16 = interleave<std::uint16_t>,
          .interleave32 = interleave<std::uint32_t>,
          .encode = encode<>,
          .probes = make_probes()};
}
