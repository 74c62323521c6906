// Packed layers with anything in them, as if their checksums were right: an Error, or a layer that computes
// something. What reads or writes out of bounds is seen by the sanitizers' builds.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "layer/layers.h"
#include "layer/packed_bytes.h"
#include "layer/ranks.h"

namespace swiglu::testing {
namespace {

using Part = PackedSource::Part;

void mutate(std::vector<std::byte>& bytes, std::mt19937& engine) {
  const auto at = [&](std::size_t n) { return n == 0 ? 0 : engine() % n; };
  const std::size_t where = at(bytes.size());
  switch (engine() % 8) {
    case 0:  // one bit
      if (!bytes.empty()) bytes[where] ^= static_cast<std::byte>(1U << engine() % 8);
      break;
    case 1:  // a number that matters
    case 2: {
      constexpr std::uint32_t kNumbers[] = {0, 1, 2, 255, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffe, 0xffff8000};
      const std::uint32_t number = kNumbers[engine() % std::size(kNumbers)];
      if (bytes.size() >= 4) std::memcpy(bytes.data() + where / 4 * 4 % (bytes.size() - 3), &number, 4);
      break;
    }
    case 3:  // noise
      for (std::size_t i = where; i < bytes.size() && i < where + 40; ++i) bytes[i] = static_cast<std::byte>(engine());
      break;
    case 4:  // shorter, by little or much
      bytes.resize(engine() % 2 == 0 ? where : bytes.size() - std::min<std::size_t>(bytes.size(), engine() % 70));
      break;
    case 5:  // longer
      bytes.resize(bytes.size() + engine() % 300);
      break;
    case 6:  // patches or tables that change places
      if (bytes.size() >= 16) std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.end() - 8);
      break;
    default:  // one part's bytes where others were
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(where), bytes.end(), static_cast<std::byte>(engine()));
      break;
  }
}

void mutate(PackedBytes& packed, std::mt19937& engine) {
  for (int n = 1 + static_cast<int>(engine() % 3); n > 0; --n) {
    const std::size_t part = engine() % 2;
    switch (engine() % 10) {
      case 0:
        packed.matrices[part].storage = static_cast<Storage>(engine() % 3);
        break;
      case 1:
        packed.matrices[part].dtype = static_cast<DType>(engine() % 4);
        break;
      case 2:
        packed.shape.dim += static_cast<int>(engine() % 5) - 2;
        break;
      case 3:
        packed.shape.hidden += static_cast<int>(engine() % 65) - 32;
        break;
      case 4:
        std::swap(packed.payload[0], packed.payload[1]);
        break;
      case 5:
      case 6:
        mutate(packed.payload[part], engine);
        break;
      default:
        mutate(packed.index[part], engine);
        break;
    }
  }
}

TEST(PackedFuzz, any_bytes_give_an_error_or_a_layer) {
  ThreadPool pool(1);
  std::mt19937 engine(20261130);
  int refused = 0, accepted = 0;
  for (const auto& [dim, hidden, type] : {std::tuple<std::int64_t, std::int64_t, DType>{1, 1, DType::bf16},
                                          {40, 70, DType::bf16},
                                          {33, 515, DType::bf16},
                                          {300, 17, DType::bf16},
                                          {40, 70, DType::f32},
                                          {17, 33, DType::f16}}) {
    const Layer layer(dim, hidden, type, Data::wild, 3);
    Options options;
    options.storage = Storage::compact;
    const FeedForward ffn(layer.source, pool, options);
    const auto original = ffn.packed();
    for (int i = 0; i < 500; ++i) {
      const auto packed = std::make_shared<PackedBytes>(*original);
      mutate(*packed, engine);
      LayerSource source;
      source.config = packed->shape;
      source.packed = packed;
      try {
        const FeedForward damaged(source, pool);
        const std::int64_t width = packed->shape.dim;
        for (const std::int64_t tokens : {1, 15}) {
          const Matrix h = Matrix::filled(DType::f32, tokens, width, Values(Data::normal, 1), 1);
          run(damaged, h, false);
          run_on_ranks(source, pool, 1 + i % 20, h, {}, false);
        }
        const LayerSource seen = unpack(source, pool.runner());
        for (const auto& matrix : {seen.gate, seen.up, seen.down}) {
          std::vector<std::byte> all(
              static_cast<std::size_t>(matrix->rows() * matrix->cols() * size_of(matrix->dtype())));
          matrix->read(0, matrix->rows(), 0, matrix->cols(), all.data());
        }
        ++accepted;
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::format || error.code() == ErrorCode::shape) << error.text();
        EXPECT_EQ(error.text().find('\n'), std::string::npos);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace swiglu::testing
