// Layers that were packed before: a FeedForward's weights as a PackedSource, and a PackedSource's as matrices.
#include <algorithm>

#include <fmt/format.h>

#include "layer/layer.h"

namespace swiglu {
namespace {

using Part = PackedSource::Part;

// A layer's own memory; the layer outlives it.
class LayerView final : public PackedSource {
 public:
  LayerView(const FeedForwardInfo& info, const weights::PackedMatrix& gate_up, const weights::PackedMatrix& down)
      : info_(info), parts_{&gate_up, &down}, index_{weights::index_of(gate_up), weights::index_of(down)} {}
  [[nodiscard]] std::string name() const override { return "a layer in memory"; }
  [[nodiscard]] FfnConfig config() const override { return info_.config; }
  [[nodiscard]] Compute compute() const override { return info_.compute; }
  [[nodiscard]] Matrix matrix(Part part) const override {
    const weights::PackedMatrix& packed = at(part);
    return {packed.dtype(), packed.storage(), std::ssize(index_[static_cast<std::size_t>(part)]),
            weights::payload_bytes(packed)};
  }
  void read_index(Part part, std::span<std::byte> dst) const override {
    std::copy_n(index_[static_cast<std::size_t>(part)].begin(), dst.size(), dst.begin());
  }
  void read_payload(Part part, std::int64_t offset, std::span<std::byte> dst) const override {
    weights::copy_payload(at(part), offset, dst);
  }
  [[nodiscard]] std::shared_ptr<const std::byte> view_payload(Part) const override { return nullptr; }

 private:
  [[nodiscard]] const weights::PackedMatrix& at(Part part) const { return *parts_[static_cast<std::size_t>(part)]; }
  FeedForwardInfo info_;
  const weights::PackedMatrix* parts_[2];
  std::vector<std::byte> index_[2];
};

}  // namespace

std::shared_ptr<const PackedSource> FeedForward::packed() const {
  if (impl_->local_hidden != impl_->info.config.hidden) {
    throw Error(ErrorCode::usage, "packed: this layer holds only one rank's share of the weights");
  }
  return std::make_shared<const LayerView>(impl_->info, impl_->gate_up, impl_->down);
}

LayerSource unpack(const LayerSource& source, const Runner& runner) {
  if (source.packed == nullptr) return source;
  layer::check_config(source.config);
  const auto [dim, hidden, eps] = source.config;
  const layer::Shapes shape = layer::whole_shapes(source.config);
  const auto load = [&](Part part) {
    const weights::MatrixShape& whole = part == Part::down ? shape.down : shape.gate_up;
    return std::make_shared<const weights::PackedMatrix>(
        weights::load_packed(whole, {.shape = whole}, *source.packed, part, runner));
  };
  const auto gate_up = load(Part::gate_up), down = load(Part::down);
  const std::string name = source.packed->name();
  LayerSource unpacked = source;
  unpacked.packed = nullptr;
  unpacked.gate = weights::unpack_rows(name + ", gate", gate_up, weights::Rows::gate, hidden, dim);
  unpacked.up = weights::unpack_rows(name + ", up", gate_up, weights::Rows::up, hidden, dim);
  unpacked.down = weights::unpack_rows(name + ", down", down, weights::Rows::down, dim, hidden);
  return unpacked;
}

}  // namespace swiglu
