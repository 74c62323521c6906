// place_tensors: the claims of a state dict's tensors, checked against the storages they are views of.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"
#include "files/blocks.h"
#include "files/pth.h"

namespace swiglu::files {
namespace {

// A tensor's claim to a part of a storage.
class View {
 public:
  View(const PickledTensor& tensor, std::uint64_t elements, const std::string& where, const std::string& name)
      : tensor_(tensor), elements_(elements), where_(where), name_(name) {}

  /// All elements lie in the storage, and their number times their size fits.
  void check() const {
    std::uint64_t count = 1;
    bool empty = false;
    std::uint64_t last = unsigned_of(tensor_.offset, "offset");
    if (last > elements_) outside(last);
    for (std::size_t i = 0; i < tensor_.sizes.size(); ++i) {
      const std::uint64_t size = unsigned_of(tensor_.sizes[i], "size");
      const std::uint64_t stride = unsigned_of(tensor_.strides[i], "stride");
      empty = empty || size == 0;
      std::uint64_t reach = 0;
      // A product that overflows is refused even beside a zero: nothing sound writes it.
      if (size > 0 && (!checked_mul(count, size, count) || count > kLargest)) outside_numbers();
      if (size > 1 && (!checked_mul(size - 1, stride, reach) || !checked_add(last, reach, last))) outside_numbers();
    }
    if (!empty && last >= elements_) outside(last);
  }

  /// The stride of a dimension of one element, and any of a tensor without, is arbitrary in files, and 1 here.
  [[nodiscard]] std::vector<std::int64_t> strides() const {
    std::vector<std::int64_t> strides = tensor_.strides;
    const bool empty = std::find(tensor_.sizes.begin(), tensor_.sizes.end(), 0) != tensor_.sizes.end();
    for (std::size_t i = 0; i < strides.size(); ++i) strides[i] = tensor_.sizes[i] > 1 && !empty ? strides[i] : 1;
    return strides;
  }

 private:
  static constexpr std::uint64_t kLargest = (std::uint64_t{1} << 60) - 1;  // times 8 bytes: still an int64
  [[noreturn]] void wrong(const std::string& text) const {
    throw Error(ErrorCode::format, fmt::format("{}: tensor {}: {}", where_, escaped(name_), text));
  }
  [[noreturn]] void outside(std::uint64_t element) const {
    wrong(fmt::format("expected all elements inside its storage of {}, found element {}", elements_, element));
  }
  [[noreturn]] void outside_numbers() const {
    wrong(fmt::format("expected a tensor of fewer than 2^60 elements, found sizes [{}] with strides [{}]",
                      fmt::join(tensor_.sizes, ", "), fmt::join(tensor_.strides, ", ")));
  }
  [[nodiscard]] std::uint64_t unsigned_of(std::int64_t value, const char* what) const {
    if (value < 0) wrong(fmt::format("expected a {} of 0 or more, found {}", what, value));
    return static_cast<std::uint64_t>(value);
  }

  const PickledTensor& tensor_;
  std::uint64_t elements_;
  const std::string& where_;
  const std::string& name_;
};

}  // namespace

TensorTable place_tensors(const PickledState& state, const std::vector<std::uint64_t>& offsets,
                          const std::shared_ptr<const File>& file) {
  const std::string where = escaped(file->name());
  TensorTable table;
  for (const auto& [name, tensor] : state.tensors) {
    const PickledStorage& storage = state.storages[tensor.storage];
    const auto item = static_cast<std::uint64_t>(tensor.type->item_bytes);
    // An untyped storage counts bytes; of any other the types agree.
    const auto elements =
        static_cast<std::uint64_t>(storage.elements) * static_cast<std::uint64_t>(storage.type->item_bytes) / item;
    const View view(tensor, elements, where, name);
    view.check();
    StoredTensor stored;
    stored.dtype_name = tensor.type->name;
    stored.dtype = tensor.type->dtype;
    if (!tensor.type->encoding.empty()) stored.encoding = find_encoding(tensor.type->encoding);
    stored.shape = tensor.sizes;
    stored.strides = view.strides();
    stored.offset = offsets[tensor.storage] + static_cast<std::uint64_t>(tensor.offset) * item;
    stored.file = file;
    table.emplace(name, std::move(stored));
  }
  return table;
}

}  // namespace swiglu::files
