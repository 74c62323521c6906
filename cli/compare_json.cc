// The JSON document of `compare`: everything that was found, layer by layer.
#include <fmt/format.h>

#include "compare_report.h"
#include "report.h"

namespace swiglu::cli {

namespace {

const char* name_of(Match match) {
  constexpr std::array kNames = {"same_bits", "same_values", "same_after_rounding", "different", "not_compared"};
  return kNames[static_cast<std::size_t>(match)];
}

void put_model(Json& json, const char* name, const std::filesystem::path& path, const Checkpoint& model) {
  json.key(name).object().field("path", path.string()).field("format", model.format());
  json.field("layers", model.layers()).field("dim", model.config().dim).field("hidden", model.config().hidden);
  json.field("eps", model.config().eps).list("notes", model.notes()).end();
}

void put_matrix(Json& json, Role role, const Comparison& matrix) {
  json.key(name_of(role)).object().field("match", name_of(matrix.match));
  json.field("dtype_a", name_of(matrix.a)).field("dtype_b", name_of(matrix.b)).key("rounded_to");
  matrix.match == Match::rounded ? json.value(name_of(matrix.rounded_to())) : json.null();
  json.key("rounded");  // which of the two is the other one rounded
  matrix.match == Match::rounded ? json.value(matrix.relations.b_is_a_in ? "b" : "a") : json.null();
  json.field("elements", matrix.elements).field("differing", matrix.differing);
  json.field("relative_error", matrix.relative_error);
  json.field("nan_bits_differing", matrix.nan_bits).field("zero_signs_differing", matrix.zero_signs);
  json.key("first_difference");
  if (matrix.first) {
    json.object().field("row", matrix.first->row).field("column", matrix.first->col);
    json.field("a", matrix.first->a).field("b", matrix.first->b).end();
  } else {
    json.null();
  }
  json.end();
}

void put_layer(Json& json, const LayerComparison& layer) {
  json.object().field("layer", layer.layer).field("match", name_of(layer.match())).key("matrices").object();
  for (const Role role : kRoles) put_matrix(json, role, layer.matrices[role]);
  json.end().key("causes").array();
  for (const Cause& cause : layer.causes) {
    json.object().field("kind", cause.kind).key("matrices").array();
    for (const Role role : cause.roles) json.value(name_of(role));
    json.end()
        .field("text", cause.text)
        .field("advice", cause.advice)
        .field("same_function", cause.same_function)
        .end();
  }
  json.end().field("compute", name_of(layer.compute)).key("outputs").array();
  for (const OutputDifference& output : layer.outputs) {
    json.object().field("input", output.input).field("same_bits", output.same_bits);
    json.field("largest_difference_per_rms", output.largest).end();
  }
  json.end().end();
}

}  // namespace

std::string comparison_json(const CompareReport& report) {
  Json json;
  json.object().field("schema_version", 1).field("command", "compare");
  put_model(json, "a", report.options.a, report.a);
  put_model(json, "b", report.options.b, report.b);
  json.field("verdict", name_of(report.verdict())).field("verdict_text", report.verdict_text());
  json.list("differences", report.differences).list("notes", report.notes);
  json.list("layers_only_in_a", report.only_a).list("layers_only_in_b", report.only_b);
  if (!report.options.input) json.field("seed", kInputSeed);
  json.field("threads", report.threads).field("time_ms", report.seconds * 1e3).key("layers").array();
  for (const LayerComparison& layer : report.layers) put_layer(json, layer);
  return json.end().end().text();
}

}  // namespace swiglu::cli
