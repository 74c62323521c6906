// See params.h. A missing key has the default of Meta's ModelArgs, a null one counts as missing (other
// frameworks write it), and any other kind than the one expected is refused: a width computed from
// "1.3" or true would be a guess.
#include "files/params.h"

#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "base/text.h"

namespace swiglu::files {
namespace {

constexpr std::int64_t kDefaultMultipleOf = 256;
constexpr double kDefaultEps = 1e-5;
constexpr std::int64_t kLargestWidth = std::int64_t{1} << 31;  // far beyond any model, far below overflow
constexpr std::int64_t kLargestLayers = std::int64_t{1} << 20;

class Params {
 public:
  Params(const Json& root, const std::string& where) : root_(root), where_(where) {
    if (root.kind != Json::Kind::object) {
      throw Error(ErrorCode::format, fmt::format("{}: expected an object, found {}", where, root.describe()));
    }
  }
  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* value = root_.find(key);
    return value == nullptr || value->kind == Json::Kind::null ? nullptr : value;
  }
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t largest) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->kind != Json::Kind::integer || value->negative || value->magnitude == 0 ||
        value->magnitude > static_cast<std::uint64_t>(largest)) {
      fail(key, fmt::format("an integer from 1 to {}", largest), *value);
    }
    return static_cast<std::int64_t>(value->magnitude);
  }
  [[nodiscard]] std::optional<double> positive(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool number = value->kind == Json::Kind::integer || value->kind == Json::Kind::real;
    if (!number || !std::isfinite(value->real) || value->real <= 0) fail(key, "a positive number", *value);
    return value->real;
  }
  void refuse(std::string_view key, const char* what) const {
    if (find(key) == nullptr) return;
    throw Error(ErrorCode::unsupported, fmt::format("{}: {}: {} are not supported", where_, key, what));
  }

 private:
  [[noreturn]] void fail(std::string_view key, const std::string& expected, const Json& found) const {
    throw Error(ErrorCode::format,
                fmt::format("{}: {}: expected {}, found {}", where_, key, expected, found.describe()));
  }
  const Json& root_;
  const std::string& where_;
};

}  // namespace

MetaParams read_params(const Json& root, const std::string& where) {
  const Params params(root, where);
  params.refuse("quantization_args", "quantised weights");
  params.refuse("lora_args", "adapters (LoRA)");
  for (const char* key : {"moe_args", "ffn_exp", "moe"}) params.refuse(key, "mixtures of experts");

  MetaParams out;
  const auto dim = params.integer("dim", kLargestWidth);
  if (!dim) throw Error(ErrorCode::format, fmt::format("{}: dim: expected an integer, found none", where));
  out.config.dim = *dim;
  out.layers = params.integer("n_layers", kLargestLayers);
  if (const auto eps = params.positive("norm_eps")) {
    out.config.eps = *eps;
    // The sublayer holds eps in a float.
    if (!(static_cast<float>(*eps) > 0 && *eps < 1)) {
      throw Error(ErrorCode::format,
                  fmt::format("{}: norm_eps: expected a small positive number, found {}", where, *eps));
    }
  } else {
    out.config.eps = kDefaultEps;
    out.notes.push_back(fmt::format("{}: norm_eps is absent: {} is used", where, kDefaultEps));
  }

  const std::int64_t multiple_of = params.integer("multiple_of", kLargestWidth).value_or(kDefaultMultipleOf);
  const auto multiplier = params.positive("ffn_dim_multiplier");
  const auto hidden_dim = params.integer("hidden_dim", kLargestWidth);
  const auto intermediate_size = params.integer("intermediate_size", kLargestWidth);
  if (hidden_dim && intermediate_size && *hidden_dim != *intermediate_size) {
    throw Error(ErrorCode::format, fmt::format("{}: expected one width, found hidden_dim {} and intermediate_size {}",
                                               where, *hidden_dim, *intermediate_size));
  }
  if (hidden_dim || intermediate_size) {
    out.config.hidden = hidden_dim ? *hidden_dim : *intermediate_size;
    out.width_origin = hidden_dim ? "hidden_dim" : "intermediate_size";
    return out;
  }
  try {
    out.config.hidden = ffn_width(*dim, multiple_of, multiplier);
  } catch (const Error& fault) {  // a usage error of the recipe is a fault of this file
    throw Error(ErrorCode::format, fmt::format("{}: {}", where, fault.text()));
  }
  out.width_origin = fmt::format("dim {}, multiple_of {}", *dim, multiple_of);
  if (multiplier) out.width_origin += fmt::format(", ffn_dim_multiplier {}", *multiplier);
  return out;
}

}  // namespace swiglu::files
