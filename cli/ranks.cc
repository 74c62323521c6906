// How reports of ranks look; see team.h.
#include <fmt/format.h>

#include "report.h"
#include "team.h"

namespace swiglu::cli {

std::string show_ranks(const std::vector<RankReport>& ranks) {
  Table table;
  table.column("rank");
  table.column("host", Table::Align::left);
  table.column("threads");
  table.column("groups", Table::Align::left);
  for (const char* title : {"packed", "memory", "above MPI", "read", "loading", "computing", "exchanging", "sent"}) {
    table.column(title);
  }
  for (const RankReport& r : ranks) {
    const bool none = r.first_group == r.last_group;
    table.row({std::to_string(r.rank), printable(r.host), std::to_string(r.threads),
               none ? "none" : fmt::format("{}-{}", r.first_group, r.last_group - 1),
               format_bytes(static_cast<double>(r.packed_bytes)), format_bytes(static_cast<double>(r.peak_bytes)),
               format_bytes(static_cast<double>(r.peak_bytes - r.first_bytes)),
               format_bytes(static_cast<double>(r.bytes_read)), format_seconds(r.load_seconds),
               r.calls == 0 ? "-" : format_seconds(r.compute_seconds),
               r.calls == 0 ? "-" : format_seconds(r.exchange_seconds),
               r.calls == 0 ? "-" : format_bytes(static_cast<double>(r.bytes_sent))});
  }
  return table.text();
}

}  // namespace swiglu::cli
