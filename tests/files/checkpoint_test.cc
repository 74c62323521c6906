// The opened checkpoint: content decides the format, layer() gives what the file holds, and every cut or
// flipped byte is an Error or harmless.
#include <sys/stat.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "base/cpu.h"
#include "support/huggingface.h"

namespace swiglu {
namespace {

using testing::config_text;
using testing::expect_error;
using testing::little_endian;
using testing::read_file;
using testing::SafetensorsBuilder;
using testing::TemporaryFolder;
using testing::test_data;
using testing::two_layers;
using testing::write_file;

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string out(values.size() * sizeof(T), '\0');
  std::memcpy(out.data(), std::data(values), out.size());
  return out;
}

/// One layer of dim 2, hidden 2 with this norm.
std::string with_norm(std::string_view dtype, const std::string& norm) {
  return SafetensorsBuilder()
      .add("layers.0.feed_forward.w1.weight", "F32", {2, 2}, 4)
      .add("layers.0.feed_forward.w2.weight", "F32", {2, 2}, 4)
      .add("layers.0.feed_forward.w3.weight", "F32", {2, 2}, 4)
      .add("layers.0.ffn_norm.weight", dtype, {2}, norm)
      .bytes();
}

class Checkpoints : public ::testing::Test {
 protected:
  Checkpoint open(std::string_view bytes) {
    write_file(path_, bytes);
    return Checkpoint::open(path_);
  }
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "weights.bin";
};

TEST_F(Checkpoints, content_decides_and_names_do_not) {
  for (const char* name : {"weights.pth", "weights.gguf", "weights", "config.json"}) {
    write_file(folder_ / name, two_layers());
    EXPECT_EQ(Checkpoint::open(folder_ / name).format(), "safetensors") << name;
  }
}

// The first bytes of a safetensors file are a length, which may look like another format's mark.
TEST_F(Checkpoints, a_header_length_is_no_mark_of_another_format) {
  const std::string bytes = two_layers();
  const auto length =
      static_cast<std::size_t>(static_cast<unsigned char>(bytes[0]) | static_cast<unsigned char>(bytes[1]) << 8);
  const std::string header = bytes.substr(8, length), data = bytes.substr(8 + length);
  for (const std::size_t mark : {0x0480, 0x0580, 0x8b1f}) {  // pickles of protocol 4 and 5, gzip
    ASSERT_LE(length, mark);
    write_file(folder_ / "m", testing::container(header + std::string(mark - length, ' '), data));
    EXPECT_EQ(Checkpoint::open(folder_ / "m").layers(), 2) << mark;
  }
}

TEST_F(Checkpoints, refuses_paths_that_hold_no_checkpoint) {
  const auto refused = [&](const std::string& name, ErrorCode code, std::initializer_list<std::string_view> parts) {
    expect_error(code, parts, [&] { (void)Checkpoint::open(folder_ / name); });
    expect_error(code, {name}, [&] { (void)Checkpoint::open(folder_ / name); });
  };
  refused("nothing-here", ErrorCode::not_found, {"cannot open"});
  refused("", ErrorCode::not_found, {"no checkpoint in this folder", "config.json", "params.json"});
  write_file(folder_ / "three.pt", "abc");
  refused("three.pt", ErrorCode::format, {"found 3 bytes"});
  write_file(folder_ / "m.safetensors", "GGUF\x03 and more of it");
  refused("m.safetensors", ErrorCode::unsupported, {"version"});
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  refused("pipe", ErrorCode::io, {"not a regular file"});
}

TEST_F(Checkpoints, folders_with_half_a_checkpoint_say_which_half_is_missing) {
  const TemporaryFolder half;
  write_file(half / "config.json", config_text());
  const auto refused = [&](ErrorCode code, std::initializer_list<std::string_view> parts) {
    expect_error(code, parts, [&] { (void)Checkpoint::open(half.path()); });
  };
  refused(ErrorCode::not_found, {"model.safetensors", "index.json", "pytorch_model.bin", "found none"});
  write_file(half / "pytorch_model.bin", "PK\x03\x04");
  refused(ErrorCode::format, {"pytorch_model.bin", "truncated or not a zip archive"});
  std::filesystem::remove(half / "config.json");
  write_file(half / "model.safetensors", two_layers());
  refused(ErrorCode::not_found, {"expected config.json"});
}

TEST_F(Checkpoints, hugging_face_files_come_before_meta_files_beside_them) {
  const TemporaryFolder both;
  write_file(both / "config.json", config_text());
  write_file(both / "model.safetensors", two_layers());
  write_file(both / "params.json", "{}");
  write_file(both / "consolidated.00.pth", "x");
  EXPECT_EQ(Checkpoint::open(both.path()).format(), "huggingface");
}

TEST_F(Checkpoints, layer_numbers_out_of_range_are_usage_errors) {
  const Checkpoint model = open(two_layers());
  for (const std::int64_t i : {std::int64_t{2}, std::int64_t{-1}, INT64_MAX, INT64_MIN}) {
    expect_error(ErrorCode::usage, {fmt::format("layer {} is out of range: the checkpoint has layers 0 to 1", i)},
                 [&] { (void)model.layer(i); });
  }
  expect_error(ErrorCode::usage, {"layer 0 is out of range: the checkpoint has no layers"},
               [&] { (void)open(testing::container("{}")).layer(0); });
}

TEST_F(Checkpoints, norms_of_every_type_become_floats) {
  EXPECT_EQ(open(with_norm("F32", bytes_of<float>({1.5F, 1e-40F}))).layer(0).norm, (std::vector<float>{1.5F, 1e-40F}));
  EXPECT_EQ(open(with_norm("BF16", bytes_of<std::uint16_t>({0x3fc0, 0x0001}))).layer(0).norm,
            (std::vector<float>{1.5F, 0x1p-133F}));
  EXPECT_EQ(open(with_norm("F16", bytes_of<std::uint16_t>({0x3e00, 0x0001}))).layer(0).norm,
            (std::vector<float>{1.5F, 0x1p-24F}));
  EXPECT_EQ(open(with_norm("F64", bytes_of<double>({1.0 / 3, 1 + 0x1p-24 + 0x1p-50}))).layer(0).norm,
            (std::vector<float>{static_cast<float>(1.0 / 3), 1 + 0x1p-23F}));
}

[[gnu::noinline]] std::vector<float> norm_in_flush_mode(const Checkpoint& model) {
  const FloatMode flush(FloatMode::kFlush);
  return model.layer(0).norm;
}

TEST_F(Checkpoints, norms_keep_denormals_whatever_the_callers_mode) {
  const Checkpoint model = open(with_norm("F64", bytes_of<double>({1e-40, 2})));
  const std::vector<float> norm = norm_in_flush_mode(model);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(norm[0]), std::bit_cast<std::uint32_t>(1e-40F));
}

