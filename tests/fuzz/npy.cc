// Fuzz target: .npy arrays, u2 refused and taken for bf16.
#include "fuzz/fuzz.h"
#include "swiglu/files.hpp"

using namespace swiglu;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  for (const bool u2_is_bf16 : {false, true}) {
    fuzz::read([&] {
      const Array array = read_npy(file.path(), u2_is_bf16);
      std::int64_t bytes = size_of(array.dtype);
      for (const std::int64_t extent : array.shape) bytes *= extent;
      if (bytes != std::ssize(array.bytes)) fuzz::finding("an array whose bytes do not fit its shape");
    });
  }
  return 0;
}
