// Fuzz target: files of packed layers, given whole, and the input as the header of a file with 16 KiB of
// zeros as its regions, marks and checksum right.
#include "files/packed.h"

#include "files/checksum.h"
#include "fuzz/fuzz.h"

using namespace swiglu;

namespace {

std::string framed(const std::string& header) {
  const std::string before = "SWIGLUPK" + fuzz::little(1, 4) + std::string(16384 - 12, '\0');
  const std::uint64_t sum = files::checksum(std::as_bytes(std::span(header)));
  return before + header + fuzz::little(before.size(), 8) + fuzz::little(header.size(), 8) + fuzz::little(sum, 8) +
         std::string(32, '\0') + "SWIGLUPK";
}

// What lies in the regions is checked when it is read, so an Error is an answer here.
void walk(const files::Contents& contents) {
  const std::size_t layers = std::min<std::size_t>(contents.layers.size(), 8);
  for (std::size_t i = 0; i < layers; ++i) {
    fuzz::read([&] { fuzz::walk(*contents.layers[i].norm); });
    fuzz::read([&] {
      const auto layer = contents.packed->layer(i);
      for (const auto part : {PackedSource::Part::gate_up, PackedSource::Part::down}) {
        const PackedSource::Matrix matrix = layer->matrix(part);
        std::vector<std::byte> bytes(static_cast<std::size_t>(matrix.index_bytes));
        layer->read_index(part, bytes);
        bytes.resize(static_cast<std::size_t>(std::min(matrix.payload_bytes, PackedSource::kChunkBytes)));
        if (!bytes.empty()) layer->read_payload(part, 0, bytes);
        const auto mapped = layer->view_payload(part);
        if (mapped && *mapped == *std::next(mapped.get(), matrix.payload_bytes - 1)) bytes.clear();
      }
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(fuzz::text_of(data, size));
  for (const std::string& bytes : {input, framed(input)}) {
    const fuzz::MemoryFile memory(bytes);
    for (const bool map : {false, true}) {
      fuzz::read([&] {
        OpenOptions options;
        options.map = map;
        const files::Contents contents = files::open_packed(memory.open(), options);
        walk(contents);
        contents.packed->check();
      });
    }
  }
  return 0;
}
