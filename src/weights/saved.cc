// Packed matrices to the bytes of a packed file and back. What comes back is untrusted: every table, offset and
// patch is checked here, against a shape that the caller vouches for, before a kernel sees it. See weights.h; the
// index is described in docs/formats.md.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "weights/weights.h"

namespace swiglu::weights {
namespace {

using kernels::Patch;
using Part = PackedSource::Part;

constexpr std::int64_t kTableBytes = 16;

// Where the index's arrays begin: a byte for each panel, tables, numbers of patches, patches.
struct IndexLayout {
  std::int64_t tables, counts, patches;
  IndexLayout(std::int64_t panels, std::int64_t pieces)
      : tables((panels + kTableBytes - 1) / kTableBytes * kTableBytes), counts(tables + panels * kTableBytes),
        patches(counts + panels * pieces * static_cast<std::int64_t>(sizeof(std::uint32_t))) {}
};

// Neighbours in the payload that are also neighbours in a share's memory.
struct Run {
  std::int64_t from;  // in the payload
  std::int64_t to;    // in memory
  std::int64_t bytes;
};

// What a share takes of each panel, as few runs.
std::vector<Run> runs_of(const PackedMatrix& whole, const PackedMatrix& matrix, const MatrixShare& share) {
  std::vector<Run> runs;
  std::int64_t panel_at = 0;
  for (std::int64_t p = 0; p < share.first_panel; ++p) panel_at += whole.panel_bytes(whole.panel(p).compact);
  std::int64_t to = 0;
  for (std::int64_t p = 0; p < matrix.panels(); ++p) {
    const bool compact = matrix.panel(p).compact;
    const std::int64_t from = panel_at + whole.offset(compact, share.first_piece);
    const std::int64_t bytes = matrix.panel_bytes(compact);
    if (!runs.empty() && runs.back().from + runs.back().bytes == from) {
      runs.back().bytes += bytes;
    } else {
      runs.push_back({from, to, bytes});
    }
    to += bytes;
    panel_at += whole.panel_bytes(compact);
  }
  return runs;
}

// Cut where the payload's chunks end, so that whole chunks are read at once: those are compared with checksums.
std::vector<Run> cut_at_chunks(const std::vector<Run>& runs) {
  constexpr std::int64_t kChunk = PackedSource::kChunkBytes;
  std::vector<Run> cut;
  for (auto [from, to, left] : runs) {
    while (left > 0) {
      const std::int64_t bytes = std::min(left, kChunk - from % kChunk);
      cut.push_back({from, to, bytes});
      from += bytes;
      to += bytes;
      left -= bytes;
    }
  }
  return cut;
}

class Loader {
 public:
  Loader(const PackedSource& source, Part part) : source_(source), part_(part), stored_(source.matrix(part)) {}

  [[nodiscard]] std::string name() const {
    return fmt::format("{}, {}", source_.name(), part_ == Part::down ? "down" : "gate and up");
  }

  PackedMatrix load(const MatrixShape& shape, const MatrixShare& share, const Runner& runner,
                    const Progress& progress) const {
    check_kind();
    const PackedMatrix layout({0, shape.borders, 0}, stored_.dtype, stored_.storage);
    if (layout.storage() != stored_.storage) fail("plain storage for so many columns", "compact storage");
    // Before anything is allocated for the panels: the file must be as large as they are.
    const bool compact = stored_.storage == Storage::compact;
    const auto [least, most] = std::minmax({layout.panel_bytes(compact), layout.panel_bytes(false)});  // tiny: swapped
    if (stored_.payload_bytes / least < shape.panels || (stored_.payload_bytes + most - 1) / most > shape.panels) {
      fail(fmt::format("a payload of {} panels of {} to {} bytes", shape.panels, least, most),
           fmt::format("{} bytes", stored_.payload_bytes));
    }
    PackedMatrix whole(shape, stored_.dtype, stored_.storage);
    if (compact) {
      read_index(whole);
    } else if (stored_.index_bytes != 0) {
      fail("no index", fmt::format("one of {} bytes", stored_.index_bytes));
    }
    if (const std::int64_t bytes = payload_bytes(whole); bytes != stored_.payload_bytes) {
      fail(fmt::format("a payload of {} bytes", bytes), fmt::format("{}", stored_.payload_bytes));
    }
    PackedMatrix matrix(share.shape, stored_.dtype, stored_.storage);
    if (compact) take_index(matrix, whole, share);
    if (matrix.panels() == 0 || matrix.panel_bytes(false) == 0) return matrix;
    const std::vector<Run> runs = runs_of(whole, matrix, share);
    const auto view = source_.view_payload(part_);
    view != nullptr ? point(matrix, runs, view) : read(matrix, runs, share.shape.elements, runner, progress);
    return matrix;
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const {
    throw Error(ErrorCode::format, fmt::format("{}: expected {}, found {}", name(), expected, found));
  }

  void check_kind() const {
    const auto [dtype, storage, index_bytes, payload_bytes] = stored_;
    if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) fail("f32, bf16 or f16", name_of(dtype));
    if (storage != Storage::plain && (storage != Storage::compact || dtype != DType::bf16)) {
      fail("plain storage, or compact bf16", fmt::format("{} {}", name_of(storage), name_of(dtype)));
    }
    if (index_bytes < 0 || payload_bytes < 0) fail("sizes from 0", fmt::format("{}, {}", index_bytes, payload_bytes));
  }

