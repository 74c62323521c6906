// Who owns which reduction groups, and the one-process Reducer: complete subtrees of 16 groups, joined in the fixed
// tree.
#include <array>
#include <cstring>
#include <vector>

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

std::vector<Subtree> owned_subtrees(int rank, int ranks) {
  const auto border = [ranks](std::int64_t r) { return static_cast<int>(16 * r / ranks); };
  std::vector<Subtree> found;
  const int last = border(std::int64_t{rank} + 1);
  for (int g = border(rank); g < last;) {
    int size = 1;
    while (g % (2 * size) == 0 && g + 2 * size <= last) size *= 2;
    found.push_back({g, size});
    g += size;
  }
  return found;
}

std::unique_ptr<Reducer> make_local_reducer() { return std::make_unique<LocalReducer>(); }

}  // namespace swiglu
