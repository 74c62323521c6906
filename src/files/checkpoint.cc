// The opened checkpoint: which format a path holds, by its content, and what the front door tells of
// it. Also how a fault is reported, which every format shares. Knows the formats by their open_ functions only.
#include "files/checkpoint.h"

#include <algorithm>
#include <numeric>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/cpu.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "base/text.h"
#include "files/packed.h"

namespace swiglu {

namespace files {
namespace {

struct FolderContents {
  bool config = false;        // config.json
  bool params = false;        // params.json
  bool safetensors = false;   // some *.safetensors, or the index of such files
  bool consolidated = false;  // some consolidated.*.pth
  bool pytorch = false;       // pytorch_model.bin, or the index of several
  std::vector<std::filesystem::path> gguf;
};

FolderContents look_into(const std::filesystem::path& folder) {
  FolderContents found;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    found.config |= name == "config.json";
    found.params |= name == "params.json";
    found.safetensors |= name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    found.consolidated |= name.starts_with("consolidated.") && name.ends_with(".pth");
    found.pytorch |= name == "pytorch_model.bin" || name == "pytorch_model.bin.index.json";
    if (name.ends_with(".gguf")) found.gguf.push_back(entries->path());
  }
  if (error) {
    throw Error(ErrorCode::io,
                fmt::format("{}: cannot list the folder: {}", escaped(folder.string()), error.message()));
  }
  return found;
}

// The one GGUF file of a folder, or the first of its one split set ("NAME-00001-of-00003.gguf").
std::filesystem::path only_gguf(const std::filesystem::path& folder, std::vector<std::filesystem::path> paths) {
  std::sort(paths.begin(), paths.end());
  const auto set_of = [](const std::filesystem::path& path) {  // "NAME-of-00003", or the name itself
    const std::string name = path.stem().string();
    constexpr std::size_t kTail = std::string_view("-00001-of-00003").size();
    const bool split = name.size() > kTail && name.compare(name.size() - 9, 4, "-of-") == 0;
    return split ? name.substr(0, name.size() - kTail) + name.substr(name.size() - 9) : name;
  };
  const auto other =
      std::find_if(paths.begin(), paths.end(), [&](const auto& path) { return set_of(path) != set_of(paths.front()); });
  if (other == paths.end()) return paths.front();
  throw Error(ErrorCode::usage,
              fmt::format("{}: expected one GGUF model in the folder, found {} and {}: open one by its own path",
                          escaped(folder.string()), escaped(paths.front().filename().string()),
                          escaped(other->filename().string())));
}

// Mistral publishes both kinds side by side; the Hugging Face files come first then, because their
// config.json says more than params.json.
Contents open_folder(const std::filesystem::path& folder, const Opening& opening) {
  const FolderContents found = look_into(folder);
  const bool meta = found.params || found.consolidated;
  if (found.safetensors && (found.config || !(found.params && found.consolidated))) {
    return open_huggingface(folder, opening);
  }
  if (meta) return open_meta(folder, opening);
  if (found.config && (found.pytorch || found.gguf.empty())) return open_huggingface(folder, opening);
  if (!found.gguf.empty()) return open_gguf(only_gguf(folder, found.gguf), opening);
  throw Error(
      ErrorCode::not_found,
      fmt::format("{}: no checkpoint in this folder: expected config.json with model.safetensors, params.json with "
                  "consolidated.00.pth, or a .gguf file",
                  escaped(folder.string())));
}

Contents open_file(const std::filesystem::path& path, const Opening& opening) {
  const auto file = opening.file(path);
  const std::string kind = describe_contents(*file);
  if (kind.starts_with("a file of packed layers")) return open_packed(file, opening);
  if (kind.starts_with("a zip") || kind.starts_with("a bare pickle") || kind.starts_with("a tar")) {
    return open_pth(file, opening);
  }
  if (kind.starts_with("a GGUF")) return open_gguf(path, opening);
  return open_safetensors(file, opening);
}

void check_options(const OpenOptions& options) {
  // A float holds eps in the sublayer; what it rounds to zero would divide by zero.
  if (options.eps && !(static_cast<float>(*options.eps) > 0 && *options.eps < 1e30)) {
    throw Error(ErrorCode::usage, fmt::format("eps: expected a small positive number, found {}", *options.eps));
  }
  if (options.hidden && *options.hidden <= 0) {
    throw Error(ErrorCode::usage, fmt::format("hidden: expected a positive number, found {}", *options.hidden));
  }
}

// Apart from its caller, which sets the floating-point mode: denormals must survive.
[[gnu::noinline]] void widen(const std::byte* stored, DType dtype, std::vector<float>& out) {
  for (std::size_t k = 0; k < out.size(); ++k) {
    const auto i = static_cast<std::int64_t>(k);
    store_double(out.data(), DType::f32, i, load_double(stored, dtype, i));
  }
}

}  // namespace

Contents open_contents(const std::filesystem::path& path, const OpenOptions& options) {
  check_options(options);
  const Opening opening(options);
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  Contents contents = folder ? open_folder(path, opening) : open_file(path, opening);
  contents.counter = opening.counter;
  return contents;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kShown = 8;
  if (shape.size() <= kShown) return fmt::format("[{}]", fmt::join(shape, ", "));
  return fmt::format("[{}, … {} dimensions]", fmt::join(shape.begin(), shape.begin() + kShown, ", "), shape.size());
}

std::string ranges_text(const std::vector<std::int64_t>& numbers) {
  constexpr int kShown = 12;
  std::string out;
  int shown = 0;
  for (std::size_t i = 0; i < numbers.size();) {
    if (shown++ == kShown) return fmt::format("{}, … ({} in all)", out, numbers.size());
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", numbers[i]);
    if (last > i) out += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return out;
}

void report(Contents& contents, const OpenOptions& options, Error fault) {
  if (!options.collect_problems) throw fault;
  contents.problems.push_back(fault.text());
}

}  // namespace files

namespace {

void check_expert(std::int64_t experts, std::optional<std::int64_t> expert) {
  if (expert && experts == 0) {
    throw Error(ErrorCode::usage, fmt::format("expert {}: the checkpoint is no mixture of experts", *expert));
  }
  if (experts > 0 && !(expert && *expert >= 0 && *expert < experts)) {
    throw Error(ErrorCode::usage,
                fmt::format("expert: expected one of 0 to {} (each layer is a mixture; --expert names one), found {}",
                            experts - 1, expert ? std::to_string(*expert) : "none"));
  }
}

}  // namespace

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::filesystem::path& path, const OpenOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->where = escaped(path.string());
  impl->contents = or_no_memory(impl->where, [&] { return files::open_contents(path, options); });
  files::Contents& contents = impl->contents;
  if (options.map && contents.packed == nullptr) {
    throw Error(ErrorCode::usage, fmt::format("{}: only files of packed layers can be mapped, and this is of format {}",
                                              escaped(path.string()), contents.format));
  }
  if (contents.origin.layers == 0) contents.origin.layers = std::ssize(contents.layers);
  if (contents.numbers.empty()) {
    contents.numbers.resize(contents.layers.size());
    std::iota(contents.numbers.begin(), contents.numbers.end(), 0);
  }
  return Checkpoint(std::move(impl));
}

