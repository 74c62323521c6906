// What a Checkpoint says it has read beside what the system says that this thread has: nothing can be read from its
// files without being counted.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "swiglu/packed.hpp"

namespace swiglu::testing {

/// Bytes that this thread got from read() and its like since construction, but for the asking.
class SystemReads {
 public:
  SystemReads() : file_(open("/proc/thread-self/io", O_RDONLY | O_CLOEXEC)), start_(now()) {}
  ~SystemReads() {
    if (file_ >= 0) close(file_);
  }
  SystemReads(const SystemReads&) = delete;
  SystemReads& operator=(const SystemReads&) = delete;
  [[nodiscard]] bool known() const { return start_.has_value(); }
  [[nodiscard]] std::uint64_t bytes() {
    const std::uint64_t asked = asked_;
    return *now() - *start_ - asked;
  }

 private:
  // "rchar: N", which does not count the reading of this text yet.
  std::optional<std::uint64_t> now() {
    char text[512] = {};
    const ssize_t got = file_ < 0 ? -1 : pread(file_, text, sizeof text - 1, 0);
    if (got < 0 || std::strncmp(text, "rchar: ", 7) != 0) return std::nullopt;
    asked_ += static_cast<std::uint64_t>(got);
    return std::stoull(text + 7);
  }
  int file_;
  std::uint64_t asked_ = 0;
  std::optional<std::uint64_t> start_;
};

/// Opens the checkpoint and reads all that is in it.
inline void expect_every_read_is_counted(const std::filesystem::path& path) {
  SystemReads reads;
  if (!reads.known()) GTEST_SKIP() << "this system does not say what a thread reads";
  const Checkpoint model = Checkpoint::open(path);
  EXPECT_EQ(model.bytes_read(), reads.bytes()) << "by opening " << path;
  EXPECT_GT(model.bytes_read(), 0U);
  for (const std::int64_t i : model.layer_numbers()) {
    const LayerSource layer = model.layer(i);
    for (const auto& matrix : {layer.gate, layer.up, layer.down}) {
      if (matrix == nullptr) continue;
      std::vector<std::byte> all(static_cast<std::size_t>(matrix->rows() * matrix->cols() * size_of(matrix->dtype())));
      matrix->read(0, matrix->rows(), 0, matrix->cols(), all.data());
    }
    for (const auto part : {PackedSource::Part::gate_up, PackedSource::Part::down}) {
      if (layer.packed == nullptr) continue;
      std::vector<std::byte> index(static_cast<std::size_t>(layer.packed->matrix(part).index_bytes));
      layer.packed->read_index(part, index);
    }
  }
  EXPECT_EQ(model.bytes_read(), reads.bytes()) << "by the layers of " << path;
  model.check_payloads();
  EXPECT_EQ(model.bytes_read(), reads.bytes()) << "by the checksums of " << path;
}

}  // namespace swiglu::testing
