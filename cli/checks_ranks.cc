// The part of verify and demo that all ranks take part in: outputs to be compared with one process later, when rank 0
// is alone and has time.
#include <fmt/format.h>

#include <algorithm>

#include "checks.h"
#include "report.h"
#include "storage.h"

namespace swiglu::cli {

std::vector<RankRun> run_on_ranks(Team& team, const LayerOrigin& origin, const LayerSource& source, Compute compute,
                                  std::span<const float> h, std::int64_t tokens, int threads) {
  std::vector<RankRun> runs;
  const std::int64_t dim = source.config.dim;
  team.input(view_f32(h.data(), tokens, dim));
  // Another machine may lack what this one has; the scalar tier takes minutes at published shapes.
  std::vector<Isa> isas = team.one_machine() ? available_isas() : std::vector{Isa::automatic};
  if (isas.size() > 1 && scalar_takes_long(source.config, tokens)) std::erase(isas, Isa::scalar);
  std::reverse(isas.begin(), isas.end());
  const bool choice = has_bf16(source, compute);
  for (const Isa isa : isas) {
    std::vector<std::string> storages;
    for (const Storage storage : {Storage::plain, all_bf16(source, compute) ? Storage::compact : Storage::automatic}) {
      if (storage != Storage::plain && !choice) continue;
      const auto layer = team.make(origin, compute, storage, isa, threads);
      const std::string name = storage_of(layer->info());
      if (std::find(storages.begin(), storages.end(), name) != storages.end()) continue;
      storages.push_back(name);
      for (const Split& split : splits_of(tokens)) {
        std::vector<float> out(h.size());
        std::int64_t row = 0;
        for (const std::int64_t count : split.counts) {
          layer->run(row, true, view_f32(out.data() + row * dim, count, dim));
          row += count;
        }
        runs.push_back(
            {fmt::format("{}, {}, {}, {}", name_of(layer->info().isa), name, plural(team.size(), "rank"), split.name),
             std::move(out)});
      }
    }
  }
  return runs;
}

}  // namespace swiglu::cli