  void read_index(PackedMatrix& matrix) const {
    const std::int64_t panels = matrix.panels(), pieces = matrix.pieces();
    const IndexLayout at(panels, pieces);
    if (stored_.index_bytes < at.patches || (stored_.index_bytes - at.patches) % 4 != 0) {
      fail(fmt::format("an index of {} bytes and 4 for each patch", at.patches),
           fmt::format("{} bytes", stored_.index_bytes));
    }
    std::vector<std::byte> index(static_cast<std::size_t>(stored_.index_bytes));
    source_.read_index(part_, index);
    const std::byte* count_at = index.data() + at.counts;
    std::span<const std::byte> patches(index.data() + at.patches, index.data() + index.size());
    for (std::int64_t p = 0; p < panels; ++p) {
      Panel& panel = matrix.panel(p);
      const auto kind = static_cast<int>(index[static_cast<std::size_t>(p)]);
      if (kind > 1) fail(fmt::format("kind 0 or 1 of panel {}", p), fmt::format("{}", kind));
      panel.compact = kind == 1;
      std::memcpy(panel.table.data(), index.data() + at.tables + p * kTableBytes, kTableBytes);
      for (std::int64_t i = 0; i < pieces; ++i, count_at += sizeof(std::uint32_t)) {
        std::uint32_t count = 0;
        std::memcpy(&count, count_at, sizeof count);
        if (count > patches.size() / sizeof(Patch)) {
          fail(fmt::format("at most {} patches in panel {}", patches.size() / sizeof(Patch), p),
               fmt::format("{}", count));
        }
        const auto own = patches.first(count * sizeof(Patch));
        patches = patches.subspan(own.size());
        if (panel.compact) {
          add_patches(matrix, p, i, own);
        } else if (count != 0) {
          fail(fmt::format("no patches in panel {}, which is plain", p), fmt::format("{}", count));
        }
      }
    }
    if (!patches.empty()) fail("an end of the patches", fmt::format("{} bytes more", patches.size()));
  }

  void add_patches(PackedMatrix& matrix, std::int64_t p, std::int64_t i, std::span<const std::byte> bytes) const {
    Panel& panel = matrix.panel(p);
    const auto first = panel.patches.size();
    panel.first_patch.push_back(static_cast<std::int64_t>(first));
    panel.patches.resize(first + bytes.size() / sizeof(Patch) + 1, kernels::kNoPatch);
    if (!bytes.empty()) std::memcpy(panel.patches.data() + first, bytes.data(), bytes.size());
    for (std::size_t n = first; n + 1 < panel.patches.size(); ++n) {
      const Patch patch = panel.patches[n];
      const bool ascends = n == first || panel.patches[n - 1] >> 8 < patch >> 8;
      if (ascends && kernels::step_of(patch) < matrix.steps(i) && kernels::place_in_step(patch) % 2 == 1) continue;
      fail(fmt::format("patches of panel {}, piece {}: ascending places of high bytes in {} steps", p, i,
                       matrix.steps(i)),
           fmt::format("place {}", patch >> 8));
    }
  }

  // Kinds and tables are whole panels'; patches are those of the share's pieces.
  static void take_index(PackedMatrix& matrix, const PackedMatrix& whole, const MatrixShare& share) {
    for (std::int64_t p = 0; p < matrix.panels(); ++p) {
      const std::int64_t from = share.first_panel + p;
      Panel& panel = matrix.panel(p);
      panel.compact = whole.panel(from).compact;
      panel.table = whole.panel(from).table;
      if (!panel.compact) continue;
      for (std::int64_t i = 0; i < matrix.pieces(); ++i) {
        const auto patches = whole.patches(from, share.first_piece + i);
        panel.first_patch.push_back(std::ssize(panel.patches));
        panel.patches.insert(panel.patches.end(), patches.begin(), patches.end());
        panel.patches.push_back(kernels::kNoPatch);
      }
    }
  }

