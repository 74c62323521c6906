// copy_checkpoint: opens the model as any other (so what is inconsistent is refused), finds the files of its weights
// and leaves the rest to the format. Also the bytes' way from file to file.
#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/memory.h"
#include "base/text.h"
#include "files/copy.h"

namespace swiglu {

namespace files {

RawStream::RawStream(const CopyJob& job, std::uint64_t total) : job_(job), total_(total) {
  if (job_.progress) job_.progress(0, static_cast<std::int64_t>(total_));
}

void RawStream::append(OutputFile& to, const File& from, std::uint64_t offset, std::uint64_t bytes) {
  constexpr std::uint64_t kSliceBytes = std::uint64_t{4} << 20;
  while (bytes > 0) {
    const std::uint64_t count = std::min(bytes, kSliceBytes);
    slice_.resize(static_cast<std::size_t>(count));
    from.read(offset, slice_);
    to.write(slice_);
    offset += count;
    bytes -= count;
    done_ += count;
    if (job_.progress) job_.progress(static_cast<std::int64_t>(done_), static_cast<std::int64_t>(total_));
  }
}

namespace {

WrittenCheckpoint copy(const std::filesystem::path& source, CopyJob job, const OpenOptions& options) {
  constexpr int kMostShards = 65535;  // GGUF counts them so
  if (job.shards <= 0 || job.shards > kMostShards) {
    throw Error(ErrorCode::usage, fmt::format("expected 1 to {} shards, found {}", kMostShards, job.shards));
  }
  const std::string where = escaped(source.string());
  const Contents model = open_contents(source, options);
  const bool safetensors = model.format == "huggingface" || model.format == "safetensors";
  if (!safetensors && model.format != "gguf") {
    throw Error(ErrorCode::unsupported, fmt::format("{}: whole models are copied from safetensors and GGUF files, and "
                                                    "this one is of format {}; its feed-forward can be converted",
                                                    where, model.format));
  }
  if (!model.archives.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: whole models are copied from safetensors, and {} is a PyTorch file: save the model "
                            "with safetensors first, or convert its feed-forward only",
                            where, escaped(model.archives.front()->path().filename().string())));
  }
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(source, ignored);
  if (is_folder && safetensors) job.folder = source;
  for (const OriginFile& file : model.origin.files) {
    job.files.push_back(std::make_shared<const File>((is_folder ? source : source.parent_path()) / file.name));
  }
  return safetensors ? copy_huggingface(job) : copy_gguf(job);
}

}  // namespace
}  // namespace files

WrittenCheckpoint copy_checkpoint(const std::filesystem::path& source, const std::filesystem::path& target, int shards,
                                  const std::function<void(std::int64_t, std::int64_t)>& progress,
                                  const OpenOptions& options) {
  return or_no_memory(escaped(source.string()), [&] {
    return files::copy(source, {.files = {}, .folder = {}, .target = target, .shards = shards, .progress = progress},
                       options);
  });
}

}  // namespace swiglu
