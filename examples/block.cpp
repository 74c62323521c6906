// One feed-forward sublayer on four tokens.
//
//     block          a random layer, made on the spot
//     block MODEL    layer 0 of a checkpoint: a Hugging Face, Meta or GGUF model, or a packed file
#include <swiglu/files.hpp>
#include <swiglu/swiglu.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

int main(int argc, char** argv) try {
  const swiglu::LayerSource weights =
      argc > 1 ? swiglu::Checkpoint::open(argv[1]).layer(0)
               : swiglu::random_layer({.dim = 1024, .hidden = 2816, .eps = 1e-5}, swiglu::DType::bf16, 1);

  swiglu::ThreadPool pool;                         // one for all layers of a model
  const swiglu::FeedForward layer(weights, pool);  // reads and packs the weights, once

  constexpr std::int64_t kTokens = 4;
  const std::int64_t dim = weights.config.dim;
  std::vector<float> h(static_cast<std::size_t>(kTokens * dim));
  std::vector<float> out(h.size());
  for (std::size_t i = 0; i < h.size(); ++i) h[i] = static_cast<float>(i % 7) - 3.0F;

  // With a workspace of one's own, a call allocates nothing. Without one it is just block(h, out).
  std::vector<CacheLine> workspace((layer.workspace_bytes(kTokens) + 63) / 64);
  layer.block(swiglu::view_f32(h.data(), kTokens, dim), swiglu::view_f32(out.data(), kTokens, dim),
              std::as_writable_bytes(std::span(workspace)));

  std::printf("dim %lld, hidden %lld, %s compute on %s\n", static_cast<long long>(dim),
              static_cast<long long>(weights.config.hidden), swiglu::name_of(layer.info().compute),
              swiglu::name_of(layer.info().isa));
  for (std::int64_t token = 0; token < kTokens; ++token) {
    const float* row = out.data() + token * dim;
    std::printf("token %lld: %.6g %.6g …\n", static_cast<long long>(token), static_cast<double>(row[0]),
                static_cast<double>(row[1]));
  }
  return 0;
} catch (const swiglu::Error& error) {
  std::fprintf(stderr, "block: %s\n", error.what());
  return 1;
}
