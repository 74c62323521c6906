// A model's layers packed once, into a file that any number of processes map and run without packing.
//
//     packed MODEL FILE    packs MODEL into FILE, then runs its first layer from there
#include <swiglu/files.hpp>
#include <swiglu/swiglu.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <vector>

void pack(const std::filesystem::path& folder, const std::filesystem::path& file, swiglu::ThreadPool& pool) {
  const auto model = swiglu::Checkpoint::open(folder);
  swiglu::PackedWriter writer(file, model);
  for (const std::int64_t i : model.layer_numbers()) {
    const swiglu::LayerSource source = model.layer(i);
    const swiglu::FeedForward layer(source, pool);
    writer.add(i, *layer.packed(), source.norm);
  }
  writer.commit();  // the file appears when it is complete
}

swiglu::FeedForward map_first_layer(const std::filesystem::path& file, swiglu::ThreadPool& pool) {
  swiglu::OpenOptions options;
  options.map = true;  // all processes that do so share one copy
  const auto model = swiglu::Checkpoint::open(file, options);
  return {model.layer(model.layer_numbers().front()), pool};
}

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: packed MODEL FILE\n");
    return 2;
  }
  swiglu::ThreadPool pool;
  pack(argv[1], argv[2], pool);
  const swiglu::FeedForward layer = map_first_layer(argv[2], pool);
  const std::int64_t dim = layer.info().config.dim;
  std::vector<float> h(static_cast<std::size_t>(dim), 1.0F);
  layer.block(swiglu::view_f32(h.data(), 1, dim), swiglu::view_f32(h.data(), 1, dim));
  std::printf("%s compute, %s, %.4g bits a weight: %.6g …\n", swiglu::name_of(layer.info().compute),
              layer.info().gate_up.storage, layer.info().bits_per_weight, static_cast<double>(h.front()));
  return 0;
} catch (const swiglu::Error& error) {
  std::fprintf(stderr, "packed: %s\n", error.what());
  return 1;
}
