// Checkpoints as they are written, read back by an independent reading of the bytes: every tensor in its
// place, and shards cut where Meta cuts them.
#include <gtest/gtest.h>

#include <sys/statvfs.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "support/data.h"
#include "swiglu/files.hpp"

namespace swiglu {
namespace {

namespace fs = std::filesystem;

std::string get(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.insert(entry.path().filename().string());
  return out;
}
std::uint64_t little(std::string_view bytes, std::size_t at, std::size_t width) {
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return value;
}

struct Writers : ::testing::Test {
  testing::TemporaryFolder scratch;
  fs::path folder = scratch / "model";

  static CheckpointRecipe recipe(CheckpointFormat format, int shards, DType dtype = DType::bf16) {
    CheckpointRecipe out;
    out.format = format;
    out.config = {.dim = 20, .hidden = 36, .eps = 1e-5};
    out.layers = 12;
    out.shards = shards;
    out.dtype = dtype;
    return out;
  }
  static FillTensor fill(const CheckpointRecipe& r) { return random_weights(r.config, r.dtype, 9); }
  // The bytes that a part of a tensor must have.
  static std::string expected(const CheckpointRecipe& r, std::int64_t layer, const std::string& role, std::int64_t row0,
                              std::int64_t rows, std::int64_t col0, std::int64_t cols) {
    std::string out(static_cast<std::size_t>(rows * cols * size_of(r.dtype)), '\0');
    fill(r)(layer, role, row0, rows, col0, cols, out.data());
    return out;
  }
};

// ----------------------------------------------------------------------------------------------
// Hugging Face

const std::map<std::string, std::string> kHuggingFaceRoles = {
    {"mlp.gate_proj", "gate"}, {"mlp.up_proj", "up"}, {"mlp.down_proj", "down"}, {"post_attention_layernorm", "norm"}};

struct Entry {
  std::string dtype, shape;
  std::size_t begin = 0, end = 0;
};
// The tensors of a safetensors file, whose JSON is known to have no blanks inside.
std::map<std::string, Entry> safetensors_entries(const std::string& file, std::size_t& data) {
  const auto length = static_cast<std::size_t>(little(file, 0, 8));
  data = 8 + length;
  const std::string json = file.substr(8, length);
  std::map<std::string, Entry> out;
  for (std::size_t at = json.find("\"model."); at != std::string::npos; at = json.find("\"model.", at + 1)) {
    const std::size_t end = json.find('"', at + 1);
    const auto field = [&](const char* before, const char* after) {
      const std::size_t from = json.find(before, end) + std::strlen(before);
      return json.substr(from, json.find(after, from) - from);
    };
    const std::string offsets = field("\"data_offsets\":[", "]");
    out[json.substr(at + 1, end - at - 1)] = {field("\"dtype\":\"", "\""), field("\"shape\":[", "]"),
                                              std::stoull(offsets), std::stoull(offsets.substr(offsets.find(',') + 1))};
  }
  return out;
}

TEST_F(Writers, huggingface_has_every_tensor_in_every_type_and_shard_count) {
  const std::map<DType, std::string> types = {
      {DType::f32, "F32"}, {DType::bf16, "BF16"}, {DType::f16, "F16"}, {DType::f64, "F64"}};
  for (const auto& [dtype, type] : types) {
    for (const int shards : dtype == DType::bf16 ? std::vector{1, 2, 47, 48} : std::vector{1, 5}) {
      SCOPED_TRACE(fmt::format("{} in {} shards", type, shards));
      fs::remove_all(folder);
      const CheckpointRecipe r = recipe(CheckpointFormat::huggingface, shards, dtype);
      write_checkpoint(folder, r, fill(r));
      const std::string index = shards > 1 ? get(folder / "model.safetensors.index.json") : "";
      std::size_t found = 0;
      for (int s = 1; s <= shards; ++s) {
        const std::string name =
            shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", s, shards);
        const std::string file = get(folder / name);
        std::size_t data = 0;
        const auto entries = safetensors_entries(file, data);
        EXPECT_EQ(data % 8, 0U);
        EXPECT_NE(file.substr(0, data).find("\"swiglu.tensors\":\"feed-forward only\""), std::string::npos);
        EXPECT_FALSE(entries.empty());
        std::size_t end = 0;
        for (const auto& [tensor, entry] : entries) {  // in order of their names, without holes
          EXPECT_EQ(entry.begin, end);
          end = entry.end;
          const std::string rest = tensor.substr(std::strlen("model.layers."));
          const std::size_t dot = rest.find('.');
          const std::string role = kHuggingFaceRoles.at(rest.substr(dot + 1, rest.size() - dot - 8));
          const auto rows = role == "down" ? r.config.dim : role == "norm" ? 1 : r.config.hidden;
          const auto cols = role == "down" ? r.config.hidden : r.config.dim;
          EXPECT_EQ(entry.dtype, type);
          EXPECT_EQ(entry.shape, role == "norm" ? "20" : fmt::format("{},{}", rows, cols));
          EXPECT_TRUE(file.substr(data + entry.begin, entry.end - entry.begin) ==
                      expected(r, std::stoll(rest), role, 0, rows, 0, cols))
              << tensor;
          if (shards > 1) {
            EXPECT_NE(index.find(fmt::format("\"{}\": \"{}\"", tensor, name)), std::string::npos) << tensor;
          }
          ++found;
        }
        EXPECT_EQ(data + end, file.size());
      }
      EXPECT_EQ(found, 48U);
      EXPECT_EQ(names(folder).size(), shards == 1 ? 2U : static_cast<std::size_t>(shards) + 2);
      if (shards > 1) {
        const auto total = 12 * (3 * 20 * 36 + 20) * size_of(dtype);
        EXPECT_NE(index.find(fmt::format("\"total_size\": {}\n", total)), std::string::npos) << index;
        EXPECT_NE(index.find("\"swiglu.tensors\": \"feed-forward only\""), std::string::npos) << index;
      }
    }
  }
}

TEST_F(Writers, huggingface_shards_are_about_equally_large) {
  CheckpointRecipe r = recipe(CheckpointFormat::huggingface, 4);
  r.config = {.dim = 64, .hidden = 256, .eps = 1e-5};
  r.layers = 8;
  write_checkpoint(folder, r, fill(r));
  for (int s = 1; s <= 4; ++s) {
    const auto size = fs::file_size(folder / fmt::format("model-{:05}-of-00004.safetensors", s));
    EXPECT_NEAR(static_cast<double>(size), 8 * (3 * 64 * 256 + 64) * 2 / 4, 3000) << s;
  }
}

TEST_F(Writers, huggingface_config_says_what_the_weights_are) {
  CheckpointRecipe r = recipe(CheckpointFormat::huggingface, 1, DType::f16);
  for (const auto& [eps, text] : {std::pair{1e-5, "1e-05"},
                                  {1e-6, "1e-06"},
                                  {9.999999747378752e-06, "9.999999747378752e-06"},
                                  {0.5, "0.5"},
                                  {1.0, "1.0"},
                                  {5e-324, "5e-324"}}) {
    fs::remove_all(folder);
    r.config.eps = eps;
    write_checkpoint(folder, r, fill(r));
    const std::string config = get(folder / "config.json");
    for (const std::string& part : {std::string("\"LlamaForCausalLM\""), std::string("\"model_type\": \"llama\","),
                                    std::string("\"hidden_size\": 20,"), std::string("\"intermediate_size\": 36,"),
                                    std::string("\"num_hidden_layers\": 12,"), std::string("\"hidden_act\": \"silu\","),
                                    std::string("\"mlp_bias\": false,"), std::string("\"torch_dtype\": \"float16\""),
                                    fmt::format("\"rms_norm_eps\": {},", text)}) {
      EXPECT_NE(config.find(part), std::string::npos) << part << "\n" << config;
    }
    EXPECT_EQ(std::strtod(text, nullptr), eps);
  }
}

// ----------------------------------------------------------------------------------------------
// Meta

std::uint32_t crc_of(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int k = 0; k < 8; ++k) crc = crc >> 1 ^ (crc % 2 != 0 ? 0xedb88320U : 0U);
  }
  return ~crc;
}

