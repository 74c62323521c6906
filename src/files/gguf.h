// The GGUF container, versions 2 and 3, little-endian: typed key/value pairs and a table of tensors. Every rule of the
// format is checked before a byte of data is used. Knows nothing of what keys and tensors mean (general.alignment
// apart).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/source.h"
#include "files/tensor_table.h"

namespace swiglu::files {

enum class GgufValue : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

/// "u32", "string", …
[[nodiscard]] const char* name_of(GgufValue type) noexcept;
/// Bytes, or 0 for strings and arrays.
[[nodiscard]] std::uint64_t size_of(GgufValue type) noexcept;

/// A key and where its value lies. Strings and arrays stay in the file until they are asked for.
struct GgufPair {
  std::string key;
  GgufValue type = GgufValue::u8;
  GgufValue element = GgufValue::u8;  ///< of an array, which is never one of arrays
  std::uint64_t offset = 0;           ///< of the whole pair in the file, …
  std::uint64_t size = 0;             ///< … which may be copied as it is
  std::uint64_t value_offset = 0;     ///< of a string's bytes or an array's first element
  std::uint64_t count = 0;            ///< bytes of a string, elements of an array
  std::uint64_t scalar = 0;           ///< the little-endian bytes of other values

  /// An integer of any width, if it is one and fits; a bool is none.
  [[nodiscard]] std::optional<std::int64_t> integer() const noexcept;
  /// An f32 or f64.
  [[nodiscard]] std::optional<double> real() const noexcept;
  /// "the u32 5", "a string", "an array of 3 i32", for "expected …, found …".
  [[nodiscard]] std::string describe() const;
};

struct GgufFile {
  std::shared_ptr<const File> file;
  std::uint32_t version = 0;
  std::uint64_t alignment = 32;
  std::uint64_t data_offset = 0;  ///< of the data section; may be the end of the file, or beyond, without tensors
  std::vector<GgufPair> pairs;    ///< in file order, keys unique
  TensorTable tensors;            ///< shapes row-major: the dimensions of the file in reverse

  /// The pair called `key`, or null.
  [[nodiscard]] const GgufPair* find(std::string_view key) const noexcept;
  /// The bytes of a string value. Throws format naming the key if it is none or longer than `most`.
  [[nodiscard]] std::string text(const GgufPair& pair, std::uint64_t most) const;
  /// The elements of an array of integers. Throws format naming the key if it is none, has more than `most`
  /// elements, or one does not fit.
  [[nodiscard]] std::vector<std::int64_t> integers(const GgufPair& pair, std::uint64_t most) const;
};

/// Reads and validates the header. Takes memory for keys and tensors that are really there, not for values.
[[nodiscard]] GgufFile read_gguf(const std::shared_ptr<const File>& file);

}  // namespace swiglu::files
