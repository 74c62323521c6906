// Buffer over anonymous mmap; see buffer.h.
#include "base/buffer.h"

#include <sys/mman.h>

#include <fmt/format.h>

#include "swiglu/swiglu.hpp"

namespace swiglu {
namespace {
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
}

Buffer::Buffer(std::int64_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes < 0 || bytes > INT64_MAX / 2) {
    throw Error(ErrorCode::no_memory, fmt::format("cannot allocate {} bytes", bytes));
  }
  mapped_ = static_cast<std::size_t>(bytes + kHugePage);
  mapping_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw Error(ErrorCode::no_memory, fmt::format("cannot allocate {} bytes", bytes));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  const auto offset = (kHugePage - static_cast<std::int64_t>(address % kHugePage)) % kHugePage;
  data_ = static_cast<std::byte*>(mapping_) + offset;
  // A request only: without huge pages the library works, a little slower.
  if (bytes >= kHugePage) madvise(data_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
}

Buffer::~Buffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

}  // namespace swiglu
