// swiglu inspect: what is in a checkpoint, and does it fit its own configuration.
// 0 when sound (non-finite weights are a note), 1 when readable but inconsistent; what cannot be read
// at all throws. Names that come out of files are shown escaped.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <map>
#include <optional>

#include "commands.h"
#include "packed_layers.h"
#include "progress.h"
#include "report.h"
#include "stats.h"
#include "swiglu/packed.hpp"

namespace swiglu::cli {

namespace {

/// How a width comes about: the presets of this shape, and the likeliest recipe that gives it.
struct WidthOrigin {
  std::vector<std::string> presets;
  bool known = false;
  std::int64_t multiple_of = 0;
  std::optional<double> multiplier;

  [[nodiscard]] std::string text(const FfnConfig& config) const {
    if (!known) return fmt::format("no recipe of Meta's gives this from dim {}", config.dim);
    const std::string recipe = fmt::format("multiple_of {}{}", multiple_of,
                                           multiplier ? fmt::format(", ffn_dim_multiplier {}", *multiplier) : "");
    if (presets.empty()) return fmt::format("Meta's recipe with {}", recipe);
    constexpr std::size_t kShown = 3;
    const auto last = presets.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, presets.size()));
    return fmt::format("the shape of {}{} ({})", fmt::join(presets.begin(), last, ", "),
                       presets.size() > kShown ? ", …" : "", recipe);
  }
};

WidthOrigin origin_of(const FfnConfig& config) {
  WidthOrigin origin;
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;  // beyond this the recipe may refuse
  if (config.dim <= 0 || config.dim > kLargest || config.hidden <= 0) return origin;
  const auto consider = [&](std::int64_t multiple_of, std::optional<double> multiplier) {
    if (origin.known || ffn_width(config.dim, multiple_of, multiplier) != config.hidden) return;
    origin.known = true;
    origin.multiple_of = multiple_of;
    origin.multiplier = multiplier;
  };
  for (const Preset& preset : presets()) {
    if (preset.dim != config.dim || preset.config().hidden != config.hidden) continue;
    origin.presets.emplace_back(preset.name);
    consider(preset.multiple_of, preset.multiplier);
  }
  consider(256, std::nullopt);
  for (const Preset& preset : presets()) consider(preset.multiple_of, preset.multiplier);
  for (std::int64_t multiple_of = 128; multiple_of > 0; multiple_of /= 2) consider(multiple_of, std::nullopt);
  return origin;
}

/// Neighbouring layers (and experts) whose tensor of one role looks the same share a row.
struct TensorRow {
  const TensorInfo* first;
  std::int64_t last_layer;
  std::string pattern;  ///< the name with the numbers of layer and expert replaced
  std::vector<std::string> files;
};

std::string pattern_of(const TensorInfo& tensor) {
  std::string name = tensor.name;
  std::size_t at = 0;
  const auto replace = [&](std::int64_t number, std::string_view by) {
    const std::string digits = fmt::format(".{}.", number);
    at = name.find(digits, at);
    if (at != std::string::npos) name.replace(at, digits.size(), by);
  };
  replace(tensor.layer, ".N.");
  if (tensor.expert >= 0 && at != std::string::npos) replace(tensor.expert, ".E.");
  return name;
}

std::vector<TensorRow> compress(const std::vector<TensorInfo>& tensors) {
  static constexpr std::string_view kOrder[] = {"norm", "gate", "up", "gate and up", "down"};
  std::vector<TensorRow> rows;
  for (const std::string_view role : kOrder) {
    std::vector<const TensorInfo*> of_role;
    for (const TensorInfo& tensor : tensors) {
      if (tensor.role == role) of_role.push_back(&tensor);
    }
    std::sort(of_role.begin(), of_role.end(), [](const TensorInfo* a, const TensorInfo* b) {
      return a->layer != b->layer ? a->layer < b->layer : a < b;  // within a layer as the file has them
    });
    const std::size_t start = rows.size();
    for (const TensorInfo* tensor : of_role) {
      const std::string pattern = pattern_of(*tensor);
      const bool joins = rows.size() > start && rows.back().first->dtype == tensor->dtype &&
                         rows.back().first->shape == tensor->shape && rows.back().pattern == pattern &&
                         (rows.back().last_layer + 1 == tensor->layer ||
                          (rows.back().last_layer == tensor->layer && tensor->expert > 0));
      if (!joins) rows.push_back({tensor, tensor->layer, pattern, {}});
      TensorRow& row = rows.back();
      row.last_layer = tensor->layer;
      for (const std::string& file : tensor->files) {
        if (std::find(row.files.begin(), row.files.end(), file) == row.files.end()) row.files.push_back(file);
      }
    }
  }
  return rows;
}

