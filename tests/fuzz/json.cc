// Fuzz target: everything that reads JSON files: the parser by both rules, config.json, params.json, and the
// index of a sharded folder whose other files are sound.
#include <cmath>
#include <fstream>

#include "files/checkpoint.h"
#include "files/config.h"
#include "files/json.h"
#include "files/params.h"
#include "fuzz/fuzz.h"

using namespace swiglu;

namespace {

/// A folder with config.json and one shard; the index is a link to a file in memory.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / ("swiglu-fuzz-" + std::string(6, 'X'))).string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
    std::ofstream(path_ / "config.json")
        << R"({"model_type":"llama","hidden_size":2,"intermediate_size":2,"num_hidden_layers":1,)"
           R"("rms_norm_eps":1e-5,"hidden_act":"silu"})";
    const std::string header =
        R"({"model.layers.0.mlp.gate_proj.weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
        R"("model.layers.0.mlp.up_proj.weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},)"
        R"("model.layers.0.mlp.down_proj.weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[16,24]},)"
        R"("model.layers.0.post_attention_layernorm.weight":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]}})";
    std::ofstream(path_ / "a.safetensors", std::ios::binary)
        << fuzz::little(header.size(), 8) << header << std::string(28, '\0');
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& with_index(const fuzz::MemoryFile& file) const {
    const std::filesystem::path index = path_ / "model.safetensors.index.json";
    std::filesystem::remove(index);
    std::filesystem::create_symlink(file.path(), index);
    return path_;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  for (const bool python : {false, true}) {
    fuzz::read([&] {
      files::JsonRules rules;
      rules.leading_space = python;
      rules.python_constants = python;
      const files::Json root = files::read_json(*file.open(), rules, 1 << 20);
      (void)root.describe();
      fuzz::read([&] { (void)files::read_params(root, "params.json"); });
    });
  }
  fuzz::read([&] {
    const files::ModelConfig config = files::read_config(*file.open(), {});
    if (config.ffn.dim <= 0 || config.ffn.hidden <= 0 || !std::isfinite(config.ffn.eps)) {
      fuzz::finding("a configuration of no layer was accepted");
    }
  });
  fuzz::read([&] {
    const files::Contents contents = files::open_huggingface(folder.with_index(file), {});
    for (const files::LayerParts& layer : contents.layers) {
      for (const auto& source : {layer.gate, layer.up, layer.down, layer.norm}) fuzz::walk(*source);
    }
  });
  return 0;
}
