// How long a layer takes to load, beside the least that any loader must do with the same bytes: copy them
// from memory to fresh memory, or read them from the page cache into fresh memory with pread. Both on the
// same threads.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "bench.h"
#include "report.h"
#include "storage.h"

namespace swiglu::cli {

namespace {

constexpr std::int64_t kSlice = std::int64_t{1} << 20;

template <class Function>
void run_tasks(ThreadPool& pool, std::int64_t n, const Function& function) {
  const Runner runner = pool.runner();
  runner.run(
      runner.ctx, n, [](void* arg, std::int64_t i) { (*static_cast<const Function*>(arg))(i); },
      const_cast<Function*>(&function));
}

/// A part of one file or matrix, at most kSlice long.
struct Slice {
  int fd = -1;
  const std::byte* from = nullptr;
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

void cut(std::vector<Slice>& slices, Slice whole) {
  for (std::int64_t done = 0; done < whole.bytes; done += kSlice) {
    Slice slice = whole;
    slice.offset += done;
    slice.bytes = std::min(kSlice, whole.bytes - done);
    slices.push_back(slice);
  }
}

double copy_seconds(const BenchLayer& layer, ThreadPool& pool) {
  std::vector<Slice> slices;
  for (const Memory& matrix : layer.memory) {
    cut(slices, {-1, matrix.span().data(), 0, static_cast<std::int64_t>(matrix.span().size())});
  }
  const Stopwatch watch;
  const Memory copy(slices.size() * static_cast<std::size_t>(kSlice));  // fresh, as the packed copy is
  std::byte* const to = copy.span().data();
  run_tasks(pool, static_cast<std::int64_t>(slices.size()), [&](std::int64_t i) {
    const Slice& slice = slices[static_cast<std::size_t>(i)];
    std::memcpy(to + i * kSlice, slice.from + slice.offset, static_cast<std::size_t>(slice.bytes));
  });
  return watch.seconds();
}

/// The layer's files, open while this lives.
class Files {
 public:
  /// As many bytes as the layer has, from the files that hold it.
  explicit Files(const BenchLayer& layer) {
    std::int64_t left = layer.source_bytes();
    for (const auto& path : layer.files) {
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      struct stat about{};
      if (fd < 0 || fstat(fd, &about) != 0) {
        throw Error(ErrorCode::io, fmt::format("{}: {}", printable(path.string()), std::strerror(errno)));
      }
      fds_.push_back(fd);
      const std::int64_t bytes = std::min<std::int64_t>(left, about.st_size);
      cut(slices_, {fd, nullptr, 0, bytes});
      left -= bytes;
    }
  }
  ~Files() {
    for (const int fd : fds_) ::close(fd);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  /// Into fresh memory, as the packed copy is; or, with `keep` false, over and over into the same megabyte.
  [[nodiscard]] double read_seconds(ThreadPool& pool, bool keep) const {
    std::atomic<bool> failed{false};
    const Stopwatch watch;
    const Memory all(keep ? slices_.size() * static_cast<std::size_t>(kSlice) : 0);
    run_tasks(pool, static_cast<std::int64_t>(slices_.size()), [&](std::int64_t i) {
      static thread_local std::vector<std::byte> buffer(static_cast<std::size_t>(kSlice));
      const Slice& slice = slices_[static_cast<std::size_t>(i)];
      const auto bytes = static_cast<std::size_t>(slice.bytes);
      std::byte* const to = keep ? all.span().data() + i * kSlice : buffer.data();
      if (pread(slice.fd, to, bytes, slice.offset) != static_cast<ssize_t>(bytes)) failed = true;
    });
    if (failed) throw Error(ErrorCode::io, "bench: a file of the model could not be read again");
    return watch.seconds();
  }

 private:
  std::vector<int> fds_;
  std::vector<Slice> slices_;
};

/// Nothing if this storage is among `before`.
std::optional<LoadReport> measure_load(const BenchLayer& layer, ThreadPool& pool, const Options& options,
                                       const std::vector<LoadReport>& before) {
  constexpr int kTimes = 5;
  constexpr double kSeconds = 4;
  LoadReport report;
  report.threads = pool.threads();
  report.source_bytes = layer.source_bytes();
  report.from_files = !layer.made_up;
  report.measured = layer.held || report.from_files;
  const auto load = [&] {
    const Stopwatch watch;
    const FeedForward packed(layer.source, pool, options);
    const double seconds = watch.seconds();
    report.layer = packed.info();
    return seconds;
  };
  const Stopwatch whole;
  const bool own_peak = forget_peak_memory() || before.empty();
  load();  // brings files into the page cache
  for (const LoadReport& other : before) {
    if (storage_of(other.layer) == storage_of(report.layer)) return std::nullopt;
  }
  if (own_peak) report.peak_bytes = peak_memory() - (layer.held ? report.source_bytes : 0);
  if (!report.measured) return report;
  if (report.from_files) {
    const Files files(layer);
    static_cast<void>(files.read_seconds(pool, false));
    for (int i = 0; i < 2 || (i < kTimes && whole.seconds() < kSeconds); ++i) {
      report.seconds.push_back(load());
      report.beside_seconds.push_back(files.read_seconds(pool, true));
      report.discard_seconds.push_back(files.read_seconds(pool, false));
    }
    return report;
  }
  for (int i = 0; i < 2 || (i < kTimes && whole.seconds() < kSeconds); ++i) {
    report.seconds.push_back(load());
    report.beside_seconds.push_back(copy_seconds(layer, pool));
  }
  return report;
}

}  // namespace

std::vector<LoadReport> measure_loads(const BenchLayer& layer, ThreadPool& pool, Options options,
                                      const std::vector<Storage>& storages) {
  std::vector<LoadReport> reports;
  for (const Storage storage : storages) {
    options.storage = storage;
    if (auto report = measure_load(layer, pool, options, reports)) reports.push_back(std::move(*report));
  }
  return reports;
}

}  // namespace swiglu::cli