// The entries of an archive without zip64 values, by its end records and central directory.
std::map<std::string, std::string> zip_entries(const std::string& file) {
  std::map<std::string, std::string> out;
  const std::size_t end = file.size() - 22;
  EXPECT_EQ(file.substr(end, 4), "PK\x05\x06");
  EXPECT_EQ(file.substr(end - 20, 4), "PK\x06\x07");
  const auto wide = static_cast<std::size_t>(little(file, end - 12, 8));
  EXPECT_EQ(file.substr(wide, 4), "PK\x06\x06");
  EXPECT_EQ(wide + 56, end - 20);
  EXPECT_EQ(little(file, wide + 32, 8), little(file, end + 10, 2));
  EXPECT_EQ(little(file, wide + 40, 8), little(file, end + 12, 4));
  EXPECT_EQ(little(file, wide + 48, 8), little(file, end + 16, 4));
  auto at = static_cast<std::size_t>(little(file, end + 16, 4));
  std::size_t previous = 0;
  for (std::uint64_t i = 0; i < little(file, end + 10, 2); ++i) {
    EXPECT_EQ(file.substr(at, 4), "PK\x01\x02");
    EXPECT_EQ(little(file, at + 10, 2), 0U);  // STORED
    const auto size = static_cast<std::size_t>(little(file, at + 24, 4));
    EXPECT_EQ(little(file, at + 20, 4), size);
    const std::string name = file.substr(at + 46, static_cast<std::size_t>(little(file, at + 28, 2)));
    const auto local = static_cast<std::size_t>(little(file, at + 42, 4));
    EXPECT_EQ(local, previous);  // entries stand back to back
    EXPECT_EQ(file.substr(local, 4), "PK\x03\x04");
    EXPECT_EQ(file.substr(local + 30, name.size()), name);
    EXPECT_EQ(file.substr(local + 30 + name.size(), 2), "FB");
    const auto extra = static_cast<std::size_t>(little(file, local + 28, 2));
    const std::size_t payload = local + 30 + name.size() + extra;
    EXPECT_EQ(payload % 64, 0U);
    const std::string bytes = file.substr(payload, size);
    EXPECT_EQ(little(file, at + 16, 4), crc_of(bytes));
    EXPECT_EQ(file.substr(payload + size, 4), "PK\x07\x08");
    EXPECT_EQ(little(file, payload + size + 4, 4), crc_of(bytes));
    EXPECT_EQ(little(file, payload + size + 8, 4), size);
    EXPECT_TRUE(out.emplace(name, bytes).second) << name;
    previous = payload + size + 16;
    at += 46 + name.size() + static_cast<std::size_t>(little(file, at + 30, 2));
  }
  EXPECT_EQ(at, wide);
  return out;
}

