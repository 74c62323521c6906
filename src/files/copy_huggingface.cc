// A whole Hugging Face model in another number of safetensors files: every tensor with its type's name, shape and
// bytes, the files' metadata, and what else lies in the folder: configuration, tokenizer, texts.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "files/copy.h"
#include "files/json.h"
#include "files/target.h"
#include "files/tensor_stream.h"

namespace swiglu::files {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;     // what readers accept
constexpr std::uint64_t kMaxSideFile = 100'000'000;  // tokenizers have a few dozen MB at most

using Metadata = std::map<std::string, std::string>;

/// By name, over all files.
std::vector<CopiedTensor> read_all(const CopyJob& job) {
  TensorTable all;
  for (const auto& file : job.files) {
    TensorTable table = read_safetensors(file);
    while (!table.empty()) {
      const auto added = all.insert(table.extract(table.begin()));
      if (added.inserted) continue;
      throw Error(ErrorCode::format,
                  fmt::format("{}: tensor {} is also in {}", escaped(file->name()), escaped(added.node.key()),
                              escaped(added.position->second.file->path().filename().string())));
    }
  }
  std::vector<CopiedTensor> tensors;
  tensors.reserve(all.size());
  for (auto& [name, stored] : all) tensors.push_back({name, std::move(stored)});
  return tensors;
}

/// Of all files; where they differ, the first one's.
Metadata read_metadata(const CopyJob& job) {
  Metadata all;
  for (const auto& file : job.files) all.merge(read_safetensors_metadata(file));
  return all;
}

/// What readers that map the file want a tensor's place to be a multiple of, the size of an element.
std::uint64_t alignment(const StoredTensor& tensor) {
  if (tensor.bytes == 0) return std::numeric_limits<std::uint64_t>::max();  // takes no room wherever it stands
  std::uint64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) elements *= static_cast<std::uint64_t>(extent);
  return tensor.bytes / elements;
}

/// The length and the JSON text in front of the tensors, which follow in the given order.
std::string header(const std::vector<CopiedTensor>& tensors, const Metadata& metadata) {
  std::string json = "{";
  const char* comma = "";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      json += fmt::format("{}{}:{}", std::exchange(comma, ","), json_string(key), json_string(value));
    }
    json += '}';
  }
  std::uint64_t begin = 0;
  for (const auto& [name, stored] : tensors) {
    json +=
        fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", std::exchange(comma, ","),
                    json_string(name), stored.dtype_name, fmt::join(stored.shape, ","), begin, begin + stored.bytes);
    begin += stored.bytes;
  }
  const std::string text = safetensors_header(json + '}');
  if (text.size() - 8 > kMaxHeader) {
    throw Error(ErrorCode::usage, fmt::format("the names of {} tensors do not fit the header of one "
                                              "safetensors file; expected more shards",
                                              tensors.size()));
  }
  return text;
}

std::string index(const std::map<std::string, std::string>& file_of, const Metadata& metadata, std::uint64_t total) {
  std::string json = "{\n  \"metadata\": {\n";
  // A model without attention says so here too, as where it was written first.
  constexpr const char* kTensors = "swiglu.tensors";
  if (const auto found = metadata.find(kTensors); found != metadata.end()) {
    json += fmt::format("    \"{}\": {},\n", kTensors, json_string(found->second));
  }
  json += fmt::format("    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total);
  const char* separator = "\n";
  for (const auto& [tensor, file] : file_of) {
    json += fmt::format("{}    {}: \"{}\"", std::exchange(separator, ",\n"), json_string(tensor), file);
  }
  return json + "\n  }\n}\n";
}

/// Weights in whatever form, and the indexes of such files: another copy of what is written, or stale beside it.
bool is_weights(std::string_view name) {
  constexpr std::array<std::string_view, 9> kEnds = {".safetensors", ".index.json", ".pth", ".pt",    ".gguf",
                                                     ".h5",          ".msgpack",    ".ot",  ".swiglu"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return name.ends_with(end); }) ||
         (name.starts_with("pytorch_model") && name.ends_with(".bin"));
}

