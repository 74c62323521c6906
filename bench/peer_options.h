// The command line of swiglu_peers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "swiglu/swiglu.hpp"

namespace swiglu::bench {

struct PeerOptions {
  std::vector<std::int64_t> tokens{1, 4, 16, 64, 512};
  DType dtype = DType::bf16;
  int threads = 1;  ///< never 0 once parsed
  FfnConfig config{.dim = 4096, .hidden = 14336, .eps = 1e-5};
  double seconds = 10;  ///< of measuring, for each number of tokens
  std::string onednn;   ///< matmul or inner_product; "": whichever is faster
  std::string python = "python3";
  std::string json;  ///< a file for all samples, or ""
};

/// Throws usage, in one line. Prints the help and ends the program for --help.
[[nodiscard]] PeerOptions parse_peer_options(int argc, char** argv);

}  // namespace swiglu::bench
