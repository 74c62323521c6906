// GGUF files as they are written, read back by an independent reading of the bytes; the quantizers against ggml's own
// blocks and blocks worked out by hand; conversions between element types.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "base/dtype.h"
#include "files/conversion.h"
#include "files/quantize.h"
#include "support/data.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace {

namespace fs = std::filesystem;

std::string get(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Tensor {
  std::vector<std::uint64_t> ne;
  std::uint64_t type = 0;
  std::string bytes;
};
struct Gguf {
  std::map<std::string, std::variant<std::uint64_t, std::string>> keys;  ///< f32 as its bits
  std::map<std::string, std::uint64_t> key_types;
  std::map<std::string, Tensor> tensors;
};

// Front to back, as docs of the format say; at() throws where bytes are missing.
Gguf parse(const std::string& file) {
  std::size_t at = 0;
  const auto number = [&](std::size_t width) {
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(file.at(at + i));
    at += width;
    return value;
  };
  const auto text = [&] {
    const auto length = static_cast<std::size_t>(number(8));
    std::string out = file.substr(at, length);
    at += length;
    return out;
  };
  Gguf out;
  EXPECT_EQ(file.substr(0, 4), "GGUF");
  at = 4;
  EXPECT_EQ(number(4), 3U);
  const std::uint64_t tensors = number(8);
  const std::uint64_t pairs = number(8);
  const std::map<std::uint64_t, std::size_t> widths = {{2, 2}, {4, 4}, {5, 4}, {6, 4}};
  for (std::uint64_t i = 0; i < pairs; ++i) {
    const std::string key = text();
    const std::uint64_t type = number(4);
    EXPECT_TRUE(out.key_types.emplace(key, type).second) << key;
    if (type == 8) {
      out.keys[key] = text();
    } else {
      out.keys[key] = number(widths.at(type));
    }
  }
  std::map<std::string, std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const std::string name = text();
    Tensor tensor;
    for (std::uint64_t n = number(4); n > 0; --n) tensor.ne.push_back(number(8));
    tensor.type = number(4);
    offsets[name] = number(8);
    EXPECT_TRUE(out.tensors.emplace(name, tensor).second) << name;
  }
  const std::size_t data = (at + 31) / 32 * 32;
  const std::map<std::uint64_t, std::pair<std::size_t, std::size_t>> types = {
      {0, {1, 4}}, {1, {1, 2}}, {2, {32, 18}}, {8, {32, 34}}, {30, {1, 2}}};
  std::size_t end = 0;  // the last byte of padding
  for (auto& [name, tensor] : out.tensors) {
    const auto [block, bytes] = types.at(tensor.type);
    std::size_t size = static_cast<std::size_t>(tensor.ne.at(0)) / block * bytes;
    if (tensor.ne.size() > 1) size *= static_cast<std::size_t>(tensor.ne[1]);
    const auto offset = static_cast<std::size_t>(offsets[name]);
    EXPECT_EQ(offset % 32, 0U);
    tensor.bytes = file.substr(data + offset, size);
    EXPECT_EQ(tensor.bytes.size(), size);
    end = std::max(end, offset + (size + 31) / 32 * 32);
  }
  EXPECT_EQ(data + end, file.size());
  return out;
}

struct WriteGguf : ::testing::Test {
  testing::TemporaryFolder scratch;
  fs::path folder = scratch / "model";

  static CheckpointRecipe recipe(DType dtype = DType::bf16, int shards = 1) {
    CheckpointRecipe out;
    out.format = CheckpointFormat::gguf;
    out.config = {.dim = 64, .hidden = 36, .eps = 1e-5};
    out.layers = 12;
    out.shards = shards;
    out.dtype = dtype;
    return out;
  }
  static std::string expected(const CheckpointRecipe& r, DType dtype, std::int64_t layer, const std::string& role,
                              std::int64_t rows, std::int64_t cols) {
    std::string out(static_cast<std::size_t>(rows * cols * size_of(dtype)), '\0');
    random_weights(r.config, dtype, 9)(layer, role, 0, rows, 0, cols, out.data());
    return out;
  }
  static WrittenCheckpoint write(const fs::path& path, const CheckpointRecipe& r) {
    return write_checkpoint(path, r, random_weights(r.config, r.dtype, 9));
  }
};

