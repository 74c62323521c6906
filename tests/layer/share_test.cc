// What a rank reads of a checkpoint: its rows of gate and up and its columns of down, and no other byte, whatever
// format and however many files hold them.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "files/torch_file.h"
#include "layer/ranks.h"
#include "support/data.h"
#include "swiglu/files.hpp"

namespace swiglu::testing {
namespace {

struct Case {
  CheckpointFormat format;
  int shards;
  TensorType type;
  std::int64_t dim = 96;
  std::int64_t hidden = 1000;
  [[nodiscard]] std::string text() const {
    constexpr const char* kFormats[] = {"hf", "meta", "gguf"};
    return fmt::format("{} {} {} {}x{}", kFormats[static_cast<int>(format)], shards, name_of(type), dim, hidden);
  }
};

std::filesystem::path write_model(const TemporaryFolder& folder, const Case& made) {
  CheckpointRecipe recipe;
  recipe.format = made.format;
  recipe.config = {.dim = made.dim, .hidden = made.hidden, .eps = 1e-5};
  recipe.shards = made.shards;
  recipe.type = made.type;
  const auto path = folder / made.text();
  write_checkpoint(path, recipe, random_weights(recipe.config, recipe.dtype, 1));
  return path;
}

// Bytes of `columns` neighbours in a row, from a multiple of 32.
std::int64_t bytes_of(TensorType type, std::int64_t columns) {
  if (type == TensorType::q8_0) return (columns + 31) / 32 * 34;
  return columns * size_of(static_cast<DType>(type));
}

std::int64_t read_by_rank(const std::filesystem::path& path, int rank, int ranks, const Options& options = {}) {
  ThreadPool pool(2);
  const Checkpoint model = Checkpoint::open(path);
  const LayerSource source = model.layer(0);  // reads the norm
  const std::uint64_t before = model.bytes_read();
  Meeting meeting;
  MeetingReducer reducer(rank, ranks, meeting);
  Options own = options;
  own.reducer = &reducer;
  const FeedForward layer(source, pool, own);
  return static_cast<std::int64_t>(model.bytes_read() - before);
}

void expect_shares(const Case& made) {
  const TemporaryFolder folder;
  const auto path = write_model(folder, made);
  for (const int ranks : {1, 2, 3, 6, 8, 16, 19}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::int64_t units = owned_units(made.hidden, rank, ranks).count();
      EXPECT_EQ(read_by_rank(path, rank, ranks),
                2 * units * bytes_of(made.type, made.dim) + made.dim * bytes_of(made.type, units))
          << made.text() << ", rank " << rank << " of " << ranks;
    }
  }
}

TEST(Share, a_rank_reads_its_share_of_safetensors) {
  for (const int shards : {1, 3}) {
    for (const TensorType type : {TensorType::f32, TensorType::bf16, TensorType::f16}) {
      expect_shares({CheckpointFormat::huggingface, shards, type});
    }
  }
}

TEST(Share, a_rank_reads_its_share_of_metas_shards) {
  for (const int shards : {1, 2, 8}) {
    for (const TensorType type : {TensorType::f32, TensorType::bf16, TensorType::f16}) {
      expect_shares({CheckpointFormat::meta, shards, type, 100});
    }
  }
}

TEST(Share, a_rank_reads_its_share_of_gguf_files) {
  for (const int shards : {1, 2}) {
    for (const TensorType type : {TensorType::bf16, TensorType::f16}) {
      expect_shares({CheckpointFormat::gguf, shards, type, 128});
    }
    expect_shares({CheckpointFormat::gguf, shards, TensorType::q8_0, 128, 992});
  }
}

// Rows are packed a block of columns at a time: the blocks of a long row meet without overlap.
TEST(Share, long_rows_are_read_once) {
  for (const TensorType type : {TensorType::bf16, TensorType::f32}) {
    expect_shares({CheckpointFormat::huggingface, 1, type, 33, 8231});
    expect_shares({CheckpointFormat::meta, 2, type, 4133, 70});
  }
  expect_shares({CheckpointFormat::gguf, 1, TensorType::q8_0, 64, 8256});
  expect_shares({CheckpointFormat::gguf, 1, TensorType::q8_0, 4160, 96});
}

// Rounded or widened on packing: what is read stays what is stored.
TEST(Share, conversions_read_no_more) {
  const TemporaryFolder folder;
  const Case made{CheckpointFormat::huggingface, 1, TensorType::f32};
  const auto path = write_model(folder, made);
  for (const Storage storage : {Storage::plain, Storage::compact}) {
    Options options;
    options.compute = Compute::bf16;
    options.storage = storage;
    EXPECT_EQ(read_by_rank(path, 1, 3, options), 3 * 4 * made.dim * owned_units(made.hidden, 1, 3).count());
  }
}

// Saved as the transpose of a contiguous tensor: short runs, but no byte beside the share.
TEST(Share, a_rank_reads_its_share_of_transposed_matrices) {
  constexpr std::int64_t kDim = 40, kHidden = 1000;
  namespace p = pickled;
  const auto tensor = [](const char* key, std::int64_t rows, std::int64_t cols) {
    return p::tensor(p::storage(key, rows * cols), 0, {rows, cols}, {1, rows});
  };
  const std::string pickle =
      p::whole(p::dict({{"layers.0.feed_forward.w1.weight", tensor("0", kHidden, kDim)},
                        {"layers.0.feed_forward.w3.weight", tensor("1", kHidden, kDim)},
                        {"layers.0.feed_forward.w2.weight", tensor("2", kDim, kHidden)},
                        {"layers.0.ffn_norm.weight", p::tensor(p::storage("3", kDim), 0, {kDim}, {1})}}));
  const std::string zeros(kDim * kHidden * 4, '\0');
  const TemporaryFolder folder;
  write_file(folder / "x.pth", zip_bytes(torch_parts(pickle, {zeros, zeros, zeros, std::string(kDim * 4, '\0')})));
  for (const int ranks : {1, 2, 3, 16}) {
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(read_by_rank(folder / "x.pth", rank, ranks), 3 * 4 * kDim * owned_units(kHidden, rank, ranks).count())
          << rank << " of " << ranks;
    }
  }
}

}  // namespace
}  // namespace swiglu::testing
