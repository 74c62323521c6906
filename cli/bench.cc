// swiglu bench: how fast a layer is, beside this machine's own limits. Outputs are opened before anything
// is measured, so that minutes are not lost to a name that cannot be written.
#include "bench.h"

#include <fmt/format.h>

#include <optional>

#include "bench_ranks.h"
#include "outputs.h"
#include "report.h"

namespace swiglu::cli {

int bench(const BenchOptions& options, Team* team) {
  if (team != nullptr) return bench_on_ranks(options, *team);
  std::optional<NewFile> json, svg;
  const bool json_only = options.json && options.json->empty();  // on stdout
  if (options.json && !json_only) json = open_output("--json", *options.json, "{");
  if (options.svg) svg = open_output("--svg", *options.svg, "<svg");
  BenchReport report;
  {
    Meter meter("bench");
    report = measure_bench(options, meter);
  }
  if (json) {
    json->write(bench_json(report));
    json->commit();
  }
  if (svg) {
    svg->write(bench_svg(report));
    svg->commit();
  }
  say(json_only ? bench_json(report) : bench_table(report));
  for (const auto& written : {options.json, options.svg}) {
    if (written && !written->empty()) tell(fmt::format("bench: wrote {}\n", printable(written->string())));
  }
  return 0;
}

}  // namespace swiglu::cli
