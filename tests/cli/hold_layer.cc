// Holds one layer of a packed file while test_pack.py looks at this process's memory: loads it, runs one token,
// says "ready" and waits for the end of its input.
//
//     hold_layer FILE LAYER map|read
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "swiglu/swiglu.hpp"

int main(int argc, char** argv) try {
  if (argc != 4) return 2;
  swiglu::OpenOptions options;
  options.map = std::string_view(argv[3]) == "map";
  const swiglu::LayerSource source = swiglu::Checkpoint::open(argv[1], options).layer(std::atoll(argv[2]));
  swiglu::ThreadPool pool(1);
  const swiglu::FeedForward layer(source, pool);
  const std::int64_t dim = source.config.dim;
  std::vector<float> h(static_cast<std::size_t>(dim), 0.5F);
  layer.block(swiglu::view_f32(h.data(), 1, dim), swiglu::view_f32(h.data(), 1, dim));  // touches every page
  std::printf("ready %lld\n", static_cast<long long>(layer.info().packed_bytes));
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
} catch (const swiglu::Error& error) {
  std::fprintf(stderr, "hold_layer: %s\n", error.what());
  return 1;
}
