// Memory that cannot be had, as one of the library's errors.
#pragma once

#include <new>
#include <string>

#include "swiglu/swiglu.hpp"

namespace swiglu {

/// work(), but where an allocation fails it throws Error (no_memory). `where` begins its text.
template <class Work>
decltype(auto) or_no_memory(const std::string& where, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::no_memory, where + ": it does not fit in memory");
  }
}

}  // namespace swiglu
