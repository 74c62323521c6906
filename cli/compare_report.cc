// The words of `compare`; see compare_report.h. The JSON is in compare_json.cc.
#include "compare_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "report.h"

namespace swiglu::cli {

namespace {

/// Layers of which the same is true but for numbers.
struct Group {
  std::vector<const LayerComparison*> layers;
  [[nodiscard]] const LayerComparison& first() const { return *layers.front(); }
  [[nodiscard]] std::vector<std::int64_t> numbers() const {
    std::vector<std::int64_t> out;
    out.reserve(layers.size());
    for (const LayerComparison* layer : layers) out.push_back(layer->layer);
    return out;
  }
  [[nodiscard]] std::string name() const {
    return fmt::format("layer{} {}", layers.size() == 1 ? "" : "s", show_numbers(numbers()));
  }
};

bool alike(const LayerComparison& x, const LayerComparison& y) {
  for (const Role role : kRoles) {
    const Comparison& l = x.matrices[role];
    const Comparison& r = y.matrices[role];
    if (l.match != r.match || l.a != r.a || l.b != r.b) return false;
    if (l.match != Match::rounded) continue;
    if (l.rounded_to() != r.rounded_to() || !l.relations.b_is_a_in != !r.relations.b_is_a_in) return false;
  }
  return std::equal(x.causes.begin(), x.causes.end(), y.causes.begin(), y.causes.end(),
                    [](const Cause& l, const Cause& r) { return l.general == r.general && l.roles == r.roles; });
}

std::vector<Group> fold(const std::vector<LayerComparison>& layers) {
  std::vector<Group> groups;
  for (const LayerComparison& layer : layers) {
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const Group& group) { return alike(group.first(), layer); });
    found == groups.end() ? groups.push_back({{&layer}}) : found->layers.push_back(&layer);
  }
  return groups;
}

std::string show_matrix(const Group& group, Role role) {
  const Comparison& first = group.first().matrices[role];
  double worst = 0;
  switch (first.match) {
    case Match::bits:
      return "same bits";
    case Match::values:
      return "same values";
    case Match::rounded:
      return fmt::format("same in {}", name_of(first.rounded_to()));
    case Match::not_compared:
      return "other shape";
    case Match::different:
      for (const LayerComparison* layer : group.layers) worst = std::max(worst, layer->matrices[role].relative_error);
      return fmt::format("error {}", format_error(worst));
  }
  return "";
}

std::string show_output(const Group& group) {
  bool same = true;
  double worst = 0;
  if (group.first().outputs.empty()) return "not run";
  for (const LayerComparison* layer : group.layers) {
    for (const OutputDifference& output : layer->outputs) {
      same = same && output.same_bits;
      worst = std::max(worst, output.largest);
    }
  }
  return same ? "same bits" : format_error(worst);
}

std::string show_table(const std::vector<Group>& groups) {
  Table table;
  table.column("layers", Table::Align::left);
  for (const Role role : kRoles) table.column(name_of(role), Table::Align::left);
  table.column("output", Table::Align::left);
  table.column("", Table::Align::left);
  for (const Group& group : groups) {
    std::vector<std::string> cells{show_numbers(group.numbers())};
    for (const Role role : kRoles) cells.push_back(show_matrix(group, role));
    cells.push_back(show_output(group));
    cells.emplace_back(group.first().match() >= Match::different ? "✗"
                       : group.first().match() == Match::rounded ? "≈"
                                                                 : "✓");
    table.row(std::move(cells));
  }
  return table.text();
}

std::string show_model(const CompareReport& report, bool is_a) {
  const Checkpoint& model = is_a ? report.a : report.b;
  std::set<std::string> types;
  for (const LayerComparison& layer : report.layers) {
    for (const Role role : kRoles) types.insert(name_of(is_a ? layer.matrices[role].a : layer.matrices[role].b));
  }
  return fmt::format("{}: {}, {}, {}, dim {}, hidden {}, eps {}{}{}", is_a ? "A" : "B",
                     printable((is_a ? report.options.a : report.options.b).string()), model.format(),
                     plural(model.layers(), "layer"), model.config().dim, model.config().hidden, model.config().eps,
                     types.empty() ? "" : ", ", fmt::join(types, " and "));
}

