// Preloaded into one rank by test_ranks.py: a library of another version.
#include "swiglu/swiglu.hpp"

const char* swiglu::version() noexcept { return "9.9.9"; }
