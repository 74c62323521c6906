// PyTorch files in other layouts: Llama 4's stacked matrices in shards, Meta's 8-bit weights with their scales in
// files of their own, and Hugging Face names in pytorch_model.bin, alone and behind an index.
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "files/checkpoint.h"
#include "files/torch_file.h"
#include "support/counted.h"

namespace swiglu::testing {
namespace {

constexpr std::int64_t kDim = 4;
constexpr std::int64_t kShare = 3;

float value(int role, std::int64_t row, std::int64_t col) {
  return static_cast<float>((role * 64 + row) * 64 + col) / 8;
}
std::vector<float> block(int role, std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols) {
  std::vector<float> out;
  for (std::int64_t r = row0; r < row0 + rows; ++r) {
    for (std::int64_t c = col0; c < col0 + cols; ++c) out.push_back(value(role, r, c));
  }
  return out;
}

void expect_matrix(const TensorSource& source, int role) {
  ASSERT_EQ(source.dtype(), DType::f32);
  std::vector<float> values(static_cast<std::size_t>(source.rows() * source.cols()));
  source.read(0, source.rows(), 0, source.cols(), values.data());
  EXPECT_EQ(values, block(role, 0, source.rows(), 0, source.cols()));
}
void expect_layer(const LayerSource& layer) {
  expect_matrix(*layer.gate, 0);
  expect_matrix(*layer.up, 1);
  expect_matrix(*layer.down, 2);
  EXPECT_EQ(layer.norm, block(3, 0, 1, 0, kDim));
}

TEST(MetaVariants, stacked_matrices_are_taken_apart_in_each_shard) {  // M19
  for (const std::int64_t shards : {1, 2, 5}) {
    for (const char* at : {"layers.0.feed_forward.mlp.", "layers.0.mlp."}) {
      TemporaryFolder folder;
      write_file(folder / "params.json",
                 fmt::format(R"({{"dim": 4, "n_layers": 1, "norm_eps": 1e-5, "hidden_dim": {}}})", kShare * shards));
      for (std::int64_t i = 0; i < shards; ++i) {
        auto both = block(0, i * kShare, kShare, 0, kDim);
        const auto up = block(1, i * kShare, kShare, 0, kDim);
        both.insert(both.end(), up.begin(), up.end());
        const std::string name = at;
        const std::string norm = name == "layers.0.mlp." ? "layers.0.ffn_norm.weight" : name + "layer_norm_weight";
        write_file(folder / fmt::format("consolidated.{:02}.pth", i),
                   torch_bytes({{name + "fc1_weight", {2 * kShare, kDim}, both},
                                {name + "fc2_weight", {kDim, kShare}, block(2, 0, kDim, i * kShare, kShare)},
                                {norm, {kDim}, block(3, 0, 1, 0, kDim)}}));
      }
      const Checkpoint model = Checkpoint::open(folder.path());
      EXPECT_EQ(model.config().hidden, kShare * shards);
      expect_layer(model.layer(0));
    }
  }
}

TEST(MetaVariants, a_stack_of_another_size_is_refused) {
  TemporaryFolder folder;
  write_file(folder / "params.json", R"({"dim": 4, "n_layers": 1, "norm_eps": 1e-5, "hidden_dim": 3})");
  write_file(folder / "consolidated.00.pth",
             torch_bytes({{"layers.0.mlp.fc1_weight", {2 * kShare + 1, kDim}, block(0, 0, 2 * kShare + 1, 0, kDim)},
                          {"layers.0.mlp.fc2_weight", {kDim, kShare}, block(2, 0, kDim, 0, kShare)},
                          {"layers.0.ffn_norm.weight", {kDim}, block(3, 0, 1, 0, kDim)}}));
  expect_error(ErrorCode::shape, {"consolidated.00.pth", "fc1_weight", "[6, 4], gate over up", "[7, 4]"},
               [&] { (void)Checkpoint::open(folder.path()); });
}

// ---- 8-bit floats

namespace p = pickled;

// A tensor in untyped bytes, as torch.save writes 8-bit floats.
std::string eight_bit(const std::string& key, const std::vector<std::int64_t>& shape) {
  const std::string storage = p::tuple({p::text("storage"), p::global("torch.storage", "UntypedStorage"), p::text(key),
                                        p::text("cpu"), p::number(shape[0] * shape[1])}) +
                              "Q";
  return p::call(p::global("torch._utils", "_rebuild_tensor_v3"),
                 p::tuple({storage, p::number(0), p::numbers(shape), p::numbers({shape[1], 1}), "\x89",
                           p::ordered_dict(), p::global("torch", "float8_e4m3fn")}));
}

TEST(MetaVariants, eight_bit_weights_have_their_scales_in_files_of_each_rank) {  // M16
  constexpr std::int64_t kRanks = 2;
  const auto code = [](int role, std::int64_t rank, std::int64_t i) {
    return static_cast<int>((i * 5 + role * 30 + rank * 7) % 0x7f);
  };
  const auto scale = [](int role, std::int64_t rank, std::int64_t row) {
    return 0.3F + static_cast<float>((role * 8 + rank) * 8 + row) / 16;
  };
  const auto e4m3 = [](int c) { return c < 8 ? std::ldexp(c, -9) : std::ldexp(8 + c % 8, c / 8 - 10); };
  TemporaryFolder folder;
  write_file(folder / "params.json", R"({"dim": 4, "n_layers": 1, "norm_eps": 1e-5, "hidden_dim": 6})");
  constexpr std::array<const char*, 3> kNames = {"w1", "w3", "w2"};
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    std::vector<std::pair<std::string, std::string>> pairs;
    std::vector<std::string> storages;
    std::vector<FloatTensor> factors;
    for (int role = 0; role < 3; ++role) {
      const std::vector<std::int64_t> shape =
          role == 2 ? std::vector<std::int64_t>{kDim, kShare} : std::vector<std::int64_t>{kShare, kDim};
      const char* name = kNames[static_cast<std::size_t>(role)];
      std::string bytes;
      for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i) bytes += static_cast<char>(code(role, rank, i));
      pairs.emplace_back(fmt::format("layers.0.feed_forward.{}.weight", name),
                         eight_bit(std::to_string(storages.size()), shape));
      storages.push_back(bytes);
      FloatTensor factor{fmt::format("0_feed_forward.{}_{}", name, rank), {shape[0], 1}, {}};
      if (role == 1) factor.shape = {shape[0]};
      for (std::int64_t r = 0; r < shape[0]; ++r) factor.values.push_back(scale(role, rank, r));
      factors.push_back(factor);
    }
    const auto norm = block(3, 0, 1, 0, kDim);
    pairs.emplace_back("layers.0.ffn_norm.weight",
                       p::tensor(p::storage(std::to_string(storages.size()), kDim), 0, {kDim}, {1}));
    storages.emplace_back(reinterpret_cast<const char*>(norm.data()), norm.size() * sizeof(float));
    write_file(folder / fmt::format("consolidated.{:02}.pth", rank),
               zip_bytes(torch_parts(p::whole(p::dict(pairs)), storages)));
    if (rank == 0) {
      expect_error(ErrorCode::unsupported, {"fp8_scales"}, [&] {
        OpenOptions narrow;
        narrow.hidden = kShare;
        (void)Checkpoint::open(folder.path(), narrow);
      });
    }
    write_file(folder / fmt::format("fp8_scales_{}.pt", rank), torch_bytes(factors));
  }
  expect_every_read_is_counted(folder.path());
  const LayerSource layer = Checkpoint::open(folder.path()).layer(0);
  for (int role = 0; role < 3; ++role) {
    const TensorSource& source = role == 0 ? *layer.gate : role == 1 ? *layer.up : *layer.down;
    std::vector<float> values(static_cast<std::size_t>(source.rows() * source.cols()));
    source.read(0, source.rows(), 0, source.cols(), values.data());
    for (std::int64_t r = 0; r < source.rows(); ++r) {
      for (std::int64_t c = 0; c < source.cols(); ++c) {
        const std::int64_t rank = (role == 2 ? c : r) / kShare;
        const std::int64_t i = role == 2 ? r * kShare + c % kShare : (r % kShare) * kDim + c;
        const float factor = scale(role, rank, role == 2 ? r : r % kShare);
        EXPECT_EQ(values[static_cast<std::size_t>(r * source.cols() + c)],
                  static_cast<float>(e4m3(code(role, rank, i)) * static_cast<double>(factor)))
            << role << ' ' << r << ' ' << c;
      }
    }
  }
}

