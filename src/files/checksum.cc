// The one home of xxHash: its header is compiled in here (XXH_INLINE_ALL), so that neither the library nor
// a program that links it statically depends on libxxhash. Knows no file format.
#include "files/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

// Before 0.8.0 the results of XXH3 still changed from release to release.
static_assert(XXH_VERSION_NUMBER >= 800, "swiglu needs xxHash 0.8.0 or later");

namespace swiglu::files {

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace swiglu::files