TEST_F(WriteGguf, has_every_tensor_in_its_type_and_one_file_or_several) {
  for (const auto& [dtype, id] : {std::pair{DType::f32, 0U}, {DType::bf16, 30U}, {DType::f16, 1U}}) {
    for (const int shards : {1, 2, 48}) {
      SCOPED_TRACE(fmt::format("{} in {} files", name_of(dtype), shards));
      fs::remove_all(folder);
      const CheckpointRecipe r = recipe(dtype, shards);
      EXPECT_TRUE(write(folder, r).notes.empty());
      std::size_t found = 0;
      for (int s = 0; s < shards; ++s) {
        const Gguf file =
            parse(get(folder / (shards == 1 ? "model.gguf" : fmt::format("model-{:05}-of-{:05}.gguf", s + 1, shards))));
        EXPECT_EQ(file.keys.contains("general.architecture"), s == 0);
        EXPECT_EQ(file.keys.contains("split.no"), shards > 1);
        if (shards > 1) {
          EXPECT_EQ(std::get<0>(file.keys.at("split.no")), static_cast<unsigned>(s));
          EXPECT_EQ(std::get<0>(file.keys.at("split.count")), static_cast<unsigned>(shards));
          EXPECT_EQ(std::get<0>(file.keys.at("split.tensors.count")), 48U);
          EXPECT_EQ(file.key_types.at("split.no"), 2U);
          EXPECT_EQ(file.key_types.at("split.count"), 2U);
          EXPECT_EQ(file.key_types.at("split.tensors.count"), 5U);
        }
        EXPECT_FALSE(file.tensors.empty());
        for (const auto& [name, tensor] : file.tensors) {
          ASSERT_EQ(name.substr(0, 4), "blk.");
          const std::size_t dot = name.find('.', 4);
          const std::string role = name.substr(dot + 5, name.size() - dot - 12);
          EXPECT_EQ(name, fmt::format("blk.{}.ffn_{}.weight", std::stoi(name.substr(4)), role));
          const auto rows = role == "down" ? r.config.dim : role == "norm" ? 1 : r.config.hidden;
          const auto cols = role == "down" ? r.config.hidden : r.config.dim;
          std::vector<std::uint64_t> ne = {static_cast<std::uint64_t>(cols)};
          if (role != "norm") ne.push_back(static_cast<std::uint64_t>(rows));
          EXPECT_EQ(tensor.ne, ne) << name;
          EXPECT_EQ(tensor.type, role == "norm" ? 0U : id);
          std::string right = expected(r, dtype, std::stoi(name.substr(4)), role, rows, cols);
          if (role == "norm" && dtype != DType::f32) {
            std::string wide;
            for (std::int64_t i = 0; i < cols; ++i) {
              const auto value = static_cast<float>(load_double(right.data(), dtype, i));
              wide.append(reinterpret_cast<const char*>(&value), 4);
            }
            right = wide;
          }
          EXPECT_TRUE(tensor.bytes == right) << name;
          ++found;
        }
      }
      EXPECT_EQ(found, 48U);
    }
  }
}

TEST_F(WriteGguf, keys_are_those_that_readers_ask_for) {
  CheckpointRecipe r = recipe();
  r.name = "Tiny";
  write(folder, r);
  const Gguf file = parse(get(folder / "model.gguf"));
  const auto is = [&](const std::string& key, std::uint64_t type,
                      const std::variant<std::uint64_t, std::string>& value) {
    ASSERT_TRUE(file.keys.contains(key)) << key;
    EXPECT_EQ(file.key_types.at(key), type) << key;
    EXPECT_TRUE(file.keys.at(key) == value) << key;
  };
  is("general.architecture", 8, "llama");
  is("general.type", 8, "model");
  is("general.name", 8, "Tiny");
  is("general.file_type", 4, 32U);
  is("swiglu.tensors", 8, "feed-forward only");
  is("llama.block_count", 4, 12U);
  is("llama.context_length", 4, 8192U);
  is("llama.embedding_length", 4, 64U);
  is("llama.feed_forward_length", 4, 36U);
  is("llama.attention.head_count", 4, 1U);
  is("llama.attention.head_count_kv", 4, 1U);
  is("llama.rope.dimension_count", 4, 64U);
  is("llama.vocab_size", 4, 128256U);
  is("llama.attention.layer_norm_rms_epsilon", 6, 0x3727c5acU);
  is("llama.rope.freq_base", 6, std::bit_cast<std::uint32_t>(500000.0F));
  EXPECT_EQ(file.keys.size(), 15U);
}

