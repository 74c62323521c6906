// See rank.h.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "progress.h"
#include "rank.h"
#include "swiglu/files.hpp"

namespace swiglu::cli {
namespace {

std::uint64_t hash_of(std::span<const float> values) {  // FNV-1a: to notice, not to defend
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const std::byte byte : std::as_bytes(values)) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3U;
  return hash;
}

}  // namespace

Rank::Rank(mpi::Session& session) : session_(session), first_bytes_(peak_memory()) {}

void Rank::input(DType dtype, std::int64_t rows, std::int64_t dim, std::span<const std::byte> bytes) {
  dtype_ = dtype, rows_ = rows, dim_ = dim;
  input_.assign(bytes.begin(), bytes.end());
}

void Rank::make(int id, const LayerOrigin& origin, Compute compute, Storage storage, Isa isa, int threads) {
  const Stopwatch watch;
  std::optional<Checkpoint> model;
  LayerSource source;
  if (origin.model.empty()) {
    source = random_layer(origin.made_up, origin.dtype, origin.seed);
  } else {
    model.emplace(Checkpoint::open(origin.model, origin.open));
    source = model->layer(origin.layer, origin.expert);
  }
  auto& pool = pools_[threads];
  if (pool == nullptr) pool = std::make_unique<ThreadPool>(threads);
  Options options;
  options.compute = compute;
  options.storage = storage;
  options.isa = isa;
  options.reducer = &session_.reducer();
  FeedForward layer(source, *pool, options);
  load_seconds_ = watch.seconds();
  if (model) bytes_read_ += static_cast<std::int64_t>(model->bytes_read());
  const FfnConfig& config = layer.info().config;
  session_.agree("the layer",
                 fmt::format("dim {}, hidden {}, eps {}, compute {}, norm {:016x}", config.dim, config.hidden,
                             config.eps, name_of(layer.info().compute), hash_of(source.norm)));
  threads_ = threads;
  packed_bytes_ = layer.info().packed_bytes;
  workspace_bytes_ = 0;
  layers_.insert_or_assign(id, Held{std::move(layer), nullptr, 0});
}

void Rank::run(int id, std::int64_t first, bool block, const MutableTensorView& out) {
  Held& held = layers_.at(id);
  const std::size_t needed = held.layer.workspace_bytes(out.rows);
  if (needed > held.workspace_bytes) {
    held.workspace = nullptr;
    held.workspace = std::make_unique<Memory>(needed);
    held.workspace_bytes = needed;
    workspace_bytes_ = static_cast<std::int64_t>(needed);
  }
  const std::span<std::byte> space = held.workspace == nullptr ? std::span<std::byte>{} : held.workspace->span();
  const TensorView in{input_.data() + first * dim_ * size_of(dtype_), dtype_, out.rows, dim_, dim_};
  const mpi::Traffic before = session_.reducer().traffic();
  const Stopwatch watch;
  if (block) {
    held.layer.block(in, out, space);
  } else {
    held.layer.forward(in, out, space);
  }
  const double whole = watch.seconds();
  const mpi::Traffic after = session_.reducer().traffic();
  exchange_.push_back(after.seconds - before.seconds);
  sent_ += after.bytes_sent - before.bytes_sent;
  compute_.push_back(whole - exchange_.back());
}

void Rank::run(int id, std::int64_t first, bool block, DType dtype, std::int64_t rows) {
  output_.resize(std::max(output_.size(), static_cast<std::size_t>(rows * dim_ * size_of(dtype))));
  run(id, first, block, {output_.data(), dtype, rows, dim_, dim_});
}

RankReport Rank::report() {
  RankReport report;
  gethostname(report.host, sizeof report.host - 1);
  report.rank = session_.rank();
  const auto trees = owned_subtrees(session_.rank(), session_.size());
  if (!trees.empty()) {
    report.first_group = trees.front().first_group;
    report.last_group = trees.back().first_group + trees.back().groups;
  }
  report.threads = threads_;
  report.packed_bytes = packed_bytes_;
  report.workspace_bytes = workspace_bytes_;
  report.bytes_read = bytes_read_;
  report.peak_bytes = peak_memory();
  report.first_bytes = first_bytes_;
  report.load_seconds = load_seconds_;
  report.calls = std::ssize(compute_);
  report.compute_seconds = median(std::exchange(compute_, {}));
  report.exchange_seconds = median(std::exchange(exchange_, {}));
  report.bytes_sent = report.calls == 0 ? 0 : std::exchange(sent_, 0) / report.calls;
  return report;
}

}  // namespace swiglu::cli
