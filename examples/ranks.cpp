// One feed-forward sublayer on all ranks of an MPI program, each with its share of the weights.
//
//     mpirun -n 2 ranks          a random layer, made on the spot
//     mpirun -n 2 ranks MODEL    layer 0 of a checkpoint, which every rank must be able to open
#include <mpi.h>
#include <swiglu/files.hpp>
#include <swiglu/mpi.hpp>
#include <swiglu/swiglu.hpp>

#include <cstdint>
#include <cstdio>
#include <vector>

int main(int argc, char** argv) try {
  MPI_Init(&argc, &argv);
  {
    const auto reducer = swiglu::mpi::make_reducer();  // or with MPI_Comm_c2f(comm) for some of the ranks
    const swiglu::LayerSource weights =
        argc > 1 ? swiglu::Checkpoint::open(argv[1]).layer(0)
                 : swiglu::random_layer({.dim = 1024, .hidden = 2816, .eps = 1e-5}, swiglu::DType::bf16, 1);

    swiglu::ThreadPool pool(1);  // threads of this rank
    swiglu::Options options;
    options.reducer = reducer.get();
    const swiglu::FeedForward layer(weights, pool, options);  // reads and packs this rank's share only

    constexpr std::int64_t kTokens = 4;
    const std::int64_t dim = weights.config.dim;
    std::vector<float> h(static_cast<std::size_t>(kTokens * dim));
    for (std::size_t i = 0; i < h.size(); ++i) h[i] = static_cast<float>(i % 7) - 3.0F;

    // Every rank makes the same call with the same h; every rank gets the whole output.
    layer.block(swiglu::view_f32(h.data(), kTokens, dim), swiglu::view_f32(h.data(), kTokens, dim));

    std::printf("rank %d of %d: %.1f MB of weights, %lld bytes sent, token 0: %.6g %.6g …\n", reducer->rank(),
                reducer->size(), 1e-6 * static_cast<double>(layer.info().packed_bytes),
                static_cast<long long>(reducer->traffic().bytes_sent), static_cast<double>(h[0]),
                static_cast<double>(h[1]));
  }
  MPI_Finalize();
  return 0;
} catch (const swiglu::Error& error) {
  std::fprintf(stderr, "ranks: %s\n", error.what());
  MPI_Abort(MPI_COMM_WORLD, 1);
}