TEST_F(WriteGguf, rows_that_are_no_whole_blocks_become_f16_with_a_note) {
  CheckpointRecipe r = recipe(DType::f32);
  for (const auto& [type, id, size] : {std::tuple{TensorType::q8_0, 8U, 34U}, {TensorType::q4_0, 2U, 18U}}) {
    fs::remove_all(folder);
    r.type = type;
    const WrittenCheckpoint written = write(folder, r);
    ASSERT_EQ(written.notes.size(), 1U);
    EXPECT_EQ(written.notes[0],
              fmt::format("down: rows of 36 elements are no multiple of 32: f16 instead of {}", name_of(type)));
    const Gguf file = parse(get(folder / "model.gguf"));
    EXPECT_EQ(file.tensors.at("blk.3.ffn_gate.weight").type, id);
    EXPECT_EQ(file.tensors.at("blk.3.ffn_up.weight").type, id);
    EXPECT_EQ(file.tensors.at("blk.3.ffn_down.weight").type, 1U);
    EXPECT_EQ(file.tensors.at("blk.3.ffn_norm.weight").type, 0U);
    EXPECT_EQ(std::get<0>(file.keys.at("general.quantization_version")), 2U);
    EXPECT_EQ(std::get<0>(file.keys.at("general.file_type")), id == 8 ? 7U : 2U);
    EXPECT_EQ(written.bytes, 12 * (2 * 36 * 2 * std::int64_t{size} + 36 * 64 * 2 + 64 * 4));
    EXPECT_EQ(written.overflowed, 0);
  }
}

TEST_F(WriteGguf, f64_becomes_f32_rounded_once) {
  CheckpointRecipe r = recipe(DType::f64);
  const WrittenCheckpoint written = write(folder, r);
  EXPECT_EQ(written.notes.size(), 4U);  // one for each role
  const Gguf file = parse(get(folder / "model.gguf"));
  EXPECT_EQ(file.tensors.at("blk.0.ffn_down.weight").type, 0U);
  EXPECT_TRUE(file.tensors.at("blk.0.ffn_down.weight").bytes == expected(r, DType::f32, 0, "down", 64, 36));
}

TEST_F(WriteGguf, a_path_that_ends_in_gguf_is_the_file) {
  write(scratch / "a/b/one.gguf", recipe());
  EXPECT_EQ(parse(get(scratch / "a/b/one.gguf")).tensors.size(), 48U);
  const auto refused = [&](const fs::path& path, const CheckpointRecipe& r, const char* words) {
    try {
      write(path, r);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_NE(e.text().find(words), std::string::npos) << e.text();
    }
  };
  refused(scratch / "a/b/one.gguf", recipe(), "exists already");
  refused(scratch / "a/b/two.gguf", recipe(DType::bf16, 2), "2 shards do not fit one file");
  refused(scratch / "a/b", recipe(), "already holds a checkpoint (one.gguf)");
  refused(folder, recipe(DType::bf16, 49), "49 shards for 48 tensors");
  CheckpointRecipe r = recipe();
  r.format = CheckpointFormat::meta;
  r.type = TensorType::q8_0;
  refused(folder, r, "only GGUF files hold q8_0");
  EXPECT_FALSE(fs::exists(folder));
}

TEST_F(WriteGguf, what_no_block_can_hold_is_refused_and_nothing_is_left) {
  for (const auto type : {TensorType::q8_0, TensorType::q4_0}) {
    for (const float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity(), -1e38F}) {
      CheckpointRecipe r = recipe(DType::f32);
      r.type = type;
      try {
        write_checkpoint(folder, r, [&](auto, const auto& role, auto row0, auto rows, auto, auto cols, void* dst) {
          std::memset(dst, 0, static_cast<std::size_t>(rows * cols * 4));
          if (role == "up" && row0 == 0) static_cast<float*>(dst)[7 * 64 + 33] = bad;
        });
        ADD_FAILURE() << "accepted " << bad;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::unsupported);
        EXPECT_NE(e.text().find("blk.0.ffn_up.weight: elements 32 to 63 of row 7"), std::string::npos) << e.text();
      }
      EXPECT_FALSE(fs::exists(folder));
    }
  }
}

