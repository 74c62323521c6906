// Fuzz target: the GGUF container, and the same bytes as a checkpoint of any format: names, shapes, experts, layers.
#include "files/gguf.h"

#include "fuzz/fuzz.h"

using namespace swiglu;

namespace {

void walk_layers(const fuzz::MemoryFile& file, bool collect) {
  OpenOptions options;
  options.collect_problems = collect;
  const Checkpoint model = Checkpoint::open(file.path(), options);
  const std::int64_t experts = std::min<std::int64_t>(model.experts(), 3);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(model.layers(), 3); ++i) {
    for (std::int64_t e = 0; e < std::max<std::int64_t>(experts, 1); ++e) {
      fuzz::read([&] {  // in a checkpoint that is not sound a layer may be refused
        const LayerSource layer = model.layer(i, experts > 0 ? std::optional(e) : std::nullopt);
        for (const auto& source : {layer.gate, layer.up, layer.down}) {
          if (source) fuzz::walk(*source);
        }
      });
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile file(fuzz::text_of(data, size));
  fuzz::read([&] { fuzz::walk(files::read_gguf(file.open()).tensors); });
  fuzz::read([&] { walk_layers(file, false); });
  fuzz::read([&] { walk_layers(file, true); });
  return 0;
}
