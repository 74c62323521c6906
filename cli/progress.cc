// The progress line. Drawn with a carriage return and "erase to end of line", which every terminal
// since the VT100 understands; the buffer is fixed, so update() cannot fail.
#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace swiglu::cli {

Meter::Meter(std::string label) : shown_(isatty(STDERR_FILENO) == 1), label_(std::move(label)) {}

Meter::~Meter() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void Meter::label(std::string text) {
  label_ = std::move(text);
  if (shown_ && drawn_) next_ms_ = 0;
}

void Meter::update(std::int64_t done, std::int64_t total) noexcept {
  if (!shown_ || total <= 0) return;
  const auto now = static_cast<std::int64_t>(age_.seconds() * 1e3);
  std::int64_t due = next_ms_;
  // One thread wins the right to draw; the others go on working.
  if (now < due || !next_ms_.compare_exchange_strong(due, now + 100)) return;
  drawn_ = true;
  constexpr int kCells = 24;
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  char bar[kCells + 1] = {};
  for (int i = 0; i < kCells; ++i) bar[i] = i < static_cast<int>(share * kCells) ? '#' : '.';
  std::fprintf(stderr, "\r%s [%s] %3d %%\x1b[K", label_.c_str(), bar, static_cast<int>(share * 100));
  std::fflush(stderr);
}

}  // namespace swiglu::cli
