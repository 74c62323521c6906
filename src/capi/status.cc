// Statuses and their texts, the version, and what needs no handle.
#include <array>
#include <string>

#include "capi/guard.h"

namespace swiglu::capi {
namespace {

// A text of any length, or, where there is no memory for one, a constant.
struct LastError {
  std::string text;
  const char* shown = "";
};
LastError& last_error() {
  thread_local LastError last;
  return last;
}

constexpr std::array<const char*, 10> kStatuses = {
    "ok", "usage", "not_found", "io", "format", "shape", "unsupported", "no_memory", "communication", "internal"};

}  // namespace

swiglu_status fail(swiglu_status status, std::string_view text) noexcept {
  LastError& last = last_error();
  try {
    last.text = text;
    last.shown = last.text.c_str();
  } catch (const std::bad_alloc&) {
    last.shown = "out of memory";
  }
  return status;
}

void missing(const char* what) {
  throw Error(ErrorCode::usage, std::string(what) + ": expected a pointer, found NULL");
}

void check_struct(const char* what, std::int64_t bytes, std::size_t first, std::size_t now, const void* caller) {
  constexpr std::int64_t kMost = 4096;  // a struct of ours never grows beyond
  if (bytes < static_cast<std::int64_t>(first) || bytes > kMost) {
    throw Error(ErrorCode::usage, std::string(what) + ": struct_bytes is " + std::to_string(bytes) +
                                      ", expected its size, " + std::to_string(now));
  }
  if (caller == nullptr) return;
  for (auto at = now; at < static_cast<std::size_t>(bytes); ++at) {
    if (static_cast<const std::byte*>(caller)[at] != std::byte{0}) {
      throw Error(ErrorCode::unsupported, std::string(what) + ": made for a newer libswiglu than " + version() +
                                              ", which lacks what it asks for");
    }
  }
}

void check_value(const char* what, std::int32_t value, std::int32_t last) {
  if (value < 0 || value > last) {
    throw Error(ErrorCode::usage, std::string(what) + ": expected a value from 0 to " + std::to_string(last) +
                                      ", found " + std::to_string(value));
  }
}

}  // namespace swiglu::capi

using namespace swiglu;        // NOLINT(google-build-using-namespace): these are the names of C
using namespace swiglu::capi;  // NOLINT(google-build-using-namespace)

const char* swiglu_version(void) { return version(); }

const char* swiglu_status_name(swiglu_status status) {
  return status < 0 || status >= std::ssize(kStatuses) ? "unknown" : kStatuses[static_cast<std::size_t>(status)];
}

const char* swiglu_last_error(void) { return last_error().shown; }

int32_t swiglu_isa_available(swiglu_isa isa) {
  int32_t found = 0;
  (void)guarded([&] {
    for (const Isa one : available_isas()) found |= static_cast<swiglu_isa>(one) == isa ? 1 : 0;
  });
  return found;
}

const char* swiglu_isa_name(swiglu_isa isa) {
  if (isa < 0 || isa > SWIGLU_ISA_AVX512BF16) return "unknown";
  return name_of(static_cast<Isa>(isa));
}

swiglu_status swiglu_ffn_width(int64_t dim, int64_t multiple_of, double multiplier, int64_t* width) {
  return guarded([&] {
    require(width, "swiglu_ffn_width: width");
    *width = ffn_width(dim, multiple_of, multiplier == 0 ? std::nullopt : std::optional(multiplier));
  });
}
