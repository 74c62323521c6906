// Run by mpirun: every rank compares what the ranks compute together with what rank 0 computes alone, bit for bit,
// over hidden sizes, arithmetic, storage, tokens and ways to reduce. Prints the number of comparisons on rank 0.
//
//     mpirun -n R swiglu_rank_bits [large | models PATH... | huge | differ]
//
// Without a word, small layers of many shapes. large: the shape of Llama 3 8B. models: all layers of checkpoints. huge:
// more bytes at once than MPI can count. differ: ranks that make other calls, which must end in an error on some of
// them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "swiglu/files.hpp"
#include "swiglu/mpi.hpp"

namespace {

using namespace swiglu;

struct Totals {
  std::int64_t compared = 0, different = 0;
};

std::vector<float> normal(std::int64_t count) {
  std::mt19937 random(3);
  std::normal_distribution<float> value;
  std::vector<float> h(static_cast<std::size_t>(count));
  for (float& x : h) x = value(random);
  return h;
}

std::vector<float> run(const FeedForward& layer, std::vector<float> h, std::int64_t tokens) {
  const std::int64_t dim = layer.info().config.dim;
  layer.block(view_f32(h.data(), tokens, dim), view_f32(h.data(), tokens, dim));  // in place
  return h;
}

void compare_layer(mpi::Session& session, const LayerSource& source, const std::string& name,
                   const std::vector<std::int64_t>& tokens, Totals& totals) {
  ThreadPool pool(1);
  const std::int64_t dim = source.config.dim;
  for (const Compute compute : {Compute::f32, Compute::bf16}) {
    for (const Storage storage : {Storage::plain, Storage::compact}) {
      std::optional<FeedForward> alone;  // which 16 ranks at once have no memory for
      if (session.rank() == 0) alone.emplace(source, pool, Options{.compute = compute, .storage = storage});
      const FeedForward shared(source, pool, {.compute = compute, .storage = storage, .reducer = &session.reducer()});
      for (const std::int64_t count : tokens) {
        const std::vector<float> h = normal(count * dim);
        const std::vector<float> found = run(shared, h, count);
        std::vector<std::byte> expected;
        if (alone) {
          const std::vector<float> right = run(*alone, h, count);
          const auto bytes = std::as_bytes(std::span(right));
          expected.assign(bytes.begin(), bytes.end());
        }
        session.broadcast(expected);
        ++totals.compared;
        if (expected.size() == found.size() * sizeof(float) &&
            std::memcmp(expected.data(), found.data(), expected.size()) == 0) {
          continue;
        }
        ++totals.different;
        std::fprintf(stderr, "rank %d of %d: other bits: %s, compute %s, %s, %lld tokens\n", session.rank(),
                     session.size(), name.c_str(), name_of(compute), name_of(storage), static_cast<long long>(count));
      }
    }
  }
}

void compare(mpi::Session& session, const FfnConfig& config, const std::vector<std::int64_t>& tokens, Totals& totals) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    compare_layer(session, random_layer(config, dtype, 5),
                  fmt::format("dim {}, hidden {}, {} weights", config.dim, config.hidden, name_of(dtype)), tokens,
                  totals);
  }
}

void compare_models(mpi::Session& session, std::span<char* const> paths, Totals& totals) {
  for (const char* path : paths) {
    const Checkpoint model = Checkpoint::open(path);
    for (const std::int64_t layer : model.layer_numbers()) {
      compare_layer(session, model.layer(layer), fmt::format("{}, layer {}", path, layer), {1, 300}, totals);
    }
  }
}

/// A narrow wire rounds: all ranks agree, and a token does not depend on its batch.
void compare_narrow(mpi::Session& session, Totals& totals) {
  ThreadPool pool(1);
  const FfnConfig config{96, 1000, 1e-5};
  const FeedForward layer(random_layer(config, DType::f32, 5), pool, {.reducer = &session.reducer()});
  constexpr std::int64_t kTokens = 300;
  const std::vector<float> h = normal(kTokens * config.dim);
  const std::vector<float> all = run(layer, h, kTokens);
  const std::vector<float> one = run(layer, {h.begin(), h.begin() + config.dim}, 1);
  const std::vector<float> first(all.begin(), all.begin() + config.dim);
  totals.compared += 2;
  if (first != one) ++totals.different;
  const auto others = session.gather(std::as_bytes(std::span(all)));
  for (const auto& other : others) {
    if (other.size() != others.front().size() || std::memcmp(other.data(), others.front().data(), other.size()) != 0) {
      ++totals.different;
    }
  }
}