TEST_F(Writers, meta_shards_split_w1_and_w3_by_rows_and_w2_by_columns) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const int shards : dtype == DType::bf16 ? std::vector{1, 3, 36} : std::vector{1, 2}) {
      SCOPED_TRACE(fmt::format("{} in {} shards", name_of(dtype), shards));
      fs::remove_all(folder);
      const CheckpointRecipe r = recipe(CheckpointFormat::meta, shards, dtype);
      write_checkpoint(folder, r, fill(r));
      EXPECT_EQ(names(folder).size(), static_cast<std::size_t>(shards) + 1);
      const std::int64_t part = 36 / shards;
      for (int s = 0; s < shards; ++s) {
        const std::string root = fmt::format("consolidated.{:02}", s);
        const auto entries = zip_entries(get(folder / (root + ".pth")));
        EXPECT_EQ(entries.size(), 48U + 4);
        EXPECT_EQ(entries.at(root + "/swiglu.tensors"), "feed-forward only\n");
        EXPECT_EQ(entries.at(root + "/version"), "3\n");
        EXPECT_EQ(entries.at(root + "/byteorder"), "little");
        for (int i = 0; i < 12; ++i) {
          const auto data = [&](int k) { return entries.at(fmt::format("{}/data/{}", root, 4 * i + k)); };
          EXPECT_TRUE(data(0) == expected(r, i, "gate", s * part, part, 0, 20));
          EXPECT_TRUE(data(1) == expected(r, i, "down", 0, 20, s * part, part));
          EXPECT_TRUE(data(2) == expected(r, i, "up", s * part, part, 0, 20));
          EXPECT_TRUE(data(3) == expected(r, i, "norm", 0, 1, 0, 20));
        }
      }
    }
  }
}

