// The one-process Reducer: combines complete subtrees of 16 groups in the fixed tree.
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "swiglu/swiglu.hpp"

namespace swiglu {
namespace {

class LocalReducer final : public Reducer {
 public:
  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int size() const noexcept override { return 1; }

  void start(std::span<const PartialSum> parts, std::int64_t n, float* root, AddFloats add) override {
    // Neighbouring subtrees of equal size join until one is left, as a binary counter carries.
    std::array<PartialSum, 16> stack{};
    std::size_t depth = 0;
    int next = 0;
    for (const PartialSum& part : parts) {
      if (part.first_group != next || depth == stack.size()) break;
      next += part.groups;
      stack[depth++] = part;
      while (depth >= 2 && stack[depth - 2].groups == stack[depth - 1].groups) {
        add(stack[depth - 2].floats, stack[depth - 2].floats, stack[depth - 1].floats, n);
        stack[depth - 2].groups *= 2;
        --depth;
      }
    }
    if (next != 16 || depth != 1) {
      throw Error(ErrorCode::internal, fmt::format("the reduction covers groups 0 to {}, expected all 16", next));
    }
    std::memcpy(root, stack[0].floats, static_cast<std::size_t>(n) * sizeof(float));
  }
  void finish() override {}
};

}  // namespace

std::unique_ptr<Reducer> make_local_reducer() { return std::make_unique<LocalReducer>(); }

}  // namespace swiglu
