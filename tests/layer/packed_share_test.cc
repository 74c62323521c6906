// A rank's share of a layer that was packed before: the bits of one process, and no other byte of the file read.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <fmt/format.h>

#include "layer/layers.h"
#include "layer/packed_bytes.h"
#include "layer/ranks.h"
#include "support/data.h"
#include "swiglu/files.hpp"

namespace swiglu::testing {
namespace {

using Part = PackedSource::Part;
constexpr int kRanks[] = {1, 2, 3, 5, 7, 16, 19};

// Finite weights of which compact storage leaves some panels plain and patches some of the others.
Layer mixed_layer(std::int64_t dim, std::int64_t hidden, DType type) {
  Layer layer(dim, hidden, type, Data::normal, 5);
  std::mt19937 engine(7);
  for (Matrix* matrix : {&layer.gate, &layer.up, &layer.down}) {
    for (std::int64_t i = 0; i < matrix->rows * matrix->cols; ++i) {
      const bool plain = matrix->rows > 40 && i / matrix->cols / 32 % 3 == 1;
      if (!plain && engine() % 3000 != 0) continue;
      const double value =
          std::ldexp(1 + static_cast<double>(engine() % 256) / 256, static_cast<int>(engine() % 24) - 22);
      store_double(matrix->bytes.data(), type, i, engine() % 2 == 0 ? value : -value);
    }
  }
  return layer;
}

struct Kind {
  DType type;
  Storage storage;
};
constexpr Kind kKinds[] = {{DType::f32, Storage::plain},
                           {DType::f16, Storage::plain},
                           {DType::bf16, Storage::plain},
                           {DType::bf16, Storage::compact}};

void expect_same(const Matrix& got, const Matrix& expected, const std::string& where) {
  ASSERT_FALSE(std::isnan(expected.doubles()[0])) << where;
  ASSERT_TRUE(got.bytes == expected.bytes) << where;
}

LayerSource packed_source(const LayerSource& layer, std::shared_ptr<const PackedSource> packed) {
  LayerSource source = layer;
  source.gate = source.up = source.down = nullptr;
  source.packed = std::move(packed);
  return source;
}

TEST(PackedShare, the_number_of_ranks_changes_no_bit) {
  ThreadPool pool(2);
  for (const auto& [dim, hidden] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {33, 515}, {97, 172}, {64, 33}, {130, 1001}}) {
    for (const Kind& kind : kKinds) {
      const Layer layer = mixed_layer(dim, hidden, kind.type);
      const FeedForward whole(layer.source, pool, {.storage = kind.storage});
      const LayerSource again = packed_source(layer.source, whole.packed());
      for (const std::int64_t tokens : {1, 19}) {
        const Matrix h = Matrix::filled(DType::f32, tokens, dim, Values(Data::normal, 17), 1.0);
        const Matrix expected = run(whole, h);
        for (const int ranks : kRanks) {
          const std::string where =
              fmt::format("{}x{} {} {}, {} ranks", dim, hidden, name_of(kind.type), name_of(kind.storage), ranks);
          expect_same(run_on_ranks(again, pool, ranks, h), expected, where);
          if (tokens > 1) continue;  // options that the file does not fit: packed anew from it
          expect_same(run_on_ranks(again, pool, ranks, h, {.storage = Storage::plain}), expected, where);
          for (const Compute compute : {Compute::f32, Compute::bf16}) {
            expect_same(run_on_ranks(again, pool, ranks, h, {.compute = compute}),
                        run(FeedForward(layer.source, pool, {.compute = compute}), h), where);
          }
        }
      }
    }
  }
}

// A layer in a packed file of its own.
class PackedShareFile : public ::testing::Test {
 protected:
  void write(const FfnConfig& config, const Kind& kind) {
    const auto model = folder_ / fmt::format("model-{}", name_of(kind.type));
    if (!std::filesystem::exists(model)) {
      CheckpointRecipe recipe;
      recipe.config = config;
      recipe.dtype = kind.type;
      write_checkpoint(model, recipe, random_weights(config, kind.type, 1));
    }
    const Checkpoint original = Checkpoint::open(model);
    source_ = original.layer(0);
    PackedWriter writer(path_, original);
    writer.add(0, *FeedForward(source_, pool_, {.storage = kind.storage}).packed(), source_.norm);
    writer.commit();
  }

