// The encodings that are decoded to floats, and GGUF's table of element types. Knows how elements lie in their blocks
// and what they are worth; nothing of files, shapes or names of tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "files/encoding.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::files {

/// The encoding called `name` ("Q4_K", "F8_E4M3"), or null. Valid for ever.
[[nodiscard]] const Encoding* find_encoding(std::string_view name) noexcept;

/// An element type that GGUF files may hold: its size, and how its values are read, if they are.
struct GgufType {
  std::uint32_t id = 0;
  std::string_view name;
  std::int64_t block = 1;  ///< a row is a whole number of blocks
  std::int64_t bytes = 0;  ///< of a block
  std::optional<DType> dtype;
  const Encoding* encoding = nullptr;  ///< null beside a dtype, and for types that are not read
};

/// The type with this id, or null: removed from the format, never stored in files, or unknown.
[[nodiscard]] const GgufType* gguf_type(std::uint32_t id) noexcept;

/// The type with this name, or null.
[[nodiscard]] const GgufType* gguf_type(std::string_view name) noexcept;

/// What is known of an id that gguf_type refuses, for messages: "Q4_2, which was removed from the format", ….
[[nodiscard]] std::string_view gguf_type_refusal(std::uint32_t id) noexcept;

}  // namespace swiglu::files
