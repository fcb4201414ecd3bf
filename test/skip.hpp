// How a test case says that it cannot run here. The program goes on, and ends with what ctest shows as
// skipped unless something failed: a case that silently does nothing would count as passed.
#pragma once

#include <doctest/doctest.h>

namespace skipping {

/// What the runner takes for "skipped" (SKIP_RETURN_CODE in CMakeLists.txt).
inline constexpr int code = 77;

inline bool skipped = false;

/// What a program ends with whose cases ended with `result`.
inline int result_of(int result) { return result == 0 && skipped ? code : result; }

}  // namespace skipping

/// Leaves the test case, which says why.
#define SKIP(why)              \
  do {                         \
    MESSAGE("skipped: ", why); \
    skipping::skipped = true;  \
    return;                    \
  } while (false)