/// The folder's other files, config.json last: a folder that has one is complete.
std::vector<std::shared_ptr<const File>> side_files(const CopyJob& job, std::vector<std::string>& notes) {
  std::vector<std::filesystem::path> paths;
  if (job.folder.empty()) return {};
  std::error_code error;
  std::filesystem::directory_iterator entry(job.folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;  // a link to nothing is no file
    if (!entry->is_regular_file(ignored) || is_weights(entry->path().filename().string())) continue;
    paths.push_back(entry->path());
  }
  if (error) {
    throw Error(ErrorCode::io,
                fmt::format("{}: cannot list the folder: {}", escaped(job.folder.string()), error.message()));
  }
  std::sort(paths.begin(), paths.end(), [](const auto& a, const auto& b) {
    return std::pair(a.filename() == "config.json", a) < std::pair(b.filename() == "config.json", b);
  });
  std::vector<std::shared_ptr<const File>> files;
  for (const auto& path : paths) {
    auto file = std::make_shared<const File>(path);
    const std::string name = escaped(path.filename().string());
    if (file->size() > kMaxSideFile) {
      notes.push_back(fmt::format("{} is not copied: {} bytes, more than {}", name, file->size(), kMaxSideFile));
      continue;
    }
    std::error_code ignored;
    if (std::filesystem::exists(std::filesystem::symlink_status(job.target / path.filename(), ignored))) {
      throw Error(ErrorCode::usage, fmt::format("{} exists already; expected a new or empty folder",
                                                escaped((job.target / path.filename()).string())));
    }
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

WrittenCheckpoint copy_huggingface(const CopyJob& job) {
  check_new_folder(job.target);
  WrittenCheckpoint written;
  const Metadata metadata = read_metadata(job);
  const auto beside = side_files(job, written.notes);
  std::vector<std::vector<CopiedTensor>> shards =
      cut_into_files(read_all(job), job.shards, [](const CopiedTensor& tensor) { return tensor.stored.bytes; });
  std::vector<std::string> headers;
  std::uint64_t tensor_bytes = 0;
  for (std::vector<CopiedTensor>& shard : shards) {
    // By name; where types differ, wide elements first, so that each lies at a multiple of its size.
    std::sort(shard.begin(), shard.end(), [](const auto& a, const auto& b) {
      const std::uint64_t left = alignment(a.stored), right = alignment(b.stored);
      return left != right ? left > right : a.name < b.name;
    });
    headers.push_back(header(shard, metadata));
    for (const auto& [name, stored] : shard) tensor_bytes += stored.bytes;
  }
  std::uint64_t total = tensor_bytes;
  for (const auto& file : beside) total += file->size();

  RawStream stream(job, total);
  OutputFolder folder(job.target);
  std::map<std::string, std::string> file_of;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = weight_file_name("model", i, shards.size(), "safetensors");
    folder.add(name, [&](OutputFile& file) {
      file.write(headers[i]);
      for (const auto& tensor : shards[i]) {
        stream.append(file, *tensor.stored.file, tensor.stored.offset, tensor.stored.bytes);
      }
    });
    for (const auto& tensor : shards[i]) file_of.emplace(tensor.name, name);
  }
  if (shards.size() > 1) {
    folder.add("model.safetensors.index.json",
               [&](OutputFile& file) { file.write(index(file_of, metadata, tensor_bytes)); });
  }
  for (const auto& from : beside) {
    folder.add(from->path().filename().string(),
               [&](OutputFile& file) { stream.append(file, *from, 0, from->size()); });
  }
  folder.keep();
  written.bytes = static_cast<std::int64_t>(tensor_bytes);
  return written;
}

}  // namespace swiglu::files
