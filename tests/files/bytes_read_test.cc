// Checkpoint::bytes_read: every file of every format is counted, also those that opening drops again, and reads from
// several threads add up. (Meta's files of row scales: torch_variants_test.cc; what a rank reads: layer/share_test.cc.)
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include <fmt/format.h>

#include "files/packed_file.h"
#include "support/counted.h"
#include "swiglu/files.hpp"

namespace swiglu::testing {
namespace {

std::filesystem::path write_model(const TemporaryFolder& folder, CheckpointFormat format, int shards) {
  CheckpointRecipe recipe;
  recipe.format = format;
  recipe.config = {.dim = 64, .hidden = 96, .eps = 1e-5};
  recipe.layers = 2;
  recipe.shards = shards;
  const auto path = folder / fmt::format("{}-{}", static_cast<int>(format), shards);
  write_checkpoint(path, recipe, random_weights(recipe.config, recipe.dtype, 1));
  return path;
}

TEST(BytesRead, every_file_of_every_format_is_counted) {
  const TemporaryFolder folder;
  for (const CheckpointFormat format :
       {CheckpointFormat::huggingface, CheckpointFormat::meta, CheckpointFormat::gguf}) {
    for (const int shards : {1, 3}) expect_every_read_is_counted(write_model(folder, format, shards));
  }
  expect_every_read_is_counted(folder / "0-1/model.safetensors");
  expect_every_read_is_counted(folder / "1-1/consolidated.00.pth");
  expect_every_read_is_counted(folder / "2-1/model.gguf");
  expect_every_read_is_counted(folder / "2-3/model-00001-of-00003.gguf");
}

TEST(BytesRead, real_files_are_counted) {
  SWIGLU_NEEDS_TEST_DATA();
  for (const char* name : {"pth/tiny_fair_checkpoint.pt", "pth/burn/legacy_with_offsets.pt"}) {
    expect_every_read_is_counted(test_data() / name);
  }
}

TEST_F(Packed, reads_of_packed_files_are_counted) {
  const FakeLayer a(16, 3 << 20, 100, 1), b(0, 64, 64, 3);
  write({{2, &a}, {3, &b}});
  expect_every_read_is_counted(path_);
}

TEST_F(Packed, mapped_pages_are_not_counted) {
  const FakeLayer a(16, 3 << 20, 100, 1);
  write({{2, &a}});
  OpenOptions options;
  options.map = true;
  const Checkpoint model = open(options);
  const LayerSource layer = model.layer(2);
  const std::uint64_t before = model.bytes_read();
  const auto view = layer.packed->view_payload(Part::gate_up);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(view.get()), 3 << 20), a.parts[0].payload);
  EXPECT_EQ(model.bytes_read(), before);
}

TEST(BytesRead, threads_add_up_and_sources_outlive_the_checkpoint) {
  const TemporaryFolder folder;
  const Checkpoint model = Checkpoint::open(write_model(folder, CheckpointFormat::huggingface, 1));
  const LayerSource layer = model.layer(0);
  const std::uint64_t before = model.bytes_read();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::uint16_t element = 0;
      for (int i = 0; i < 1000; ++i) layer.gate->read(i % 96, 1, 3, 1, &element);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(model.bytes_read(), before + 4 * 1000 * 2);
  const auto gate = Checkpoint::open(folder / "0-1").layer(0).gate;
  std::uint16_t element = 0;
  gate->read(0, 1, 0, 1, &element);
}

TEST(BytesRead, belongs_to_one_checkpoint) {
  const TemporaryFolder folder;
  const auto path = write_model(folder, CheckpointFormat::meta, 3);
  const Checkpoint first = Checkpoint::open(path);
  const std::uint64_t opened = first.bytes_read();
  const Checkpoint second = Checkpoint::open(path);
  (void)second.layer(0);
  EXPECT_EQ(first.bytes_read(), opened);
  EXPECT_EQ(second.bytes_read(), opened + 64 * 2);  // the norm
}

}  // namespace
}  // namespace swiglu::testing
