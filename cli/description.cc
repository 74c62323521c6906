// Texts of other checkpoints, changed in place; see description.h.
#include "description.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

namespace swiglu::cli {

namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::optional<std::string> text_of(const std::filesystem::path& file) {
  constexpr std::uintmax_t kMost = 16U << 20U;
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  std::ifstream in(file, std::ios::binary);
  if (error || size > kMost || !in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The value behind the only `"key":`; npos where that is not so.
std::pair<std::size_t, std::size_t> value_of(std::string_view json, std::string_view key) {
  const std::string quoted = fmt::format("\"{}\"", key);
  std::pair<std::size_t, std::size_t> found = {std::string_view::npos, 0};
  for (std::size_t at = json.find(quoted); at != std::string_view::npos; at = json.find(quoted, at + 1)) {
    if (at > 0 && json[at - 1] == '\\') continue;  // inside a string
    std::size_t begin = json.find_first_not_of(kBlanks, at + quoted.size());
    if (begin == std::string_view::npos || json[begin] != ':') continue;  // a value
    begin = json.find_first_not_of(kBlanks, begin + 1);
    if (begin == std::string_view::npos || found.first != std::string_view::npos) return {std::string_view::npos, 0};
    const bool text = json[begin] == '"';
    std::size_t end = text ? json.find('"', begin + 1) : json.find_first_of(",}] \t\r\n", begin);
    if (end == std::string_view::npos || json[begin] == '{' || json[begin] == '[') {
      return {std::string_view::npos, 0};
    }
    found = {begin, text ? end + 1 : end};
  }
  return found;
}

const char* torch_name(TensorType type) {
  constexpr const char* kNames[] = {"\"float32\"", "\"bfloat16\"", "\"float16\"", "\"float64\""};
  return kNames[static_cast<int>(type)];
}

}  // namespace

std::optional<std::string> with_value(std::string_view json, std::string_view key, std::string_view value) {
  const auto [begin, end] = value_of(json, key);
  if (begin == std::string_view::npos) return std::nullopt;
  return fmt::format("{}{}{}", json.substr(0, begin), value, json.substr(end));
}

std::optional<std::string> kept_description(const ConvertOptions& options, const Checkpoint& model, std::int64_t layers,
                                            bool decoded) {
  const bool meta = options.format == CheckpointFormat::meta;
  if (model.format() != (meta ? "meta" : "huggingface") || options.format == CheckpointFormat::gguf) return {};
  if (options.type && *options.type > TensorType::f64) return {};  // which is refused later
  if (decoded || options.expert || (!meta && layers != model.layers())) return {};
  std::optional<std::string> text = text_of(options.model / (meta ? "params.json" : "config.json"));
  const auto set = [&text](std::string_view key, std::string_view value) {
    if (text) text = with_value(*text, key, value);
  };
  if (layers != model.layers()) set("n_layers", fmt::format("{}", layers));
  if (options.open.eps) set(meta ? "norm_eps" : "rms_norm_eps", fmt::format("{}", *options.open.eps));
  // In params.json the width may follow from several keys.
  if (options.open.hidden && meta) return {};
  if (options.open.hidden) set("intermediate_size", fmt::format("{}", *options.open.hidden));
  if (options.type && !meta && text) {
    // A hint for readers; transformers has given the key a new name.
    std::optional<std::string> changed = with_value(*text, "torch_dtype", torch_name(*options.type));
    if (!changed) changed = with_value(*text, "dtype", torch_name(*options.type));
    if (changed) text = std::move(changed);
  }
  return text;
}

}  // namespace swiglu::cli
