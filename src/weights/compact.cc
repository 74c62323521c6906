// See compact.h. The table comes from a histogram, not from the largest weight: one outlier would push
// hundreds of ordinary weights out.
#include "weights/compact.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace swiglu::weights {
namespace {

constexpr std::int64_t kWeightsAPatch = 1000;  // at least
constexpr std::int64_t kStepWords = 2 * kernels::kPanel;

struct Histogram {
  std::uint32_t counts[256] = {};
};

// Four counters in turns: one would wait for itself wherever neighbours are equal.
void count(Histogram (&parts)[4], const std::byte* plain, std::int64_t words) {
  for (std::int64_t i = 0; i < words; i += 4, plain += 8) {
    std::uint64_t four = 0;
    std::memcpy(&four, plain, sizeof four);
    ++parts[0].counts[four >> 8 & 255U];
    ++parts[1].counts[four >> 24 & 255U];
    ++parts[2].counts[four >> 40 & 255U];
    ++parts[3].counts[four >> 56];
  }
}

}  // namespace

std::int64_t choose_table(Panel& panel, const std::byte* plain, std::int64_t steps) {
  std::array<std::int64_t, 256> counts{};
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 24;  // steps; no counter overflows
  for (std::int64_t done = 0; done < steps; done += kAtOnce) {
    Histogram parts[4];
    count(parts, plain + done * kStepWords * 2, std::min(kAtOnce, steps - done) * kStepWords);
    for (std::size_t byte = 0; byte < counts.size(); ++byte) {
      for (const Histogram& part : parts) counts[byte] += part.counts[byte];
    }
  }
  std::array<std::size_t, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), std::size_t{0});
  std::partial_sort(
      bytes.begin(), bytes.begin() + std::ssize(panel.table), bytes.end(),
      [&](std::size_t a, std::size_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  std::int64_t others = steps * kStepWords;
  for (std::size_t code = 0; code < panel.table.size(); ++code) {
    panel.table[code] = static_cast<unsigned char>(bytes[code]);
    others -= counts[bytes[code]];
  }
  return others;
}

bool few_enough(std::int64_t patches, std::int64_t steps) noexcept {
  return patches * kWeightsAPatch <= steps * kStepWords;
}

void encode_panel(Panel& panel, const PackedMatrix& matrix, const kernels::Table& table, const std::byte* plain,
                  std::int64_t patches, std::byte* blocks) {
  std::vector<kernels::Patch> found(static_cast<std::size_t>(patches));
  panel.patches.reserve(found.size() + static_cast<std::size_t>(matrix.pieces()));
  for (std::int64_t i = 0; i < matrix.pieces(); ++i) {
    const auto n =
        static_cast<std::ptrdiff_t>(table.encode({plain + matrix.offset(false, i), matrix.steps(i), panel.table.data(),
                                                  blocks + matrix.offset(true, i), found.data()}));
    std::sort(found.begin(), found.begin() + n);
    panel.first_patch.push_back(std::ssize(panel.patches));
    panel.patches.insert(panel.patches.end(), found.begin(), found.begin() + n);
    panel.patches.push_back(kernels::kNoPatch);
  }
}

}  // namespace swiglu::weights