  // Into fresh memory, by the threads that will stream it.
  void read(PackedMatrix& matrix, const std::vector<Run>& runs, std::int64_t elements, const Runner& runner,
            const Progress& progress) const {
    const auto memory = room(runs.back().to + runs.back().bytes);
    const std::vector<Run> cut = cut_at_chunks(runs);
    parallel_for(runner, std::ssize(cut), [&](std::int64_t i) {
      const auto [from, to, bytes] = cut[static_cast<std::size_t>(i)];
      source_.read_payload(part_, from, {memory->data() + to, static_cast<std::size_t>(bytes)});
      if (progress.advance == nullptr) return;
      const auto before = [&](std::int64_t n) {
        return static_cast<std::int64_t>(static_cast<double>(elements) * static_cast<double>(n) /
                                         static_cast<double>(memory->size()));
      };
      progress.advance(progress.ctx, before(to + bytes) - before(to));
    });
    matrix.set_stream({memory->data(), memory->size()});
    std::int64_t at = 0;
    for (std::int64_t p = 0; p < matrix.panels(); ++p) {
      Panel& panel = matrix.panel(p);
      panel.bytes = memory->data() + at;
      at += matrix.panel_bytes(panel.compact);
    }
    matrix.keep(memory);
  }

  // At the source's own memory.
  void point(PackedMatrix& matrix, const std::vector<Run>& runs, const std::shared_ptr<const std::byte>& view) const {
    if (reinterpret_cast<std::uintptr_t>(view.get()) % 64 != 0) fail("a payload at a multiple of 64 bytes", "another");
    const std::int64_t start = runs.front().from;
    matrix.set_stream({view.get() + start, runs.back().from + runs.back().bytes - start});
    auto run = runs.begin();
    std::int64_t at = 0;  // in a memory of the share's own
    for (std::int64_t p = 0; p < matrix.panels(); ++p) {
      Panel& panel = matrix.panel(p);
      if (at == run->to + run->bytes) ++run;
      panel.bytes = view.get() + run->from + (at - run->to);
      at += matrix.panel_bytes(panel.compact);
    }
    matrix.keep(view);
  }

  [[nodiscard]] std::shared_ptr<const Buffer> room(std::int64_t bytes) const {
    try {
      return std::make_shared<const Buffer>(bytes);
    } catch (const Error& fault) {  // which does not know for what
      throw Error(fault.code(), fmt::format("{}: {}", name(), fault.text()));
    }
  }

  const PackedSource& source_;
  Part part_;
  PackedSource::Matrix stored_;
};

}  // namespace

PackedMatrix load_packed(const MatrixShape& whole, const MatrixShare& share, const PackedSource& source, Part part,
                         const Runner& runner, const Progress& progress) {
  const Loader loader(source, part);
  return or_no_memory(loader.name(), [&] { return loader.load(whole, share, runner, progress); });
}

std::vector<std::byte> index_of(const PackedMatrix& matrix) {
  if (matrix.storage() == Storage::plain) return {};
  const IndexLayout at(matrix.panels(), matrix.pieces());
  std::vector<std::byte> index(static_cast<std::size_t>(at.patches));
  for (std::int64_t p = 0; p < matrix.panels(); ++p) {
    const Panel& panel = matrix.panel(p);
    if (!panel.compact) continue;
    index[static_cast<std::size_t>(p)] = std::byte{1};
    std::memcpy(index.data() + at.tables + p * kTableBytes, panel.table.data(), kTableBytes);
    for (std::int64_t i = 0; i < matrix.pieces(); ++i) {
      const std::span<const Patch> patches = matrix.patches(p, i);
      const auto count = static_cast<std::uint32_t>(patches.size());
      std::memcpy(index.data() + at.counts + (p * matrix.pieces() + i) * 4, &count, sizeof count);
      const auto bytes = std::as_bytes(patches);
      index.insert(index.end(), bytes.begin(), bytes.end());
    }
  }
  return index;
}

std::int64_t payload_bytes(const PackedMatrix& matrix) {
  std::int64_t bytes = 0;
  for (std::int64_t p = 0; p < matrix.panels(); ++p) bytes += matrix.panel_bytes(matrix.panel(p).compact);
  return bytes;
}

void copy_payload(const PackedMatrix& matrix, std::int64_t offset, std::span<std::byte> dst) {
  for (std::int64_t p = 0; p < matrix.panels() && !dst.empty(); ++p) {
    const std::int64_t bytes = matrix.panel_bytes(matrix.panel(p).compact);
    if (offset >= bytes) {
      offset -= bytes;
      continue;
    }
    const auto n = std::min(static_cast<std::size_t>(bytes - offset), dst.size());
    std::memcpy(dst.data(), matrix.panel(p).bytes + offset, n);
    dst = dst.subspan(n);
    offset = 0;
  }
}

}  // namespace swiglu::weights