TEST_F(Checkpoints, sources_outlive_the_checkpoint) {
  LayerSource layer = open(two_layers()).layer(1);
  std::filesystem::remove(path_);
  std::string row(16, '\0');
  layer.gate->read(5, 1, 0, 4, row.data());
  EXPECT_NE(row, std::string(16, '\0'));
}

TEST_F(Checkpoints, a_file_that_shrinks_while_open_is_an_io_error) {  // S64
  const Checkpoint model = open(two_layers());
  const LayerSource layer = model.layer(0);
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  expect_error(ErrorCode::io, {"weights.bin", "shorter"}, [&] { (void)model.layer(1); });
  EXPECT_NO_THROW((void)model.layer(0));
  std::filesystem::resize_file(path_, 100);
  float value = 0;
  expect_error(ErrorCode::io, {"weights.bin", "shorter"}, [&] { layer.gate->read(0, 1, 0, 1, &value); });
}

TEST_F(Checkpoints, every_truncation_is_an_error) {  // X3
  const std::string whole = SafetensorsBuilder().add_layer(0, 2, 3, "").bytes();
  EXPECT_EQ(open(whole).layers(), 1);
  for (std::size_t n = whole.size(); n-- > 0;) {
    std::filesystem::resize_file(path_, n);
    expect_error(ErrorCode::format, {"weights.bin"}, [&] { (void)Checkpoint::open(path_); });
  }
}

// All numbers a layer gives, to compare with.
std::vector<float> values(const LayerSource& layer) {
  std::vector<float> out = layer.norm;
  for (const auto& source : {layer.gate, layer.up, layer.down}) {
    const auto count = static_cast<std::size_t>(source->rows() * source->cols());
    out.resize(out.size() + count);
    source->read(0, source->rows(), 0, source->cols(), out.data() + out.size() - count);
  }
  return out;
}

TEST_F(Checkpoints, every_flipped_header_byte_is_an_error_or_changes_nothing) {  // X4
  const std::string whole = SafetensorsBuilder().add_layer(0, 2, 3, "").bytes();
  const std::vector<float> expected = values(open(whole).layer(0));
  const std::size_t header_end = 8 + static_cast<unsigned char>(whole[0]) + 256 * static_cast<unsigned char>(whole[1]);
  int same = 0;
  for (std::size_t at = 0; at < header_end; ++at) {
    for (const int change : {1, 2, 4, 8, 16, 32, 64, 128}) {
      testing::change_byte(path_, at, static_cast<char>(whole[at] ^ change));
      try {
        const Checkpoint model = Checkpoint::open(path_);
        if (model.layers() == 0) continue;  // never: one of four names is changed at most
        EXPECT_EQ(values(model.layer(0)), expected) << "byte " << at << " ^ " << change;
        ++same;
      } catch (const Error& error) {
        EXPECT_NE(error.code(), ErrorCode::internal) << error.text();
      }
    }
    testing::change_byte(path_, at, whole[at]);
  }
  EXPECT_LT(same, 20);
}

TEST_F(Checkpoints, other_writers_files_open_without_layers) {
  SWIGLU_NEEDS_TEST_DATA();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(test_data() / "safetensors")) {
    if (!entry.is_regular_file()) continue;
    const Checkpoint model = Checkpoint::open(entry.path());
    EXPECT_EQ(model.layers(), 0) << entry.path();
    EXPECT_EQ(model.notes().size(), 1U) << entry.path();
  }
}

}  // namespace
}  // namespace swiglu
