// The picture of a `bench`: share of the limit, and time per token, against tokens; a curve for each set.
#include <fmt/format.h>

#include <algorithm>

#include "bench.h"
#include "storage.h"
#include "svg.h"

namespace swiglu::cli {

std::string bench_svg(const BenchReport& report) {
  Chart chart;
  chart.title = fmt::format("{}: dim {}, hidden {}{}", report.name, report.config.dim, report.config.hidden,
                            show_neighbours(report));
  chart.subtitle =
      fmt::format("{}; {}, swiglu {} ({})", report.machine.cpu, report.machine.compiler, version(), SWIGLU_COMMIT);
  chart.x_title = "tokens a call";
  ChartPanel ratio{.title = "Share of what this machine's limits allow",
                   .series = {},
                   .low = 50,
                   .unit = " %",
                   .reference = 100,
                   .reference_name = "the limit"};
  ChartPanel time{
      .title = "Time per token (dashed: what the limits allow)", .series = {}, .log_y = true, .unit = " ms"};
  ChartPanel over{.title = "Time / that of plain storage in the same rounds",
                  .series = {},
                  .low = 0.5,
                  .unit = "",
                  .reference = 1,
                  .reference_name = "plain storage"};
  for (const BenchSet& set : report.sets) {
    const std::string name = key_of(set.layer, set.threads);
    const ChartSeries none{.name = name, .points = {}, .hollow = !is_plain(set.layer)};
    ChartSeries share = none, spent = none, over_plain = none, allowed = none;
    allowed.dashed = true;
    for (std::size_t i = 0; i < set.rows.size(); ++i) {
      const SpeedRow& row = set.rows[i];
      const auto tokens = static_cast<double>(row.tokens);
      share.points.emplace_back(tokens, 100 * row.roofline_ratio());
      spent.points.emplace_back(tokens, 1e3 * row.time() / tokens);
      allowed.points.emplace_back(tokens, 1e3 * median(row.bound_times) / tokens);
      if (!set.over_plain[i].empty()) over_plain.points.emplace_back(tokens, median(set.over_plain[i]));
      if (std::find(chart.ticks.begin(), chart.ticks.end(), tokens) == chart.ticks.end()) chart.ticks.push_back(tokens);
    }
    for (ChartSeries* series : {&share, &spent, &allowed, &over_plain}) {
      std::sort(series->points.begin(), series->points.end());
    }
    ratio.series.push_back(std::move(share));
    time.series.push_back(std::move(allowed));
    time.series.push_back(std::move(spent));
    if (!over_plain.points.empty()) over.series.push_back(std::move(over_plain));
  }
  chart.panels = {std::move(ratio), std::move(time)};
  if (!over.series.empty()) chart.panels.push_back(std::move(over));
  return draw(chart);
}

}  // namespace swiglu::cli
