// See peer_options.h. By hand, because CLI11's only home is the command.
#include "peer_options.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

namespace swiglu::bench {
namespace {

constexpr const char* kHelp =
    R"(swiglu_peers: swiglu beside oneDNN, OpenBLAS (f32) and torch (where installed), in turns, on the same weights

  --tokens LIST        numbers of tokens, with commas (1,4,16,64,512)
  --compute TYPE       bf16 or f32: weights, activations, input and output (bf16)
  --threads N          for all of them; 0: all CPUs (1)
  --dim N, --hidden N  the layer's shape (4096 and 14336, Llama 3 8B)
  --seconds S          of measuring for each number of tokens (10)
  --onednn KIND        matmul or inner_product; without it both are tried and the faster one is measured
  --python PROGRAM     the Python that may have torch (python3); "none": leave torch out
  --json FILE          every sample, in seconds
)";

[[noreturn]] void refuse(std::string_view flag, std::string_view value, const char* expected) {
  throw Error(ErrorCode::usage, fmt::format("{} {}: expected {}", flag, value, expected));
}

template <class Number>
Number number(std::string_view flag, std::string_view text, Number least, const char* expected) {
  Number value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !(value >= least)) refuse(flag, text, expected);
  return value;
}

std::vector<std::int64_t> list(std::string_view flag, std::string_view text) {
  constexpr const char* kExpected = "numbers from 1, with commas";
  std::vector<std::int64_t> values;
  for (std::string_view rest = text;;) {
    const auto comma = rest.find(',');
    values.push_back(number<std::int64_t>(flag, rest.substr(0, comma), 1, kExpected));
    if (comma == std::string_view::npos) return values;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

PeerOptions parse_peer_options(int argc, char** argv) {
  PeerOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    const std::string_view value = i + 1 < argc ? argv[++i] : "";
    if (flag == "--tokens") {
      options.tokens = list(flag, value);
    } else if (flag == "--compute") {
      if (value != "bf16" && value != "f32") refuse(flag, value, "bf16 or f32");
      options.dtype = value == "bf16" ? DType::bf16 : DType::f32;
    } else if (flag == "--threads") {
      options.threads = number(flag, value, 0, "a number from 0");
    } else if (flag == "--dim") {
      options.config.dim = number<std::int64_t>(flag, value, 1, "a number from 1");
    } else if (flag == "--hidden") {
      options.config.hidden = number<std::int64_t>(flag, value, 1, "a number from 1");
    } else if (flag == "--seconds") {
      options.seconds = number(flag, value, 0.0, "a number from 0");
    } else if (flag == "--onednn") {
      if (value != "matmul" && value != "inner_product") refuse(flag, value, "matmul or inner_product");
      options.onednn = value;
    } else if (flag == "--python") {
      options.python = value;
    } else if (flag == "--json") {
      options.json = value;
    } else {
      refuse(flag, value, "an option of --help");
    }
  }
  if (options.threads == 0) options.threads = ThreadPool(0).threads();
  return options;
}

}  // namespace swiglu::bench
