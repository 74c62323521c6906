// Positioned reads and the TensorSources over them; see source.h.
#include "files/source.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "base/text.h"

namespace swiglu::files {
namespace {

std::string system_text(int error) { return std::generic_category().message(error); }

class FileSource final : public TensorSource {
 public:
  FileSource(std::string name, FileMatrix m)
      : TensorSource(std::move(name), m.dtype, m.rows, m.cols), m_(std::move(m)) {}

  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    auto* out = static_cast<std::byte*>(dst);
    if (rows == 0 || cols == 0) return;
    if (m_.col_stride == 1 && m_.row_stride == cols) {  // whole rows, back to back
      read_run(row0 * m_.row_stride + col0, rows * cols, out);
      return;
    }
    if (m_.col_stride == 1) {
      for (std::int64_t r = 0; r < rows; ++r) {
        read_run((row0 + r) * m_.row_stride + col0, cols, out + r * cols * item());
      }
      return;
    }
    // Strided both ways (a transposed view): walk the dimension whose elements lie closer together and
    // read each of its runs once, span by span.
    const bool along_rows = m_.row_stride < m_.col_stride;
    const std::int64_t outer = along_rows ? cols : rows;
    const std::int64_t inner = along_rows ? rows : cols;
    const std::int64_t inner_stride = along_rows ? m_.row_stride : m_.col_stride;
    const std::int64_t outer_stride = along_rows ? m_.col_stride : m_.row_stride;
    const std::int64_t per_read =
        std::max<std::int64_t>(1, kSpanBytes / (item() * std::max<std::int64_t>(1, inner_stride)));
    std::vector<std::byte> span;
    const std::int64_t first = row0 * m_.row_stride + col0 * m_.col_stride;
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t i0 = 0; i0 < inner; i0 += per_read) {
        const std::int64_t count = std::min(per_read, inner - i0);
        const std::int64_t length = (count - 1) * inner_stride + 1;
        span.resize(static_cast<std::size_t>(length * item()));
        read_run(first + o * outer_stride + i0 * inner_stride, length, span.data());
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t r = along_rows ? i0 + i : o;
          const std::int64_t c = along_rows ? o : i0 + i;
          std::memcpy(out + (r * cols + c) * item(), span.data() + i * inner_stride * item(),
                      static_cast<std::size_t>(item()));
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kSpanBytes = std::int64_t{1} << 16;
  [[nodiscard]] std::int64_t item() const { return size_of(m_.dtype); }
  void read_run(std::int64_t element, std::int64_t count, std::byte* out) const {
    m_.file->read(m_.offset + static_cast<std::uint64_t>(element * item()),
                  {out, static_cast<std::size_t>(count * item())});
  }
  FileMatrix m_;
};

// Parts along one dimension; a read is cut at the part borders.
class JoinedSource final : public TensorSource {
 public:
  JoinedSource(std::string name, std::vector<std::shared_ptr<const TensorSource>> parts, bool by_rows)
      : TensorSource(std::move(name), parts.front()->dtype(), total(parts, by_rows, true),
                     total(parts, by_rows, false)),
        parts_(std::move(parts)), by_rows_(by_rows) {}

  void read(std::int64_t row0, std::int64_t rows, std::int64_t col0, std::int64_t cols, void* dst) const override {
    auto* out = static_cast<std::byte*>(dst);
    const std::int64_t item = size_of(dtype());
    std::vector<std::byte> piece;
    std::int64_t start = 0;
    for (const auto& part : parts_) {
      const std::int64_t extent = by_rows_ ? part->rows() : part->cols();
      const std::int64_t wanted0 = by_rows_ ? row0 : col0;
      const std::int64_t wanted1 = wanted0 + (by_rows_ ? rows : cols);
      const std::int64_t from = std::max(start, wanted0);
      const std::int64_t to = std::min(start + extent, wanted1);
      if (from < to && by_rows_) {
        part->read(from - start, to - from, col0, cols, out + (from - row0) * cols * item);
      } else if (from < to) {
        piece.resize(static_cast<std::size_t>(rows * (to - from) * item));
        part->read(row0, rows, from - start, to - from, piece.data());
        for (std::int64_t r = 0; r < rows; ++r) {
          std::memcpy(out + (r * cols + from - col0) * item, piece.data() + r * (to - from) * item,
                      static_cast<std::size_t>((to - from) * item));
        }
      }
      start += extent;
    }
  }