// ----------------------------------------------------------------------------------------------
// Quantizers

TEST(Quantize, gives_the_blocks_of_ggmls_quantizer) {
  SWIGLU_NEEDS_TEST_DATA();
  const fs::path data = testing::test_data() / "derived/stories260K/gguf";
  const Gguf floats = parse(get(data / "ffn.f32.gguf"));
  std::string bytes = get(data / "ffn.mixed_q8_0_q4_0_q4_1_q5_0_q5_1.gguf");
  for (const auto& [layer, type] : {std::pair{0, TensorType::q8_0}, {1, TensorType::q4_0}}) {
    for (const char* role : {"gate", "up"}) {
      const std::string source = floats.tensors.at(fmt::format("blk.{}.ffn_{}.weight", layer, role)).bytes;
      ASSERT_EQ(source.size(), 172U * 64 * 4);
      std::vector<std::byte> blocks(static_cast<std::size_t>(files::stored_bytes(type, 172 * 64)));
      const auto result = files::convert_elements(reinterpret_cast<const std::byte*>(source.data()), DType::f32,
                                                  172 * 64, blocks.data(), type);
      EXPECT_EQ(result.done, 172 * 64);
      // Data lies uncompressed and in order: the whole matrix is found at one place of the file, or not at all.
      const std::string_view found(reinterpret_cast<const char*>(blocks.data()), blocks.size());
      const std::size_t at = bytes.find(found);
      EXPECT_NE(at, std::string::npos) << layer << role;
      EXPECT_EQ(at % 32, 0U);
    }
  }
}

std::vector<float> block(std::initializer_list<float> first) {
  std::vector<float> out(first);
  out.resize(32, 0.0F);
  return out;
}
std::string bytes_of(const std::vector<float>& x,
                     std::int64_t (*quantize)(const float*, std::int64_t, std::byte*) noexcept, std::size_t size) {
  std::string out(size, '?');
  EXPECT_EQ(quantize(x.data(), 1, reinterpret_cast<std::byte*>(out.data())), 1);
  return out;
}

TEST(Quantize, q8_0_rounds_halves_away_from_zero) {
  using namespace std::string_literals;
  // amax 127: scale 1 = 0x3c00.
  const std::string out = bytes_of(block({127, -127, 0.5F, -0.5F, 1.5F, 2.5F, 0.49F}), files::quantize_q8_0, 34);
  EXPECT_EQ(out.substr(0, 9), "\x00\x3c\x7f\x81\x01\xff\x02\x03\x00"s);
  EXPECT_EQ(bytes_of(block({}), files::quantize_q8_0, 34), std::string(34, '\0'));
  // 1/scale would overflow: all zero.
  EXPECT_EQ(bytes_of(block({1e-39F, -1e-40F}), files::quantize_q8_0, 34), std::string(34, '\0'));
  // 127 * 65504 still has a finite scale; the float above 127 * 65520 - 1 has none.
  EXPECT_EQ(bytes_of(block({127.0F * 65504}), files::quantize_q8_0, 34).substr(0, 3), "\xff\x7b\x7f");
  std::string ignored(34, '\0');
  EXPECT_EQ(files::quantize_q8_0(block({127.0F * 65520}).data(), 1, reinterpret_cast<std::byte*>(ignored.data())), 0);
}

TEST(Quantize, q4_0_takes_the_sign_of_the_greatest_and_never_exceeds_15) {
  using namespace std::string_literals;
  // Greatest -8: scale 1, code = trunc(x + 8.5). 16 elements below, 16 above in the same bytes.
  std::vector<float> x = block({-8, 7, 8, 0, -0.5F, -0.51F, 0.49F});
  x[16] = 1;
  x[17] = -8;
  std::string right = "\x00\x3c"s + "\x90\x0f\x8f\x88\x88\x87\x88" + std::string(9, '\x88');
  EXPECT_EQ(bytes_of(x, files::quantize_q4_0, 18), right);
  // The first of two equally great ones counts: +8 gives the scale -1.
  x = block({8, -8});
  EXPECT_EQ(bytes_of(x, files::quantize_q4_0, 18), "\x00\xbc\x80\x8f"s + std::string(14, '\x88'));
  EXPECT_EQ(bytes_of(block({}), files::quantize_q4_0, 18), "\x00\x80"s + std::string(16, '\x88'));  // 0 / -8
  EXPECT_EQ(bytes_of(block({1e-39F}), files::quantize_q4_0, 18), "\x00\x80"s + std::string(16, '\x88'));
}

