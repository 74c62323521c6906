// A packed layer in vectors, to be damaged.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "swiglu/packed.hpp"

namespace swiglu::testing {

struct PackedBytes final : PackedSource {
  FfnConfig shape;
  std::array<Matrix, 2> matrices;
  std::array<std::vector<std::byte>, 2> index, payload;

  explicit PackedBytes(const PackedSource& from) : shape(from.config()), compute_(from.compute()) {
    for (const Part part : {Part::gate_up, Part::down}) {
      const auto p = static_cast<std::size_t>(part);
      matrices[p] = from.matrix(part);
      index[p].resize(static_cast<std::size_t>(matrices[p].index_bytes));
      from.read_index(part, index[p]);
      payload[p].resize(static_cast<std::size_t>(matrices[p].payload_bytes));
      for (std::size_t at = 0; at < payload[p].size(); at += kChunk) {
        const std::size_t n = std::min(kChunk, payload[p].size() - at);
        from.read_payload(part, static_cast<std::int64_t>(at), {payload[p].data() + at, n});
      }
    }
  }
  [[nodiscard]] std::string name() const override { return "damaged"; }
  [[nodiscard]] FfnConfig config() const override { return shape; }
  [[nodiscard]] Compute compute() const override { return compute_; }
  [[nodiscard]] Matrix matrix(Part part) const override {
    const auto p = static_cast<std::size_t>(part);
    return {matrices[p].dtype, matrices[p].storage, std::ssize(index[p]), std::ssize(payload[p])};
  }
  void read_index(Part part, std::span<std::byte> dst) const override {
    std::copy(index[static_cast<std::size_t>(part)].begin(), index[static_cast<std::size_t>(part)].end(), dst.begin());
  }
  void read_payload(Part part, std::int64_t offset, std::span<std::byte> dst) const override {
    const auto& bytes = payload[static_cast<std::size_t>(part)];
    std::copy_n(bytes.begin() + offset, dst.size(), dst.begin());
  }
  [[nodiscard]] std::shared_ptr<const std::byte> view_payload(Part) const override { return nullptr; }

 private:
  static constexpr auto kChunk = static_cast<std::size_t>(kChunkBytes);
  Compute compute_;
};

}  // namespace swiglu::testing
