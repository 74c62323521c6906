// Runs a fuzz target over every file in some folders, without libFuzzer: what fuzzing found stays found.
// `fuzz_corpus_TARGET FOLDER…`; folders that are missing are skipped, but no file at all is a failure.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/fuzz.h"

int main(int argc, char** argv) {
  constexpr std::uintmax_t kLargest = std::uintmax_t{4} << 20;
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::exists(argv[i])) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (entry.is_regular_file() && entry.file_size() <= kLargest) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::fprintf(stderr, "%s\n", path.c_str());  // the last line names the culprit
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu files\n", paths.size());
  return paths.empty() ? 1 : 0;
}