  // Made by a rank; what that read, with the index.
  struct Made {
    FeedForward layer;
    std::int64_t bytes_read;
    std::int64_t index_bytes;
  };
  Made make(int rank, int ranks, bool map) {
    OpenOptions open;
    open.map = map;
    const Checkpoint file = Checkpoint::open(path_, open);
    const LayerSource source = file.layer(0);
    const std::uint64_t before = file.bytes_read();
    Meeting meeting;
    MeetingReducer reducer(rank, ranks, meeting);
    FeedForward layer(source, pool_, {.reducer = &reducer});
    return {std::move(layer), static_cast<std::int64_t>(file.bytes_read() - before),
            source.packed->matrix(Part::gate_up).index_bytes + source.packed->matrix(Part::down).index_bytes};
  }

  ThreadPool pool_{2};
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "model.swiglu";
  LayerSource source_;
};

// Payload bytes that a matrix of a layer stands for: without tables and patches in memory.
std::int64_t payload_of(const PackedInfo& info, std::int64_t pieces) {
  if (info.storage != std::string("compact bf16")) return info.bytes;
  return info.bytes - 16 * info.panels - 4 * (info.patches + (info.panels - info.plain_panels) * pieces);
}

TEST_F(PackedShareFile, a_rank_reads_its_share_of_the_payload) {
  for (const FfnConfig& config :
       {FfnConfig{96, 1000, 1e-5}, FfnConfig{500, 4001, 1e-5}}) {  // the second in many chunks
    for (const Kind& kind : kKinds) {
      write(config, kind);
      for (const int ranks : kRanks) {
        for (int rank = 0; rank < ranks; ++rank) {
          const std::string where = fmt::format("{} {} {}, rank {} of {}", config.hidden, name_of(kind.type),
                                                name_of(kind.storage), rank, ranks);
          const Made made = make(rank, ranks, false);
          const FeedForwardInfo& info = made.layer.info();
          const layer::GroupRange groups = layer::owned_groups(rank, ranks);
          EXPECT_EQ(made.bytes_read,
                    made.index_bytes + payload_of(info.gate_up, 1) + payload_of(info.down, groups.last - groups.first))
              << where;
          Meeting meeting;
          MeetingReducer reducer(rank, ranks, meeting);
          const FeedForward anew(source_, pool_, {.storage = kind.storage, .reducer = &reducer});
          if (kind.storage == Storage::plain) {
            EXPECT_EQ(info.packed_bytes, anew.info().packed_bytes) << where;
          } else {
            EXPECT_NEAR(static_cast<double>(info.packed_bytes), static_cast<double>(anew.info().packed_bytes),
                        0.01 * static_cast<double>(anew.info().packed_bytes))
                << where;
          }
          EXPECT_STREQ(info.down.storage, anew.info().down.storage);
          EXPECT_EQ(make(rank, ranks, true).bytes_read, made.index_bytes) << where;
        }
      }
    }
    std::filesystem::remove_all(folder_ / "model-f32");
    std::filesystem::remove_all(folder_ / "model-f16");
    std::filesystem::remove_all(folder_ / "model-bf16");
  }
}

TEST_F(PackedShareFile, files_read_and_mapped_give_the_bits_of_one_process) {
  const FfnConfig config{300, 2001, 1e-5};
  const Matrix h = Matrix::filled(DType::f32, 17, config.dim, Values(Data::normal, 17), 1.0);
  for (const Kind& kind : kKinds) {
    write(config, kind);
    const Matrix expected = run(FeedForward(source_, pool_), h);
    for (const bool map : {false, true}) {
      OpenOptions open;
      open.map = map;
      const LayerSource source = Checkpoint::open(path_, open).layer(0);
      for (const int ranks : kRanks) {
        expect_same(run_on_ranks(source, pool_, ranks, h), expected,
                    fmt::format("{} {} {} {}", name_of(kind.type), name_of(kind.storage), ranks, map));
      }
    }
  }
}

TEST(PackedShare, progress_ends_with_all_bytes) {
  ThreadPool pool(1);
  const Layer layer = mixed_layer(130, 1001, DType::bf16);
  const FeedForward whole(layer.source, pool);
  const LayerSource source = packed_source(layer.source, whole.packed());
  for (int rank = 0; rank < 3; ++rank) {
    Meeting meeting;
    MeetingReducer reducer(rank, 3, meeting);
    std::pair<std::int64_t, std::int64_t> last;
    Options options;
    options.reducer = &reducer;
    options.progress = [](void* ctx, std::int64_t done, std::int64_t total) {
      *static_cast<std::pair<std::int64_t, std::int64_t>*>(ctx) = {done, total};
    };
    options.progress_ctx = &last;
    const FeedForward share(source, pool, options);
    EXPECT_GT(last.second, 0);
    EXPECT_EQ(last.first, last.second);
  }
}

}  // namespace
}  // namespace swiglu::testing