TEST_F(Writers, meta_pickle_is_the_one_that_torch_loads) {
  CheckpointRecipe r = recipe(CheckpointFormat::meta, 1);
  r.config = {.dim = 300, .hidden = 255, .eps = 1e-5};
  r.layers = 1;
  write_checkpoint(folder, r, [](auto&&...) {});
  const std::string pickle = zip_entries(get(folder / "consolidated.00.pth")).at("consolidated.00/data.pkl");
  using namespace std::string_literals;
  const auto text = [](const std::string& t) { return "X"s + static_cast<char>(t.size()) + "\0\0\0"s + t; };
  const std::string dim = "M\x2c\x01"s;          // 300
  const std::string hidden = "K\xff"s;           // 255
  const std::string count = "J\xd4\x2a\x01\0"s;  // 76,500
  const std::string no_hooks = "\x89h\x04)RtR"s;
  EXPECT_EQ(pickle, "\x80\x02}("s + text("layers.0.feed_forward.w1.weight") +
                        "ctorch._utils\n_rebuild_tensor_v2\nq\0"s + "((" + text("storage") + "q\x01" +
                        "ctorch\nBFloat16Storage\nq\x02" + text("0") + text("cpu") + "q\x03" + count + "tQK\0"s +
                        hidden + dim + "\x86" + dim + "K\x01\x86\x89" + "ccollections\nOrderedDict\nq\x04)RtR" +  //
                        text("layers.0.feed_forward.w2.weight") + "h\0((h\x01h\x02"s + text("1") + "h\x03" + count +
                        "tQK\0"s + dim + hidden + "\x86" + hidden + "K\x01\x86" + no_hooks +  //
                        text("layers.0.feed_forward.w3.weight") + "h\0((h\x01h\x02"s + text("2") + "h\x03" + count +
                        "tQK\0"s + hidden + dim + "\x86" + dim + "K\x01\x86" + no_hooks +  //
                        text("layers.0.ffn_norm.weight") + "h\0((h\x01h\x02"s + text("3") + "h\x03" + dim + "tQK\0"s +
                        dim + "\x85K\x01\x85" + no_hooks + "u.");
}

TEST_F(Writers, meta_params_name_the_recipe_or_the_width) {
  CheckpointRecipe r = recipe(CheckpointFormat::meta, 1);
  const auto params = [&] {
    fs::remove_all(folder);
    write_checkpoint(folder, r, [](auto&&...) {});
    return get(folder / "params.json");
  };
  EXPECT_EQ(params(),
            "{\"dim\": 20, \"n_layers\": 12, \"n_heads\": 5, \"n_kv_heads\": 5, \"vocab_size\": 128256, "
            "\"hidden_dim\": 36, "
            "\"norm_eps\": 1e-05, \"rope_theta\": 500000.0}\n");
  r.layers = 1;
  r.config = {.dim = 1024, .hidden = ffn_width(1024, 64, 1.3), .eps = 1e-6};
  r.multiple_of = 64;
  r.multiplier = 1.3;
  EXPECT_EQ(params(),
            "{\"dim\": 1024, \"n_layers\": 1, \"n_heads\": 8, \"n_kv_heads\": 8, \"vocab_size\": 128256, "
            "\"multiple_of\": 64, "
            "\"ffn_dim_multiplier\": 1.3, \"norm_eps\": 1e-06, \"rope_theta\": 500000.0}\n");
  r.multiplier = std::nullopt;
  EXPECT_NE(params().find("\"hidden_dim\": 3584,"), std::string::npos);
  r.config.hidden = ffn_width(1024, 64);
  EXPECT_EQ(params().find("hidden_dim"), std::string::npos);
  EXPECT_EQ(params().find("ffn_dim_multiplier"), std::string::npos);
}