// ----------------------------------------------------------------------------------------------
// Conversions

// One element through convert_elements, as bits.
template <class From>
std::uint64_t converted(From value, DType given, TensorType type, std::int64_t* overflowed = nullptr) {
  std::uint64_t out = 0;
  const auto result = files::convert_elements(reinterpret_cast<const std::byte*>(&value), given, 1,
                                              reinterpret_cast<std::byte*>(&out), type);
  EXPECT_EQ(result.done, 1);
  if (overflowed != nullptr) *overflowed = result.overflowed;
  return out;
}

TEST(Conversion, rounds_once_to_nearest_even) {
  EXPECT_EQ(converted(1.00390625F, DType::f32, TensorType::bf16), 0x3f80U);      // halfway, to even
  EXPECT_EQ(converted(1.01171875F, DType::f32, TensorType::bf16), 0x3f82U);      // halfway, to even
  EXPECT_EQ(converted(1.0 + 0x1p-11 + 0x1p-40, DType::f64, TensorType::f16), 0x3c01U);  // through float it were 3c00
  EXPECT_EQ(converted(1.0 + 0x1p-8 + 0x1p-40, DType::f64, TensorType::bf16), 0x3f81U);
  EXPECT_EQ(converted(1.0 + 0x1p-24 + 0x1p-50, DType::f64, TensorType::f32), 0x3f800001U);
  EXPECT_EQ(converted(std::uint16_t{0x0001}, DType::bf16, TensorType::f32), 0x00010000U);  // denormals stay
  EXPECT_EQ(converted(std::uint16_t{0x0001}, DType::f16, TensorType::f32), 0x33800000U);
  EXPECT_EQ(converted(0x1p-24F, DType::f32, TensorType::f16), 0x0001U);
  EXPECT_EQ(converted(std::uint16_t{0x3f80}, DType::bf16, TensorType::f64), 0x3ff0000000000000U);
}

TEST(Conversion, nan_stays_nan_and_what_overflows_is_counted) {
  std::int64_t overflowed = -1;
  for (const TensorType type : {TensorType::bf16, TensorType::f16}) {
    const std::uint64_t inf = type == TensorType::bf16 ? 0x7f80U : 0x7c00U;
    EXPECT_GT(converted(std::bit_cast<float>(0x7f800001U), DType::f32, type, &overflowed) & 0x7fffU, inf);
    EXPECT_EQ(overflowed, 0);
    EXPECT_GT(converted(std::bit_cast<double>(0x7ff0000000000001U), DType::f64, type) & 0x7fffU, inf);
    EXPECT_EQ(converted(std::numeric_limits<float>::infinity(), DType::f32, type, &overflowed), inf);
    EXPECT_EQ(overflowed, 0);
    EXPECT_EQ(converted(-1e300, DType::f64, type, &overflowed), inf | 0x8000U);
    EXPECT_EQ(overflowed, 1);
  }
  EXPECT_EQ(converted(65519.0F, DType::f32, TensorType::f16, &overflowed), 0x7bffU);
  EXPECT_EQ(overflowed, 0);
  EXPECT_EQ(converted(65520.0F, DType::f32, TensorType::f16, &overflowed), 0x7c00U);
  EXPECT_EQ(overflowed, 1);
  EXPECT_EQ(converted(std::uint16_t{0x4780}, DType::bf16, TensorType::f16, &overflowed), 0x7c00U);  // 65536
  EXPECT_EQ(overflowed, 1);
  EXPECT_EQ(converted(1e39, DType::f64, TensorType::f32, &overflowed), 0x7f800000U);
  EXPECT_EQ(overflowed, 1);
  // The same type: not even a signalling NaN changes.
  EXPECT_EQ(converted(std::uint16_t{0x7f81}, DType::bf16, TensorType::bf16), 0x7f81U);
}

}  // namespace
}  // namespace swiglu
