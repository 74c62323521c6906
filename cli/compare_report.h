// What `compare` says: a table that folds layers of which the same is true, the causes, one verdict; or JSON. Knows the
// results and report.h.
#pragma once

#include <string>
#include <vector>

#include "commands.h"
#include "compare_layer.h"

namespace swiglu::cli {

enum class Verdict : std::uint8_t { same, same_after_rounding, different };
[[nodiscard]] const char* name_of(Verdict verdict);

struct CompareReport {
  const CompareOptions& options;
  const Checkpoint& a;
  const Checkpoint& b;
  /// Of the models as a whole: "dim 64 and 48". Any of them makes the verdict "different".
  std::vector<std::string> differences;
  std::vector<std::string> notes;
  std::vector<std::int64_t> only_a, only_b;  ///< numbers of layers
  std::vector<LayerComparison> layers;
  int threads = 0;
  double seconds = 0;

  [[nodiscard]] Verdict verdict() const;
  /// "same", "same after rounding to bf16", "different: …".
  [[nodiscard]] std::string verdict_text() const;
};

/// "0-3, 5"
[[nodiscard]] std::string show_numbers(const std::vector<std::int64_t>& numbers);

[[nodiscard]] std::string show_comparison(const CompareReport& report);
[[nodiscard]] std::string comparison_json(const CompareReport& report);

}  // namespace swiglu::cli