TEST_F(Writers, Slow_meta_files_beyond_4_GiB_have_zip64_offsets) {
  struct statvfs disk{};
  ASSERT_EQ(statvfs(scratch.path().c_str(), &disk), 0);
  if (disk.f_bavail * disk.f_frsize < (std::uint64_t{14} << 30)) GTEST_SKIP() << "needs 14 GiB of disk";
  CheckpointRecipe r = recipe(CheckpointFormat::meta, 1);
  r.config = {.dim = 64, .hidden = (1 << 25) + 1, .eps = 1e-5};  // 128 bytes more than 4 GiB each
  r.layers = 1;
  write_checkpoint(folder, r,
                   [](std::int64_t, const std::string& role, auto, std::int64_t rows, auto, std::int64_t cols,
                      void* dst) { std::memset(dst, role[0], static_cast<std::size_t>(rows * cols * 2)); });
  std::ifstream in(folder / "consolidated.00.pth", std::ios::binary);
  const std::uint64_t tensor = 128 * ((std::uint64_t{1} << 25) + 1);
  const auto size = fs::file_size(folder / "consolidated.00.pth");
  const auto bytes = [&](std::uint64_t at, std::size_t n) {
    std::string out(n, '\0');
    in.seekg(static_cast<std::streamoff>(at));
    in.read(out.data(), static_cast<std::streamsize>(n));
    return out;
  };
  const std::string tail = bytes(size - 98, 98);
  EXPECT_EQ(little(tail, 92, 4), 0xffffffffU);  // the directory's offset, in 32 bits
  const std::uint64_t directory = little(tail, 48, 8);
  const std::string entries = bytes(directory, static_cast<std::size_t>(size - directory));
  std::size_t at = 0;
  for (const char* name :
       {"data.pkl", "byteorder", "data/0", "data/1", "data/2", "data/3", "version", "swiglu.tensors"}) {
    const std::string full = fmt::format("consolidated.00/{}", name);
    ASSERT_EQ(entries.substr(at + 46, full.size()), full);
    const bool large = full.starts_with("consolidated.00/data/") && !full.ends_with('3');
    const bool far = at > 0 && (full.ends_with("/1") || full.ends_with("/2") || full.ends_with("/3") ||
                                full.ends_with("version") || full.ends_with(".tensors"));
    const auto extra = static_cast<std::size_t>(little(entries, at + 30, 2));
    EXPECT_EQ(extra, large || far ? 4U + (large ? 16U : 0U) + (far ? 8U : 0U) : 0U) << name;
    std::size_t field = at + 46 + full.size() + 4;
    if (large) {
      EXPECT_EQ(little(entries, at + 24, 4), 0xffffffffU);
      EXPECT_EQ(little(entries, field, 8), tensor);
      field += 16;
    }
    std::uint64_t offset = little(entries, at + 42, 4);
    if (far) {
      EXPECT_EQ(offset, 0xffffffffU);
      offset = little(entries, field, 8);
    }
    const std::string local = bytes(offset, 30);
    EXPECT_EQ(local.substr(0, 4), "PK\x03\x04");
    const std::uint64_t payload = offset + 30 + full.size() + little(local, 28, 2);
    EXPECT_EQ(payload % 64, 0U);
    if (large) {
      const char letter = full.ends_with("/0") ? 'g' : full.ends_with("/1") ? 'd' : 'u';
      EXPECT_EQ(bytes(payload + tensor - 8, 12), std::string(8, letter) + "PK\x07\x08");
      EXPECT_EQ(little(bytes(payload + tensor + 8, 8), 0, 8), tensor);
    }
    at += 46 + full.size() + extra;
  }
  using namespace std::string_literals;  // the number of elements as a LONG1
  EXPECT_NE(bytes(0, 1024).find("\x8a\x08\x40\0\0\x80\0\0\0\0tQ"s), std::string::npos);
}

}  // namespace
}  // namespace swiglu
