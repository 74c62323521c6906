// What every function of the C ABI does at its door: no exception leaves, the reason stays with the thread, structs of
// older and newer callers are told apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string_view>

#include "swiglu/swiglu.h"
#include "swiglu/swiglu.hpp"

namespace swiglu::capi {

/// Keeps `text` for swiglu_last_error() and gives `status` back.
swiglu_status fail(swiglu_status status, std::string_view text) noexcept;

/// work(), with every exception turned into a status and a text.
template <class Work>
swiglu_status guarded(const Work& work) noexcept {
  try {
    work();
    return SWIGLU_OK;
  } catch (const Error& error) {
    return fail(static_cast<swiglu_status>(error.code()), error.text());
  } catch (const std::bad_alloc&) {
    return fail(SWIGLU_NO_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail(SWIGLU_INTERNAL, error.what());
  } catch (...) {
    return fail(SWIGLU_INTERNAL, "an unknown exception");
  }
}

/// Throws usage naming `what` if `pointer` is null.
[[noreturn]] void missing(const char* what);
template <class Pointee>
void require(Pointee* pointer, const char* what) {
  if (pointer == nullptr) missing(what);
}

/// Throws usage unless `bytes` is a size that a struct with `first` bytes in its first version and `now` in this one
/// may have, and unsupported if `caller`, where given, holds anything but zero beyond ours.
void check_struct(const char* what, std::int64_t bytes, std::size_t first, std::size_t now, const void* caller);

/// The caller's struct as this version knows it: what an older caller does not have is zero. Null gives all defaults.
template <class Struct>
Struct taken(const char* what, const Struct* caller, std::size_t first = sizeof(Struct)) {
  Struct ours{};
  if (caller == nullptr) return ours;
  check_struct(what, caller->struct_bytes, first, sizeof(Struct), caller);
  const auto bytes = static_cast<std::size_t>(caller->struct_bytes);
  std::memcpy(&ours, caller, bytes < sizeof ours ? bytes : sizeof ours);
  return ours;
}

/// Fills as much of the caller's struct as it has; what a newer caller has beyond ours becomes zero.
template <class Struct>
void give(const char* what, Struct ours, Struct* caller, std::size_t first = sizeof(Struct)) {
  require(caller, what);
  const std::int64_t bytes = caller->struct_bytes;
  check_struct(what, bytes, first, sizeof(Struct), nullptr);
  ours.struct_bytes = bytes;
  const auto whole = static_cast<std::size_t>(bytes);
  const std::size_t known = whole < sizeof ours ? whole : sizeof ours;
  std::memcpy(caller, &ours, known);
  std::memset(reinterpret_cast<std::byte*>(caller) + known, 0, whole - known);
}

/// An enumerator of `Enum`, whose values are 0 … last. Throws usage for another value.
void check_value(const char* what, std::int32_t value, std::int32_t last);
template <class Enum>
Enum value_of(const char* what, std::int32_t value, Enum last) {
  check_value(what, value, static_cast<std::int32_t>(last));
  return static_cast<Enum>(value);
}

}  // namespace swiglu::capi
