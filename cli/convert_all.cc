// swiglu convert --all: a whole model in other shards. The library copies; here is what does not go with it, the room
// it takes, and what is said.
#include "convert_all.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "outputs.h"
#include "progress.h"
#include "report.h"

namespace swiglu::cli {

namespace {

void check_flags(const ConvertOptions& options) {
  const std::string_view other = options.type              ? "--dtype"
                                 : !options.layers.empty() ? "--layers"
                                 : options.expert          ? "--expert"
                                                           : "";
  if (other.empty()) return;
  throw Error(ErrorCode::usage, fmt::format("--all copies every tensor as it is: it does not go with {}", other));
}

std::string_view format_word(CheckpointFormat format) {
  constexpr std::string_view kWords[] = {"huggingface", "meta", "gguf"};
  return kWords[static_cast<int>(format)];
}

void check_format(const ConvertOptions& options, const Checkpoint& model) {
  const std::string found = model.format() == "safetensors" ? "huggingface" : model.format();
  if (options.format == CheckpointFormat::meta && found == "meta") {
    throw Error(ErrorCode::unsupported,
                "--all is not there for meta: hf and gguf models are copied whole, of a meta one "
                "the feed-forward is converted without --all");
  }
  if (found == format_word(options.format)) return;
  throw Error(ErrorCode::usage,
              fmt::format("--all stays within one format: {} is of format {}, and --format asks for {}",
                          printable(options.model.string()), found, format_word(options.format)));
}

}  // namespace

int convert_all(const ConvertOptions& options) {
  check_flags(options);
  {
    const Checkpoint model = Checkpoint::open(options.model, options.open);
    check_format(options, model);
    for (const std::string& note : model.notes()) tell(fmt::format("swiglu: note: {}\n", note));
  }
  const Stopwatch watch;
  WrittenCheckpoint written;
  {
    Meter meter("copying");
    const auto progress = [&](std::int64_t done, std::int64_t total) {
      if (done == 0) check_room(options.output, static_cast<double>(total));
      meter.update(done, total);
    };
    written = copy_checkpoint(options.model, options.output, options.shards, progress, options.open);
  }
  tell_notes(written);
  say(fmt::format("{}: {} checkpoint, the whole model, {}, {}, written in {}\n", printable(options.output.string()),
                  title_of(options.format), plural(options.shards, "weight file"),
                  format_bytes(static_cast<double>(written.bytes)), format_seconds(watch.seconds())));
  return 0;
}

}  // namespace swiglu::cli
