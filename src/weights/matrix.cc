// PackedMatrix: where panels and pieces lie. See weights.h.
#include <algorithm>

#include "weights/weights.h"

namespace swiglu::weights {
namespace {

using kernels::Product;

// A product of plain weights of this type; all of them share the layout.
Product layout_of(DType dtype) {
  return dtype == DType::f32 ? Product::f32_f32 : dtype == DType::f16 ? Product::f32_f16 : Product::bf16_bf16;
}

const char* storage_name(DType dtype, Storage storage) {
  if (storage == Storage::compact) return "compact bf16";
  return dtype == DType::f32 ? "plain f32" : dtype == DType::f16 ? "plain f16" : "plain bf16";
}

}  // namespace

MatrixShape gate_up_shape(std::int64_t row0, std::int64_t row1, std::int64_t dim) {
  return {(row1 - row0 + kernels::kLanes - 1) / kernels::kLanes, {0, dim}, 2 * (row1 - row0) * dim};
}

MatrixShape down_shape(std::int64_t dim, std::vector<std::int64_t> borders) {
  const std::int64_t elements = dim * (borders.back() - borders.front());
  return {(dim + kernels::kPanel - 1) / kernels::kPanel, std::move(borders), elements};
}

PackedMatrix::PackedMatrix(const MatrixShape& shape, DType dtype, Storage storage)
    : dtype_(dtype), storage_(storage), elements_(shape.elements), panels_(static_cast<std::size_t>(shape.panels)) {
  const Product plain = layout_of(dtype);
  const std::int64_t per_step = kernels::k_per_step(plain);
  for (auto& offsets : offsets_) offsets.push_back(0);
  for (std::size_t i = 0; i + 1 < shape.borders.size(); ++i) {
    const std::int64_t steps = (shape.borders[i + 1] - shape.borders[i] + per_step - 1) / per_step;
    steps_.push_back(steps);
    offsets_[0].push_back(offsets_[0].back() + kernels::piece_bytes(plain, steps));
    offsets_[1].push_back(offsets_[1].back() + kernels::piece_bytes(Product::bf16_compact, steps));
    if (steps > kernels::kMostCompactSteps) storage_ = Storage::plain;  // a patch could not say where it belongs
  }
}

std::span<const kernels::Patch> PackedMatrix::patches(std::int64_t p, std::int64_t i) const noexcept {
  const Panel& from = panel(p);
  const auto piece = static_cast<std::size_t>(i);
  const auto begin = static_cast<std::size_t>(from.first_patch[piece]);
  const bool last = piece + 1 == from.first_patch.size();
  const std::size_t end = last ? from.patches.size() : static_cast<std::size_t>(from.first_patch[piece + 1]);
  return std::span(from.patches).subspan(begin, end - begin - 1);
}

kernels::Codes PackedMatrix::codes(std::int64_t p, std::int64_t i, std::int64_t step) const noexcept {
  if (!panel(p).compact) return {};
  const auto own = patches(p, i);
  const auto first = std::partition_point(own.begin(), own.end(),
                                          [step](kernels::Patch patch) { return kernels::step_of(patch) < step; });
  return {panel(p).table.data(), own.data() + (first - own.begin()), step};
}

PackedInfo PackedMatrix::info() const {
  PackedInfo info;
  info.storage = storage_name(dtype_, storage_);
  info.panels = panels();
  for (const Panel& panel : panels_) {
    info.bytes += panel_bytes(panel.compact);
    if (storage_ == Storage::plain) continue;
    info.plain_panels += panel.compact ? 0 : 1;
    info.patches += std::ssize(panel.patches) - std::ssize(panel.first_patch);  // without their ends
    info.bytes += static_cast<std::int64_t>(panel.table.size() + panel.patches.size() * sizeof(kernels::Patch));
  }
  info.bits_per_weight = elements_ == 0 ? 0.0 : 8.0 * static_cast<double>(info.bytes) / static_cast<double>(elements_);
  return info;
}

}  // namespace swiglu::weights
