// Whether this is a sanitizer's build. Sanitizers look at memory and threads, and take ten times as long: there
// tests may leave out values that reach no other code, sizes that cross no other border, and repetitions.
#pragma once

namespace swiglu::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace swiglu::testing
