// A whole GGUF model in another number of files: the keys of its first file byte for byte but for split.*, and every
// tensor as it is, at the alignment that the model has.
#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "files/blocks.h"
#include "files/copy.h"
#include "files/gguf.h"
#include "files/little_endian.h"
#include "files/target.h"
#include "files/tensor_stream.h"

namespace swiglu::files {
namespace {

constexpr std::string_view kAlignmentKey = "general.alignment";
// Padding is no more than the tensors' own up to here; the format names no limit, and models have 32.
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 16;

std::uint64_t aligned(std::uint64_t bytes, std::uint64_t alignment) noexcept {
  return (bytes + alignment - 1) / alignment * alignment;
}

std::string padding(std::uint64_t bytes, std::uint64_t alignment) {
  return std::string(static_cast<std::size_t>(aligned(bytes, alignment) - bytes), '\0');
}

/// Of all files, as they lie in them.
std::vector<CopiedTensor> all_tensors(std::vector<GgufFile>& parts) {
  std::vector<CopiedTensor> tensors;
  for (GgufFile& part : parts) {
    const auto first = std::ssize(tensors);
    for (auto& [name, stored] : part.tensors) tensors.push_back({name, std::move(stored)});
    std::sort(tensors.begin() + first, tensors.end(), [](const auto& a, const auto& b) {  // empty ones by name
      return std::tie(a.stored.offset, a.stored.bytes, a.name) < std::tie(b.stored.offset, b.stored.bytes, b.name);
    });
  }
  return tensors;
}

/// The pairs that a file begins with: all of the model's for the first one, else those that its layout needs.
std::vector<const GgufPair*> kept_pairs(const GgufFile& model, bool first) {
  std::vector<const GgufPair*> kept;
  for (const GgufPair& pair : model.pairs) {
    if (first ? !pair.key.starts_with("split.") : pair.key == kAlignmentKey) kept.push_back(&pair);
  }
  return kept;
}

/// Where one file of several stands among them.
std::string split_pairs(std::size_t number, std::size_t count, std::size_t tensors) {
  constexpr std::string_view kNumber = "split.no";
  constexpr std::string_view kCount = "split.count";
  constexpr std::string_view kTensors = "split.tensors.count";
  constexpr auto kU16 = static_cast<std::uint64_t>(GgufValue::u16);
  Bytes out;
  out.u64(kNumber.size()).put(kNumber).u32(kU16).u16(number);
  out.u64(kCount.size()).put(kCount).u32(kU16).u16(count);
  out.u64(kTensors.size()).put(kTensors).u32(static_cast<std::uint64_t>(GgufValue::i32)).u32(tensors);
  return out.take();
}

std::string tensor_infos(const std::vector<CopiedTensor>& tensors, std::uint64_t alignment) {
  Bytes out;
  std::uint64_t offset = 0;
  for (const auto& [name, stored] : tensors) {
    const GgufType* type = gguf_type(stored.dtype_name);
    if (type == nullptr) throw Error(ErrorCode::internal, "a type without a number");
    out.u64(name.size()).put(name).u32(stored.shape.size());
    for (auto extent = stored.shape.rbegin(); extent != stored.shape.rend(); ++extent) {
      out.u64(static_cast<std::uint64_t>(*extent));  // the fastest index first
    }
    out.u32(type->id).u64(offset);
    offset += aligned(stored.bytes, alignment);
  }
  return out.take();
}

}  // namespace

WrittenCheckpoint copy_gguf(const CopyJob& job) {
  const bool one_file = job.target.extension() == ".gguf";
  if (one_file) {
    check_new_file(job.target, job.shards);
  } else {
    check_new_folder(job.target);
  }
  std::vector<GgufFile> parts;
  parts.reserve(job.files.size());
  for (const auto& file : job.files) parts.push_back(read_gguf(file));
  std::vector<CopiedTensor> tensors = all_tensors(parts);
  const GgufFile& model = parts.front();
  if (model.alignment > kMaxAlignment) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: {}: expected at most {}, found {}", escaped(model.file->name()), kAlignmentKey,
                            kMaxAlignment, model.alignment));
  }
  const std::size_t count = tensors.size();
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error(ErrorCode::unsupported, fmt::format("{}: {} tensors are too many", escaped(model.file->name()), count));
  }
  const auto shards =
      cut_into_files(std::move(tensors), job.shards, [](const CopiedTensor& tensor) { return tensor.stored.bytes; });
  WrittenCheckpoint written;
  std::uint64_t total = 0;
  for (const auto& shard : shards) {
    for (const auto& tensor : shard) total += tensor.stored.bytes;
  }
  written.bytes = static_cast<std::int64_t>(total);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const GgufPair* pair : kept_pairs(model, i == 0)) total += pair->size;
  }

  RawStream stream(job, total);
  OutputFolder folder(!one_file ? job.target : job.target.has_parent_path() ? job.target.parent_path() : ".");
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const bool split = shards.size() > 1;
    const std::string name =
        one_file ? job.target.filename().string() : weight_file_name("model", i, shards.size(), "gguf");
    folder.add(name, [&](OutputFile& file) {
      const std::vector<const GgufPair*> pairs = kept_pairs(model, i == 0);
      file.write(Bytes().put("GGUF").u32(3).u64(shards[i].size()).u64(pairs.size() + (split ? 3 : 0)).take());
      for (const GgufPair* pair : pairs) stream.append(file, *model.file, pair->offset, pair->size);
      if (split) file.write(split_pairs(i, shards.size(), count));
      file.write(tensor_infos(shards[i], model.alignment));
      file.write(padding(file.position(), model.alignment));
      for (const auto& [tensor, stored] : shards[i]) {
        stream.append(file, *stored.file, stored.offset, stored.bytes);
        file.write(padding(stored.bytes, model.alignment));  // after the last one too: ggml asks for it
      }
    });
  }
  folder.keep();
  return written;
}

}  // namespace swiglu::files