const std::string& Checkpoint::format() const noexcept { return impl_->contents.format; }
const std::string& Checkpoint::family() const noexcept { return impl_->contents.family; }
std::int64_t Checkpoint::layers() const noexcept { return std::ssize(impl_->contents.layers); }
const std::vector<std::int64_t>& Checkpoint::layer_numbers() const noexcept { return impl_->contents.numbers; }
std::int64_t Checkpoint::experts() const noexcept { return impl_->contents.experts; }
const FfnConfig& Checkpoint::config() const noexcept { return impl_->contents.config; }
std::int64_t Checkpoint::shards() const noexcept { return impl_->contents.shards; }
std::uint64_t Checkpoint::size_bytes() const noexcept { return impl_->contents.size_bytes; }
std::uint64_t Checkpoint::bytes_read() const noexcept {
  return impl_->contents.counter->load(std::memory_order_relaxed);
}
const std::vector<TensorInfo>& Checkpoint::tensors() const noexcept { return impl_->contents.tensors; }
const std::vector<std::string>& Checkpoint::notes() const noexcept { return impl_->contents.notes; }
const std::vector<std::string>& Checkpoint::problems() const noexcept { return impl_->contents.problems; }

void Checkpoint::check_payloads() const {
  or_no_memory(impl_->where, [&] {
    for (const auto& archive : impl_->contents.archives) files::check_pth_payloads(archive);
    if (impl_->contents.packed) impl_->contents.packed->check();
  });
}

LayerSource Checkpoint::layer(std::int64_t i, std::optional<std::int64_t> expert) const {
  const std::vector<std::int64_t>& numbers = impl_->contents.numbers;
  const auto found = std::lower_bound(numbers.begin(), numbers.end(), i);
  if (found == numbers.end() || *found != i) {
    const bool whole = !numbers.empty() && numbers.back() == std::ssize(numbers) - 1;
    throw Error(ErrorCode::usage, fmt::format("layer {} is {}: the checkpoint has {}", i,
                                              numbers.empty() || whole ? "out of range" : "not in the file",
                                              numbers.empty() ? "no layers"
                                              : whole         ? fmt::format("layers 0 to {}", numbers.back())
                                                              : "layers " + files::ranges_text(numbers)));
  }
  const auto position = static_cast<std::size_t>(found - numbers.begin());
  const files::LayerParts& parts = impl_->contents.layers[position];
  if (parts.fault) throw *parts.fault;
  check_expert(impl_->contents.experts, expert);
  const files::Matrices& matrices = expert ? parts.experts[static_cast<std::size_t>(*expert)] : parts;
  return or_no_memory(fmt::format("{}: layer {}", impl_->where, i), [&] {
    LayerSource out;
    out.config = impl_->contents.config;
    out.gate = matrices.gate;
    out.up = matrices.up;
    out.down = matrices.down;
    out.stored_norm = parts.norm;
    if (impl_->contents.packed) out.packed = impl_->contents.packed->layer(position);
    const DType dtype = parts.norm->dtype();
    const std::int64_t dim = parts.norm->cols();
    std::vector<std::byte> stored(static_cast<std::size_t>(dim * size_of(dtype)));
    parts.norm->read(0, 1, 0, dim, stored.data());
    out.norm.resize(static_cast<std::size_t>(dim));
    const FloatMode exact(FloatMode::kExact);
    files::widen(stored.data(), dtype, out.norm);
    return out;
  });
}

}  // namespace swiglu
