// What the fuzz targets share: bytes as a file, and a walk over the tensors
// that came out of a file. A target accepts swiglu::Error from a reader and nothing else; once a reader has
// said that tensors are sound, an Error from reading them is a finding too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "files/encoding.h"
#include "files/source.h"
#include "files/tensor_table.h"
#include "swiglu/swiglu.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace swiglu::fuzz {

[[noreturn]] inline void finding(const std::string& text) {
  std::fprintf(stderr, "finding: %s\n", text.c_str());
  std::abort();
}

/// A reader's work. An Error is an answer, if its text is fit for a terminal; all other exceptions escape.
template <class Action>
void read(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string& text = error.text();
    if (text.empty() || text.size() > 4000) finding("a message of " + std::to_string(text.size()) + " bytes");
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) finding("a control character in: " + text);
    }
  }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Bytes as a file in memory, with a path for whoever opens files by path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  [[nodiscard]] std::shared_ptr<const files::File> open() const { return std::make_shared<const files::File>(path()); }

 private:
  int fd_;
};

inline std::string little(std::uint64_t value, std::size_t bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

/// Reads some elements of a matrix, the last ones among them.
inline void walk(const TensorSource& source) {
  const std::int64_t rows = std::min<std::int64_t>(source.rows(), 3);
  const std::int64_t cols = std::min<std::int64_t>(source.cols(), 3);
  if (rows <= 0 || cols <= 0) return;
  const auto dst = std::make_unique<std::byte[]>(static_cast<std::size_t>(rows * cols * size_of(source.dtype())));
  source.read(0, rows, 0, cols, dst.get());
  source.read(source.rows() - rows, rows, source.cols() - cols, cols, dst.get());
}

/// Reads some elements of every tensor. Each is taken for a row of matrices, and the first and the last are read.
inline void walk(const files::TensorTable& table) {
  constexpr int kTensors = 64;  // of a file with very many the first are enough
  int seen = 0;
  for (const auto& [name, tensor] : table) {
    if (++seen > kTensors) return;
    const std::size_t rank = tensor.shape.size();
    std::uint64_t last = 0;  // the element at which the last matrix begins
    bool empty = false;
    for (std::size_t i = 0; i < rank; ++i) {
      empty = empty || tensor.shape[i] <= 0;
      if (i + 2 < rank) last += static_cast<std::uint64_t>((tensor.shape[i] - 1) * tensor.strides[i]);
    }
    if (empty) continue;
    const std::int64_t rows = rank >= 2 ? tensor.shape[rank - 2] : 1;
    const std::int64_t cols = rank >= 1 ? tensor.shape[rank - 1] : 1;
    const std::int64_t row_stride = rank >= 2 ? tensor.strides[rank - 2] : cols;
    const std::int64_t col_stride = rank >= 1 ? tensor.strides[rank - 1] : 1;
    try {
      for (const std::uint64_t first : {std::uint64_t{0}, last}) {
        if (tensor.dtype) {
          const std::uint64_t offset = tensor.offset + first * static_cast<std::uint64_t>(size_of(*tensor.dtype));
          walk(*files::make_source(name, {tensor.file, offset, *tensor.dtype, rows, cols, row_stride, col_stride}));
        } else if (tensor.encoding != nullptr && col_stride == 1) {
          const files::Encoding& encoding = *tensor.encoding;
          if (row_stride % encoding.block != 0) finding("rows of " + name + " are no whole blocks");
          const std::uint64_t blocks = first / static_cast<std::uint64_t>(encoding.block);
          walk(*files::make_decoded_source(
              name, {tensor.file, tensor.offset + blocks * static_cast<std::uint64_t>(encoding.bytes), &encoding, rows,
                     cols, row_stride / encoding.block * encoding.bytes}));
        }
      }
    } catch (const Error& error) {
      finding("a tensor of the table cannot be read: " + error.text());
    }
  }
}

}  // namespace swiglu::fuzz