 private:
  static std::int64_t total(const std::vector<std::shared_ptr<const TensorSource>>& parts, bool by_rows, bool rows) {
    std::int64_t sum = 0;
    for (const auto& part : parts) sum += rows ? part->rows() : part->cols();
    if (by_rows == rows) return sum;
    return rows ? parts.front()->rows() : parts.front()->cols();
  }
  std::vector<std::shared_ptr<const TensorSource>> parts_;
  bool by_rows_;
};

}  // namespace

File::File(const std::filesystem::path& path, std::shared_ptr<ReadCounter> counter)
    : path_(path), counter_(std::move(counter)) {
  // O_NONBLOCK: opening a pipe must not hang; it has no effect on regular files.
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    const int error = errno;
    const auto code = error == ENOENT || error == ENOTDIR ? ErrorCode::not_found : ErrorCode::io;
    throw Error(code, fmt::format("{}: cannot open: {}", escaped(path.string()), system_text(error)));
  }
  struct stat status{};
  if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw Error(ErrorCode::io, fmt::format("{}: not a regular file", escaped(path.string())));
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

File::~File() { ::close(fd_); }

void File::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = pread(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw Error(ErrorCode::io, fmt::format("{}: cannot read {} bytes at {}: {}", escaped(name()), bytes.size(),
                                             offset, system_text(errno)));
    }
    if (got == 0) {
      throw Error(ErrorCode::io,
                  fmt::format("{}: expected {} bytes at {}, found the end of the file after {}: it has become shorter "
                              "than the {} bytes it had when opened",
                              escaped(name()), bytes.size(), offset, done, size_));
    }
    done += static_cast<std::size_t>(got);
    if (counter_ != nullptr) counter_->fetch_add(static_cast<std::uint64_t>(got), std::memory_order_relaxed);
  }
}

std::shared_ptr<const std::byte> File::map(std::uint64_t offset, std::size_t bytes) const {
  const auto fail = [&](const std::string& reason, ErrorCode code = ErrorCode::io) {
    throw Error(code, fmt::format("{}: cannot map {} bytes at {}: {}", escaped(name()), bytes, offset, reason));
  };
  struct stat status{};
  if (fstat(fd_, &status) != 0) fail(system_text(errno));
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < offset || size - offset < bytes) {  // touching what is gone would kill the process
    fail(fmt::format("the file has become shorter than the {} bytes it had when opened", size_));
  }
  // The system can use huge pages only where addresses and offsets agree modulo their size: a reservation with
  // room for one more is made first, and the file mapped over the part of it that agrees.
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t reserved = bytes + kHugePage;
  void* space = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) fail(system_text(errno), ErrorCode::no_memory);
  std::shared_ptr<std::byte> owner(static_cast<std::byte*>(space),
                                   [reserved](std::byte* start) { munmap(start, reserved); });
  std::byte* begin = owner.get() + (offset - reinterpret_cast<std::uintptr_t>(space)) % kHugePage;
  if (mmap(begin, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd_, static_cast<off_t>(offset)) == MAP_FAILED) {
    fail(system_text(errno), errno == ENOMEM ? ErrorCode::no_memory : ErrorCode::io);
  }
  madvise(begin, bytes, MADV_HUGEPAGE);  // a request: small pages do as well
  return {owner, begin};
}

std::shared_ptr<const TensorSource> make_source(std::string name, FileMatrix matrix) {
  return std::make_shared<FileSource>(std::move(name), std::move(matrix));
}

std::shared_ptr<const TensorSource> join_rows(std::string name,
                                              std::vector<std::shared_ptr<const TensorSource>> parts) {
  if (parts.size() == 1) return parts.front();
  return std::make_shared<JoinedSource>(std::move(name), std::move(parts), true);
}

std::shared_ptr<const TensorSource> join_cols(std::string name,
                                              std::vector<std::shared_ptr<const TensorSource>> parts) {
  if (parts.size() == 1) return parts.front();
  return std::make_shared<JoinedSource>(std::move(name), std::move(parts), false);
}

std::string describe_contents(const File& file) {
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), 512)), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  std::string lower = head.substr(head.find_first_not_of(" \t\r\n\xef\xbb\xbf") == std::string::npos
                                      ? 0
                                      : head.find_first_not_of(" \t\r\n\xef\xbb\xbf"));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (head.empty()) return "an empty file";
  // A safetensors file may begin like anything: its first bytes are a length, at most 100,000,000.
  if (head.size() > 8 && head.compare(4, 5, std::string_view("\0\0\0\0{", 5)) == 0) return "";
  if (lower.starts_with("<!doctype") || lower.starts_with("<html") || lower.starts_with("<?xml")) {
    return "an HTML page (a failed download)";
  }
  if (head.starts_with("version https://git-lfs")) return "a Git-LFS pointer (run 'git lfs pull' to fetch the weights)";
  if (head.starts_with("PK\x03\x04")) return "a zip archive";
  if (head.starts_with("SWIGLUPK")) return "a file of packed layers";
  if (head.starts_with("GGUF")) return "a GGUF file";
  if (head.starts_with("\x93NUMPY")) return "a .npy array";
  if (head.starts_with("\x1f\x8b")) return "a gzip file";
  if (head.starts_with("\x80\x02") || head.starts_with("\x80\x03") || head.starts_with("\x80\x04") ||
      head.starts_with("\x80\x05") || head.starts_with("L119547037146038801333356L")) {
    return "a bare pickle (PyTorch's format before 1.6)";
  }
  if (head.size() > 262 && head.substr(257, 5) == "ustar") return "a tar archive";
  return "";
}

bool checked_mul(std::uint64_t a, std::uint64_t b, std::uint64_t& product) noexcept {
  return !__builtin_mul_overflow(a, b, &product);
}
bool checked_add(std::uint64_t a, std::uint64_t b, std::uint64_t& sum) noexcept {
  return !__builtin_add_overflow(a, b, &sum);
}

}  // namespace swiglu::files