/// The reducer for programs that have no Session.
void compare_plain_reducer(Totals& totals) {
  ThreadPool pool(1);
  const auto reducer = mpi::make_reducer();
  const LayerSource source = random_layer({64, 300, 1e-5}, DType::f32, 5);
  const std::vector<float> h = normal(std::int64_t{3} * 64);
  ++totals.compared;
  const Options options{.reducer = reducer.get()};
  if (run(FeedForward(source, pool, options), h, 3) != run(FeedForward(source, pool), h, 3)) ++totals.different;
  totals.different += reducer->traffic().reductions == 1 ? 0 : 1;
}

int send_much(mpi::Session& session) {
  constexpr std::size_t kBytes = (std::size_t{1} << 30) + 12345;
  const auto pattern = [](std::size_t i) { return static_cast<std::byte>(i * 2654435761U >> 24); };
  std::vector<std::byte> bytes;
  if (session.rank() == 0) {
    bytes.resize(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) bytes[i] = pattern(i);
  }
  session.broadcast(bytes);
  bool right = bytes.size() == kBytes;
  for (std::size_t i = 0; right && i < kBytes; ++i) right = bytes[i] == pattern(i);
  return right ? 0 : 1;
}

/// Rank r runs r + 1 tokens. Never returns where that is noticed.
int make_other_calls(mpi::Session& session) {
  ThreadPool pool(1);
  const auto reducer = mpi::make_reducer({.timeout_seconds = 3});
  const FeedForward layer(random_layer({64, 300, 1e-5}, DType::f32, 5), pool, {.reducer = reducer.get()});
  const std::int64_t tokens = session.rank() + 1;
  try {
    run(layer, normal(tokens * 64), tokens);
  } catch (const Error& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    session.leave(7);
  }
  return 1;
}

void compare_shapes(mpi::Session& session, Totals& totals) {
  using mpi::Overlap, mpi::Wire;
  for (const Overlap overlap : {Overlap::none, Overlap::posted, Overlap::thread}) {
    session.remake_reducer(Wire::f32, overlap);
    const bool usual = overlap == Overlap::posted;
    for (const std::int64_t hidden : {1, 15, 172, 10007}) {
      if (usual || hidden == 172) compare(session, {64, hidden, 1e-5}, {1, 2, 300, 520}, totals);
    }
  }
  session.remake_reducer(Wire::f32, Overlap::posted);
  compare(session, {1, 40, 1e-5}, {1, 5}, totals);  // fewer floats than ranks
  session.remake_reducer(Wire::bf16, Overlap::posted);
  compare_narrow(session, totals);
  compare_plain_reducer(totals);
}

int test(mpi::Session& session, const std::string& mode, std::span<char* const> arguments) {
  Totals totals;
  if (mode == "large") {
    compare(session, {4096, 14336, 1e-5}, {1, 300}, totals);
  } else if (mode == "models") {
    compare_models(session, arguments, totals);
  } else {
    compare_shapes(session, totals);
  }
  const auto each = session.gather(std::as_bytes(std::span(&totals, 1)));
  if (session.rank() != 0) return totals.different == 0 ? 0 : 1;
  Totals sum;
  for (const auto& bytes : each) {
    Totals one;
    std::memcpy(&one, bytes.data(), sizeof one);
    sum.compared += one.compared, sum.different += one.different;
  }
  std::printf("%d ranks: %lld comparisons, %lld different\n", session.size(), static_cast<long long>(sum.compared),
              static_cast<long long>(sum.different));
  return sum.different == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  mpi::Session session;
  int code = 0;
  std::string text;
  try {
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "huge") {
      code = send_much(session);
    } else if (mode == "differ") {
      code = make_other_calls(session);
    } else {
      code = test(session, mode, {argv + std::min(argc, 2), argv + argc});
    }
  } catch (const Error& fault) {
    code = 4;
    text = fault.text();
  }
  const mpi::Session::Ending ending = session.end(code);
  if (ending.speaks && !text.empty()) std::fprintf(stderr, "rank %d: %s\n", session.rank(), text.c_str());
  if (!ending.orderly) session.leave(ending.code);
  session.close();
  return ending.code;
}