std::string show_tensors(const std::vector<TensorInfo>& tensors) {
  Table table;
  for (const char* title : {"role", "layers", "dtype", "shape", "tensor", "in"})
    table.column(title, Table::Align::left);
  for (const TensorRow& row : compress(tensors)) {
    const std::int64_t first = row.first->layer;
    table.row({row.first->role,
               first == row.last_layer ? std::to_string(first) : fmt::format("{}-{}", first, row.last_layer),
               printable(row.first->dtype), format_shape(row.first->shape), printable(row.pattern),
               row.files.size() == 1 ? printable(row.files.front())
                                     : plural(static_cast<std::int64_t>(row.files.size()), "file")});
  }
  return table.text();
}

struct MatrixStats {
  std::int64_t layer;
  std::string role;
  Stats stats;
};

/// All weights, layer by layer. A layer that cannot be used adds a problem instead.
std::vector<MatrixStats> read_stats(const Checkpoint& model, std::vector<std::string>& problems) {
  std::vector<MatrixStats> all;
  ThreadPool pool;
  Meter meter("reading weights");
  std::atomic<std::int64_t> done{0};
  const auto total = static_cast<std::int64_t>(model.size_bytes());
  const auto read = [&](std::int64_t bytes) { meter.update(done += bytes, total); };
  for (const std::int64_t i : model.layer_numbers()) {
    try {
      const bool mixture = model.experts() > 0;
      for (std::int64_t e = 0; e < std::max<std::int64_t>(1, model.experts()); ++e) {
        const std::string of = mixture ? fmt::format(" of expert {}", e) : "";
        const LayerSource layer = unpack(model.layer(i, mixture ? std::optional(e) : std::nullopt), pool.runner());
        if (!layer.norm.empty() && e == 0) all.push_back({i, "norm", stats_of(layer.norm)});
        all.push_back({i, "gate" + of, stats_of(*layer.gate, pool, read)});
        all.push_back({i, "up" + of, stats_of(*layer.up, pool, read)});
        all.push_back({i, "down" + of, stats_of(*layer.down, pool, read)});
      }
    } catch (const Error& fault) {
      if (fault.code() == ErrorCode::no_memory) throw;
      add_problem(problems, fault.text());
    }
  }
  return all;
}

std::string show_stats(const std::vector<MatrixStats>& all) {
  Table table;
  table.column("layer");
  table.column("role", Table::Align::left);
  for (const char* title : {"min", "max", "rms", "NaN", "Inf"}) table.column(title);
  for (const MatrixStats& m : all) {
    table.row({m.role == "norm" || m.role == "gate" ? std::to_string(m.layer) : "", m.role,
               fmt::format("{:.4g}", m.stats.min), fmt::format("{:.4g}", m.stats.max),
               fmt::format("{:.4g}", m.stats.rms), std::to_string(m.stats.nan), std::to_string(m.stats.inf)});
  }
  return table.text();
}

std::vector<std::string> non_finite_notes(const std::vector<MatrixStats>& all) {
  std::vector<std::string> notes;
  for (const MatrixStats& m : all) {
    if (m.stats.non_finite() == 0) continue;
    notes.push_back(fmt::format("layer {} {}: {} of {} weights are not finite ({} NaN, {} Inf)", m.layer, m.role,
                                m.stats.non_finite(), m.stats.elements, m.stats.nan, m.stats.inf));
  }
  return notes;
}

/// Of one layer's three matrices, panels' padding not counted.
double weight_bytes(const FfnConfig& config, DType dtype) {
  return 3 * static_cast<double>(config.dim) * static_cast<double>(config.hidden) * static_cast<double>(size_of(dtype));
}

/// For JSON. A file that contradicts itself may claim more than a number of bytes can be.
std::int64_t whole_bytes(double bytes) {
  constexpr double kMost = 9e18;
  return static_cast<std::int64_t>(std::min(bytes, kMost));
}

/// Of bf16 weights in compact storage, about: 12 of 16 bits. What trained weights add to that is a few per mille.
std::int64_t compact_bytes(const FfnConfig& config) { return whole_bytes(0.75 * weight_bytes(config, DType::bf16)); }

/// By the files' own names for the type.
bool stored_as_bf16(const Checkpoint& model) {
  return std::all_of(model.tensors().begin(), model.tensors().end(), [](const TensorInfo& tensor) {
    std::string name = tensor.dtype;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    return tensor.role == "norm" || name.find("bf16") != std::string::npos ||
           name.find("bfloat16") != std::string::npos;
  });
}

