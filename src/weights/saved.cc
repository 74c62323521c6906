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

class Loader {
 public:
  Loader(const PackedSource& source, Part part) : source_(source), part_(part), stored_(source.matrix(part)) {}

  [[nodiscard]] std::string name() const {
    return fmt::format("{}, {}", source_.name(), part_ == Part::down ? "down" : "gate and up");
  }

  PackedMatrix load(const MatrixShape& shape, const Runner& runner, const Progress& progress) const {
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
    PackedMatrix matrix(shape, stored_.dtype, stored_.storage);
    if (compact) {
      read_index(matrix);
    } else if (stored_.index_bytes != 0) {
      fail("no index", fmt::format("one of {} bytes", stored_.index_bytes));
    }
    if (const std::int64_t bytes = payload_bytes(matrix); bytes != stored_.payload_bytes) {
      fail(fmt::format("a payload of {} bytes", bytes), fmt::format("{}", stored_.payload_bytes));
    }
    place(matrix, payload(matrix, shape.elements, runner, progress));
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

  // In memory: the source's, or read into fresh memory by the threads that will stream it.
  [[nodiscard]] const std::byte* payload(PackedMatrix& matrix, std::int64_t elements, const Runner& runner,
                                         const Progress& progress) const {
    if (const auto view = source_.view_payload(part_)) {
      if (reinterpret_cast<std::uintptr_t>(view.get()) % 64 != 0)
        fail("a payload at a multiple of 64 bytes", "another");
      matrix.keep(view);
      return view.get();
    }
    const auto memory = room();
    constexpr std::int64_t kChunk = PackedSource::kChunkBytes;
    const std::int64_t chunks = (memory->size() + kChunk - 1) / kChunk;
    parallel_for(runner, chunks, [&](std::int64_t c) {
      const std::int64_t bytes = std::min(kChunk, memory->size() - c * kChunk);
      source_.read_payload(part_, c, {memory->data() + c * kChunk, static_cast<std::size_t>(bytes)});
      if (progress.advance == nullptr) return;
      const auto before = [&](std::int64_t n) {
        return static_cast<std::int64_t>(static_cast<double>(elements) * static_cast<double>(n) /
                                         static_cast<double>(chunks));
      };
      progress.advance(progress.ctx, before(c + 1) - before(c));
    });
    matrix.keep(memory);
    return memory->data();
  }

  [[nodiscard]] std::shared_ptr<const Buffer> room() const {
    try {
      return std::make_shared<const Buffer>(stored_.payload_bytes);
    } catch (const Error& fault) {  // which does not know for what
      throw Error(fault.code(), fmt::format("{}: {}", name(), fault.text()));
    }
  }

  void place(PackedMatrix& matrix, const std::byte* start) const {
    matrix.set_stream({start, stored_.payload_bytes});
    std::int64_t offset = 0;
    for (std::int64_t p = 0; p < matrix.panels(); ++p) {
      Panel& panel = matrix.panel(p);
      panel.bytes = start + offset;
      offset += matrix.panel_bytes(panel.compact);
    }
  }

  const PackedSource& source_;
  Part part_;
  PackedSource::Matrix stored_;
};

}  // namespace

PackedMatrix load_packed(const MatrixShape& shape, const PackedSource& source, Part part, const Runner& runner,
                         const Progress& progress) {
  const Loader loader(source, part);
  return or_no_memory(loader.name(), [&] { return loader.load(shape, runner, progress); });
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
