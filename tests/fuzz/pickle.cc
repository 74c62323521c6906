// Fuzz target: the input as a pickle, first alone, then as data.pkl of an archive with storages "0" (96 bytes)
// and "1" (6 bytes), checksums right, so that its claims about tensors meet the bytes.
#include <vector>

#include <zlib.h>

#include "files/pickle.h"
#include "fuzz/fuzz.h"

using namespace swiglu;

namespace {

std::string archive(std::string_view pickle) {
  const std::vector<std::pair<std::string, std::string>> entries = {
      {"a/data.pkl", std::string(pickle)}, {"a/data/0", std::string(96, '\x3f')}, {"a/data/1", std::string(6, '\x3f')}};
  std::string out, directory;
  for (const auto& [name, data] : entries) {
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size()));
    const std::string common = fuzz::little(20, 2) + fuzz::little(0, 8) + fuzz::little(crc, 4) +
                               fuzz::little(data.size(), 4) + fuzz::little(data.size(), 4) +
                               fuzz::little(name.size(), 2);
    directory +=
        "PK\x01\x02" + fuzz::little(20, 2) + common + std::string(12, '\0') + fuzz::little(out.size(), 4) + name;
    out += "PK\x03\x04" + common + fuzz::little(0, 2) + name + data;
  }
  return out + directory + "PK\x05\x06" + fuzz::little(0, 4) + fuzz::little(entries.size(), 2) +
         fuzz::little(entries.size(), 2) + fuzz::little(directory.size(), 4) + fuzz::little(out.size(), 4) +
         fuzz::little(0, 2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  bool sound = false;
  fuzz::read([&] {
    for (const auto& [name, tensor] : files::read_pickle(input, "data.pkl").tensors) {
      if (tensor.type == nullptr || tensor.sizes.size() != tensor.strides.size()) fuzz::finding("tensor " + name);
    }
    sound = true;
  });
  if (!sound) return 0;
  const fuzz::MemoryFile file(archive(input));
  fuzz::read([&] { fuzz::walk(files::read_pth(file.open())); });
  return 0;
}