// ---- pytorch_model.bin

const char* const kConfig = R"({"model_type": "llama", "hidden_size": 4, "intermediate_size": 3, "hidden_act": "silu",
  "num_hidden_layers": 1, "rms_norm_eps": 1e-5})";

std::vector<FloatTensor> hugging_face() {
  const std::string at = "model.layers.0.";
  return {{at + "mlp.gate_proj.weight", {kShare, kDim}, block(0, 0, kShare, 0, kDim)},
          {at + "mlp.up_proj.weight", {kShare, kDim}, block(1, 0, kShare, 0, kDim)},
          {at + "mlp.down_proj.weight", {kDim, kShare}, block(2, 0, kDim, 0, kShare)},
          {at + "post_attention_layernorm.weight", {kDim}, block(3, 0, 1, 0, kDim)}};
}

TEST(PytorchModelBin, is_read_where_there_are_no_safetensors) {
  TemporaryFolder folder;
  write_file(folder / "config.json", kConfig);
  write_file(folder / "pytorch_model.bin", torch_bytes(hugging_face()));
  const Checkpoint model = Checkpoint::open(folder.path());
  EXPECT_EQ(model.format(), "huggingface");
  expect_layer(model.layer(0));
  model.check_payloads();
  expect_layer(Checkpoint::open(folder / "pytorch_model.bin").layer(0));
}

TEST(PytorchModelBin, may_be_several_behind_an_index) {
  TemporaryFolder folder;
  write_file(folder / "config.json", kConfig);
  const auto tensors = hugging_face();
  write_file(folder / "a.bin", torch_bytes({tensors[0], tensors[3]}));
  write_file(folder / "b.bin", torch_bytes({tensors[1], tensors[2]}));
  write_file(folder / "pytorch_model.bin.index.json",
             fmt::format(R"({{"weight_map": {{"{}": "a.bin", "{}": "b.bin", "{}": "b.bin", "{}": "a.bin"}}}})",
                         tensors[0].name, tensors[1].name, tensors[2].name, tensors[3].name));
  const Checkpoint model = Checkpoint::open(folder.path());
  EXPECT_EQ(model.shards(), 2);
  expect_layer(model.layer(0));
  expect_every_read_is_counted(folder.path());
  std::filesystem::remove(folder / "b.bin");
  expect_error(ErrorCode::not_found, {"pytorch_model.bin.index.json", "b.bin is missing"},
               [&] { (void)Checkpoint::open(folder.path()); });
}

}  // namespace
}  // namespace swiglu::testing
