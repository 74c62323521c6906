// A GGUF model in several files: found by the first one's name, and checked against each other.
#include <vector>

#include "support/data.h"
#include "support/gguf.h"
#include "support/safetensors.h"

namespace swiglu {
namespace {

using testing::expect_error;
using testing::gguf_f32;
using testing::gguf_i32;
using testing::gguf_text;
using testing::gguf_u16;
using testing::gguf_u32;
using testing::GgufParts;
using testing::write_file;

/// Part `number` of `count`, counted from 0. The first has the model's keys, part i + 1 has layer i.
GgufParts part(std::uint16_t number, std::uint16_t count, std::int32_t tensors = 8) {
  GgufParts parts;
  parts.pairs = {gguf_u16("split.no", number), gguf_u16("split.count", count),
                 gguf_i32("split.tensors.count", tensors)};
  if (number == 0) {
    parts.add_pair(gguf_text("general.architecture", "llama")).add_pair(gguf_u32("llama.block_count", 2));
    parts.add_pair(gguf_u32("llama.embedding_length", 4)).add_pair(gguf_u32("llama.feed_forward_length", 6));
    parts.add_pair(gguf_f32("llama.attention.layer_norm_rms_epsilon", 1e-5F));
    return parts;
  }
  const int layer = number - 1;
  parts.add_f32(fmt::format("blk.{}.ffn_norm.weight", layer), {4});
  parts.add_f32(fmt::format("blk.{}.ffn_gate.weight", layer), {4, 6});
  parts.add_f32(fmt::format("blk.{}.ffn_up.weight", layer), {4, 6});
  parts.add_f32(fmt::format("blk.{}.ffn_down.weight", layer), {6, 4});
  return parts;
}

class GgufSplit : public ::testing::Test {
 protected:
  GgufSplit() {
    for (std::uint16_t i = 0; i < 3; ++i) write(i, part(i, 3));
  }
  [[nodiscard]] std::filesystem::path path(int number) const {
    return folder_ / fmt::format("{}-{:05}-of-00003.gguf", prefix_, number + 1);
  }
  void write(int number, const GgufParts& parts) const { write_file(path(number), parts.bytes()); }
  void refused(ErrorCode code, std::initializer_list<std::string_view> words) const {
    expect_error(code, words, [&] { (void)Checkpoint::open(path(0)); });
  }
  std::string prefix_ = "my %s model";  // G65: no format, no path
  testing::TemporaryFolder folder_;
};

TEST_F(GgufSplit, opens_by_its_first_part_or_its_folder) {
  for (const auto& opened : {path(0), folder_.path()}) {
    const Checkpoint model = Checkpoint::open(opened);
    EXPECT_EQ(model.layers(), 2);
    EXPECT_EQ(model.shards(), 3);
    EXPECT_EQ(model.size_bytes(), std::filesystem::file_size(path(0)) + 2 * std::filesystem::file_size(path(1)));
    EXPECT_EQ(model.tensors().back().files, std::vector{path(2).filename().string()});
    EXPECT_EQ(model.layer(1).norm, (std::vector<float>{0, 1, 2, 3}));
  }
}

TEST_F(GgufSplit, is_not_opened_by_another_part) {  // G61
  for (const int other : {1, 2}) {
    expect_error(ErrorCode::usage, {path(other).filename().string(), fmt::format("part {} of 3", other + 1), "first"},
                 [&] { (void)Checkpoint::open(path(other)); });
  }
}

TEST_F(GgufSplit, needs_all_its_parts) {
  std::filesystem::remove(path(1));
  refused(ErrorCode::not_found, {"part 2 of 3", "my %s model-00002-of-00003.gguf"});
  OpenOptions options;
  options.collect_problems = true;
  const Checkpoint model = Checkpoint::open(path(0), options);
  EXPECT_FALSE(model.problems().empty());
}

TEST_F(GgufSplit, is_the_only_model_of_a_folder) {
  write_file(folder_ / "my %s model-00002-also.gguf", "between the parts, by name");
  expect_error(ErrorCode::usage, {"one GGUF model", "-00001-of-00003.gguf", "-00002-also.gguf"},
               [&] { (void)Checkpoint::open(folder_.path()); });
}

TEST_F(GgufSplit, is_found_by_its_name_only) {
  std::filesystem::rename(path(0), folder_ / "renamed.gguf");
  expect_error(ErrorCode::format, {"renamed.gguf", "-00001-of-00003.gguf", "split.count is 3"},
               [&] { (void)Checkpoint::open(folder_ / "renamed.gguf"); });
  // Joined into one file, the second part is beyond the end of the first (G62).
  std::string joined;
  for (std::uint16_t i = 0; i < 3; ++i) joined += part(i, 3).bytes();
  write_file(folder_ / "joined.gguf", joined);
  expect_error(ErrorCode::format, {"joined.gguf", "split.count is 3"},
               [&] { (void)Checkpoint::open(folder_ / "joined.gguf"); });
}

TEST_F(GgufSplit, refuses_parts_that_do_not_belong_together) {  // G63
  write(2, part(1, 3));
  refused(ErrorCode::format, {"00003-of-00003", "split.no: expected 2, found 1"});
  write(2, part(2, 4));
  refused(ErrorCode::format, {"00003-of-00003", "split.count: expected 3, found 4"});
  GgufParts bare = part(2, 3);
  bare.pairs.clear();
  write(2, bare);
  refused(ErrorCode::format, {"00003-of-00003", "split.no: expected 2, found nothing"});
  write(2, part(2, 3, 9));
  refused(ErrorCode::format, {"00003-of-00003", "split.tensors.count: expected 8, found 9"});
  GgufParts twice = part(2, 3);
  twice.add_f32("blk.0.ffn_up.weight", {4, 6});
  write(2, twice);
  refused(ErrorCode::format, {"00003-of-00003", "blk.0.ffn_up.weight is also in", "00002-of-00003"});
}

TEST_F(GgufSplit, refuses_numbers_that_are_none) {  // G63, G64
  const auto first = [&](std::vector<std::string> pairs) {
    GgufParts parts = part(0, 3);
    parts.pairs.erase(parts.pairs.begin(), parts.pairs.begin() + 3);
    for (auto& pair : pairs) parts.add_pair(std::move(pair));
    write(0, parts);
  };
  first({gguf_u16("split.no", 3), gguf_u16("split.count", 3)});
  refused(ErrorCode::format, {"split.no below split.count", "3 and 3"});
  first({gguf_u16("split.no", 0), gguf_text("split.count", "3")});
  refused(ErrorCode::format, {"split.count", "an integer", "a string"});
  first({gguf_i32("split.no", -1), gguf_u16("split.count", 3)});
  refused(ErrorCode::format, {"split.no", "-1 and 3"});
  first({gguf_u32("split.count", 0xffffffffU)});
  refused(ErrorCode::format, {"split.count", "4294967295"});
  first({gguf_u32("split.no", 0), gguf_u32("split.count", 3)});  // of another width: taken
  EXPECT_EQ(Checkpoint::open(path(0)).layers(), 2);
  for (std::uint16_t i = 0; i < 3; ++i) write(i, part(i, 3, 7));
  refused(ErrorCode::format, {"split.tensors.count is 7", "have 8"});
}

}  // namespace
}  // namespace swiglu