std::string show_summary(const InspectOptions& options, const Checkpoint& model, const WidthOrigin& origin,
                         const std::vector<PackedLayer>& packed) {
  const FfnConfig& config = model.config();
  std::string text = headline(printable(options.model.string())) + "\n";
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<8} {}\n", name, value);
  };
  line("format", fmt::format("{}, {}, {}", model.format(), plural(model.shards(), "weight file"),
                             format_bytes(static_cast<double>(model.size_bytes()))));
  line("family", model.family().empty() ? "unknown" : printable(model.family()));
  if (model.layers() == 0) return text;
  line("layers", std::to_string(model.layers()));
  if (model.experts() > 0) line("experts", fmt::format("{} in each layer (--expert E chooses one)", model.experts()));
  line("dim", std::to_string(config.dim));
  line("hidden", fmt::format("{}: {}", config.hidden, origin.text(config)));
  line("eps", fmt::format("{}", config.eps));
  if (model.format() == "packed") {
    if (!packed.empty()) line("packed", show_packed(packed));
    if (const std::string panels = show_panels(packed); !panels.empty()) line("compact", panels);
    return text;
  }
  line("packed",
       fmt::format("one {} takes {} in bf16, {} in f32", model.experts() > 0 ? "expert of a layer" : "layer",
                   format_bytes(weight_bytes(config, DType::bf16)), format_bytes(weight_bytes(config, DType::f32))));
  if (stored_as_bf16(model)) {
    line("compact", fmt::format("about {}: bf16 without loss in 12 bits or so, which the weights decide",
                                format_bytes(static_cast<double>(compact_bytes(config)))));
  }
  return text;
}

std::string show_json(const InspectOptions& options, const Checkpoint& model, const WidthOrigin& origin,
                      const std::vector<PackedLayer>& packed, const std::vector<MatrixStats>& stats,
                      const std::vector<std::string>& notes, const std::vector<std::string>& problems) {
  const FfnConfig& config = model.config();
  Json json;
  json.object().field("schema_version", 1).field("command", "inspect").field("model", options.model.string());
  json.field("format", model.format()).field("family", model.family()).field("layers", model.layers());
  json.field("experts", model.experts());
  json.field("dim", config.dim).field("hidden", config.hidden).field("eps", config.eps);
  json.field("shards", model.shards()).field("size_bytes", model.size_bytes());
  json.field("layer_bf16_bytes", whole_bytes(weight_bytes(config, DType::bf16)));
  json.field("layer_f32_bytes", whole_bytes(weight_bytes(config, DType::f32)));
  json.key("layer_compact_bytes");
  model.layers() > 0 && stored_as_bf16(model) ? json.value(compact_bytes(config)) : json.null();
  json.list("presets", origin.presets).key("recipe");
  if (origin.known) {
    json.object().field("multiple_of", origin.multiple_of).key("ffn_dim_multiplier");
    (origin.multiplier ? json.value(*origin.multiplier) : json.null()).end();
  } else {
    json.null();
  }
  json.key("tensors").array();
  for (const TensorInfo& tensor : model.tensors()) {
    json.object().field("name", tensor.name).field("role", tensor.role).field("layer", tensor.layer);
    json.key("expert");
    tensor.expert >= 0 ? json.value(tensor.expert) : json.null();
    json.field("dtype", tensor.dtype).list("shape", tensor.shape).list("files", tensor.files).end();
  }
  json.end();
  put_packed(json, "packed_layers", packed);
  if (options.stats) {
    json.key("stats").array();
    for (const MatrixStats& m : stats) {
      json.object().field("layer", m.layer).field("role", m.role).field("elements", m.stats.elements);
      json.field("min", m.stats.min).field("max", m.stats.max).field("rms", m.stats.rms);
      json.field("nan", m.stats.nan).field("inf", m.stats.inf).end();
    }
    json.end();
  }
  json.list("notes", notes).list("problems", problems).field("sound", problems.empty());
  return json.end().text();
}

}  // namespace

int inspect(const InspectOptions& options) {
  const Checkpoint model = Checkpoint::open(options.model, {.eps = {}, .hidden = {}, .collect_problems = true});
  std::vector<std::string> problems = model.problems(), notes = model.notes();
  const std::vector<PackedLayer> packed = packed_layers(options, model, problems);
  std::vector<MatrixStats> stats;
  if (options.stats) {
    stats = read_stats(model, problems);
    try {
      model.check_payloads();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::format) throw;
      add_problem(problems, error.text());
    }
    const auto more = non_finite_notes(stats);
    notes.insert(notes.end(), more.begin(), more.end());
  }
  const WidthOrigin origin = origin_of(model.config());
  const bool sound = problems.empty();
  if (options.json) {
    say(show_json(options, model, origin, packed, stats, notes, problems));
    return sound ? 0 : 1;
  }
  say(show_summary(options, model, origin, packed));
  if (!model.tensors().empty()) say(fmt::format("\n{}", show_tensors(model.tensors())));
  if (!stats.empty()) say(fmt::format("\n{}", show_stats(stats)));
  say("\n");
  for (const std::string& note : notes) say(fmt::format("note: {}\n", note));
  for (const std::string& problem : problems) say(fmt::format("{} {}\n", mark(false), problem));
  if (!sound) {
    say(fmt::format("{} inconsistent: {}\n", mark(false),
                    plural(static_cast<std::int64_t>(problems.size()), "problem")));
  } else if (model.layers() == 0) {
    say("no feed-forward weights in here\n");
  } else {
    say(fmt::format("{} sound: every feed-forward tensor is there and fits{}\n", mark(true),
                    options.stats ? "" : " (--stats reads the weights too)"));
  }
  return sound ? 0 : 1;
}

}  // namespace swiglu::cli