/// Capital first letter, full stop last.
std::string sentence(std::string text) {
  if (text.empty()) return text;
  if (text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text + ".";
}

std::string show_causes(const Group& group) {
  std::string text;
  for (const Cause& cause : group.first().causes) {
    const bool one = group.layers.size() == 1;
    text += fmt::format("{} {}, {}: {}.{}{}\n", mark(false), group.name(), show_roles(cause.roles),
                        one ? cause.text : cause.general, cause.advice.empty() ? "" : " ", sentence(cause.advice));
  }
  for (const Role role : kRoles) {
    const Comparison& matrix = group.first().matrices[role];
    if (matrix.match != Match::different) continue;
    text += fmt::format(
        "    {}{}: {} of {} elements differ, the first at row {}, column {}: {:.6g} in A, {:.6g} in B\n", name_of(role),
        group.layers.size() == 1 ? "" : fmt::format(" of layer {}", group.first().layer), matrix.differing,
        matrix.elements, matrix.first->row, matrix.first->col, matrix.first->a, matrix.first->b);
  }
  return text;
}

/// "B is A rounded to bf16 in norm and gate".
std::string show_rounding(const Group& group) {
  std::vector<std::string> words;
  for (const Role role : kRoles) {
    const Comparison& matrix = group.first().matrices[role];
    if (matrix.match != Match::rounded) continue;
    const std::string word =
        fmt::format("{} rounded to {}", matrix.relations.b_is_a_in ? "B is A" : "A is B", name_of(matrix.rounded_to()));
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  return words.empty() ? "" : fmt::format("≈ {}: {}\n", group.name(), fmt::join(words, ", "));
}

std::string show_oddities(const CompareReport& report) {
  std::string text;
  for (const LayerComparison& layer : report.layers) {
    for (const Role role : kRoles) {
      const Comparison& matrix = layer.matrices[role];
      if (matrix.nan_bits > 0) {
        text += fmt::format("note: layer {}, {}: {} in both with other bits\n", layer.layer, name_of(role),
                            plural(matrix.nan_bits, "NaN"));
      }
      if (matrix.zero_signs > 0) {
        text += fmt::format("note: layer {}, {}: {} +0 in one and -0 in the other\n", layer.layer, name_of(role),
                            plural(matrix.zero_signs, "element"));
      }
    }
  }
  return text;
}

}  // namespace

const char* name_of(Verdict verdict) {
  constexpr std::array kNames = {"same", "same_after_rounding", "different"};
  return kNames[static_cast<std::size_t>(verdict)];
}

std::string show_numbers(const std::vector<std::int64_t>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", numbers[i]);
    if (last > i) out += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return out;
}

Verdict CompareReport::verdict() const {
  Match weakest = Match::bits;
  for (const LayerComparison& layer : layers) weakest = std::max(weakest, layer.match());
  if (!differences.empty() || layers.empty() || weakest >= Match::different) return Verdict::different;
  return weakest == Match::rounded ? Verdict::same_after_rounding : Verdict::same;
}

std::string CompareReport::verdict_text() const {
  std::set<std::string> types, causes;
  std::vector<std::int64_t> other;
  bool bits = true;
  for (const LayerComparison& layer : layers) {
    for (const Role role : kRoles) {
      const Comparison& matrix = layer.matrices[role];
      if (matrix.match == Match::rounded) types.insert(name_of(matrix.rounded_to()));
      bits = bits && matrix.match == Match::bits;
    }
    if (layer.match() < Match::different) continue;
    other.push_back(layer.layer);
    for (const Cause& cause : layer.causes) causes.insert(cause.general);
  }
  if (verdict() == Verdict::same) {
    return bits ? "same: all weights have the same bits" : "same: all weights have the same values";
  }
  if (verdict() == Verdict::same_after_rounding) {
    return fmt::format("same after rounding to {}", fmt::join(types, " and "));
  }
  std::vector<std::string> parts = differences;
  if (!other.empty()) {
    std::string words =
        fmt::format("{} of {} ({})", other.size(), plural(std::ssize(layers), "layer"), show_numbers(other));
    if (causes.size() == 1) words += ": " + *causes.begin();
    parts.push_back(std::move(words));
  }
  return fmt::format("different: {}", fmt::join(parts, "; "));
}

std::string show_comparison(const CompareReport& report) {
  std::string text = headline(show_model(report, true)) + "\n" + headline(show_model(report, false)) + "\n";
  for (const std::string& difference : report.differences) text += fmt::format("{} {}\n", mark(false), difference);
  const std::vector<Group> groups = fold(report.layers);
  if (!groups.empty()) {
    const auto& outputs = report.layers.front().outputs;
    text += "error:  relative L2 of B - A\n";
    if (!outputs.empty()) {
      std::set<std::string> computes;
      for (const LayerComparison& layer : report.layers) computes.insert(swiglu::name_of(layer.compute));
      text += fmt::format(
          "output: the largest difference / rms of A's output, compute {}, {} input\n", fmt::join(computes, " and "),
          outputs.size() == 1 ? outputs.front().input : fmt::format("{} and {}", outputs[0].input, outputs[1].input));
    }
    text += fmt::format("\n{}\n", show_table(groups));
  }
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  text += show_oddities(report);
  for (const Group& group : groups) text += show_causes(group) + show_rounding(group);
  const Verdict verdict = report.verdict();
  const bool good =
      verdict == Verdict::same || (verdict == Verdict::same_after_rounding && report.options.allow_rounding);
  return text + fmt::format("{} {} ({})\n", mark(good), report.verdict_text(), format_seconds(report.seconds));
}

}  // namespace swiglu::cli
