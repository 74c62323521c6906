// swiglu width: Meta's width recipe as one number, for scripts.
#include <fmt/format.h>

#include "commands.h"
#include "report.h"

namespace swiglu::cli {

int width(const WidthOptions& options) {
  say(fmt::format("{}\n", ffn_width(options.dim, options.multiple_of, options.multiplier)));
  return 0;
}

}  // namespace swiglu::cli
