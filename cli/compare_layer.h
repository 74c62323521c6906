// One layer of two checkpoints: its matrices, the causes of what differs, and what it computes. Knows the front door
// and the compare_ files; shows nothing but the progress.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compare_causes.h"
#include "inputs.h"
#include "progress.h"

namespace swiglu::cli {

struct OutputDifference {
  std::string input;
  bool same_bits = false;
  double largest = 0;  ///< max |B - A| / rms of A's output; infinity where one of them alone is NaN or Inf
};

struct LayerComparison {
  std::int64_t layer = 0;
  ByRole<Comparison> matrices;
  std::vector<Cause> causes;
  Compute compute = Compute::f32;
  std::vector<OutputDifference> outputs;  ///< none if dim differs
  /// The weakest match of the four.
  [[nodiscard]] Match match() const;
};

/// Both checkpoints, and what has been found out about all their layers.
class ModelPair {
 public:
  /// `expert` is for those of the two that are mixtures.
  ModelPair(const Checkpoint& a, const Checkpoint& b, std::optional<std::int64_t> expert, ThreadPool& pool,
            Meter& meter)
      : a_(a), b_(b), expert_(expert), pool_(pool), meter_(meter) {}

  /// `done` of `layers` are behind. `inputs` are empty if dim differs.
  [[nodiscard]] LayerComparison compare_layer(std::int64_t number, const std::vector<Input>& inputs, std::int64_t done,
                                              std::int64_t layers);

 private:
  using Types = std::pair<DType, DType>;  ///< that hashes are of: weights, norm
  struct SomeRows {
    std::int64_t layer;
    ByRole<std::vector<std::uint64_t>> hashes;
  };

  [[nodiscard]] LayerSource layer_of(const Checkpoint& model, std::int64_t number) const {
    return model.layer(number, model.experts() > 0 ? expert_ : std::nullopt);
  }
  void diagnose(LayerComparison& result, const LayerSource& a, const LayerSource& b);
  /// Which other layer of `model` has the matrix with these hashes.
  std::optional<std::int64_t> find_layer(const Checkpoint& model, std::int64_t layer, Role role,
                                         const TensorSource& matrix, const Hashes& hashes, Types types);
  const std::vector<SomeRows>& rows_of(const Checkpoint& model, Types types);
  std::vector<std::vector<float>> run(const Checkpoint& model, const LayerComparison& result,
                                      const std::vector<Input>& inputs);

  const Checkpoint& a_;
  const Checkpoint& b_;
  std::optional<std::int64_t> expert_;
  ThreadPool& pool_;
  Meter& meter_;
  std::map<std::pair<const Checkpoint*, Types>, std::vector<SomeRows>> rows_of_;
};

}  // namespace swiglu::cli
