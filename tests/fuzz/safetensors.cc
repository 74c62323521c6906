// Fuzz target: the safetensors container, given whole, and the input as a header before 64 bytes of data.
#include "fuzz/fuzz.h"

using namespace swiglu;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(fuzz::text_of(data, size));
  for (const std::string& bytes : {input, fuzz::little(size, 8) + input + std::string(64, 'x')}) {
    const fuzz::MemoryFile file(bytes);
    fuzz::read([&] { fuzz::walk(files::read_safetensors(file.open())); });
  }
  return 0;
}
