// What a checkpoint holds once its headers are read, whatever its format; the formats fill it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "files/source.h"
#include "files/tensor_table.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::files {

struct Matrices {
  std::shared_ptr<const TensorSource> gate, up, down;
};

/// One layer's tensors (of a packed file only the norm), shapes and types checked against the config. A mixture has
/// Contents::experts sets of matrices, others one.
struct LayerParts : Matrices {
  std::vector<Matrices> experts;
  std::shared_ptr<const TensorSource> norm;  ///< one row of dim columns
  std::optional<Error> fault;                ///< why the layer cannot be used (collect_problems only)
};

/// What the weights were taken from: passed on, so that packed files can say it.
struct OriginFile {
  std::string name;  ///< without folder
  std::uint64_t bytes = 0;
};
struct Origin {
  std::int64_t layers = 0;  ///< of the whole model
  std::vector<OriginFile> files;
};

class PackedFile;

/// One call of Checkpoint::open: what the caller wants, and the files that are opened for it. Whatever opens a file
/// of a checkpoint does it here, so that its reads are counted.
struct Opening : OpenOptions {
  Opening(const OpenOptions& options = {}) : OpenOptions(options) {}  // implicit: the options are all there is to say
  std::shared_ptr<ReadCounter> counter = std::make_shared<ReadCounter>(0);
  [[nodiscard]] std::shared_ptr<const File> file(const std::filesystem::path& path) const {
    return std::make_shared<const File>(path, counter);
  }
};

struct Contents {
  std::string format;
  std::string family;
  FfnConfig config;
  std::int64_t experts = 0;  ///< in each layer; 0: no mixture
  std::vector<LayerParts> layers;
  std::vector<std::int64_t> numbers;  ///< of the layers; left empty for 0, 1, 2, …
  Origin origin;  ///< layers: left 0 for the number of layers here
  std::int64_t shards = 0;
  std::uint64_t size_bytes = 0;
  std::vector<TensorInfo> tensors;
  std::vector<std::string> notes;
  std::vector<std::string> problems;
  std::shared_ptr<const ReadCounter> counter;  ///< of all files that were opened
  std::vector<std::shared_ptr<const File>> archives;  ///< .pth files: their payloads carry checksums
  std::shared_ptr<const PackedFile> packed;  ///< of format "packed": its layers, in the order of `layers`
};

/// Whatever format `path`, a file or a folder, holds.
[[nodiscard]] Contents open_contents(const std::filesystem::path& path, const OpenOptions& options);

/// A folder with config.json and model.safetensors or model.safetensors.index.json.
[[nodiscard]] Contents open_huggingface(const std::filesystem::path& folder, const Opening& opening);
/// One safetensors file, with Hugging Face or Meta names and no configuration.
[[nodiscard]] Contents open_safetensors(const std::shared_ptr<const File>& file, const OpenOptions& options);
/// A folder with params.json and consolidated.NN.pth.
[[nodiscard]] Contents open_meta(const std::filesystem::path& folder, const Opening& opening);
/// One .pth file without params.json.
[[nodiscard]] Contents open_pth(const std::shared_ptr<const File>& file, const Opening& opening);

/// One GGUF file, or the first of a split set whose other files lie beside it.
[[nodiscard]] Contents open_gguf(const std::filesystem::path& path, const Opening& opening);

/// One file of packed layers.
[[nodiscard]] Contents open_packed(const std::shared_ptr<const File>& file, const OpenOptions& options);

/// "0-3, 5, 7-31", cut after a dozen ranges; numbers ascend.
[[nodiscard]] std::string ranges_text(const std::vector<std::int64_t>& numbers);

/// Adds `fault` to the problems if they are being collected, else throws it.
void report(Contents& contents, const OpenOptions& options, Error fault);

}  // namespace swiglu::files

namespace swiglu {

struct Checkpoint::Impl {
  files::Contents contents;
  std::string where;  ///< what was opened, for messages
};

}  // namespace swiglu
