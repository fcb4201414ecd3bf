// Lets a test case say that it cannot run here. The program goes on and finally exits with the code that
// ctest shows as skipped, unless something failed; a case that silently did nothing would count as passed.
#pragma once

#include <doctest/doctest.h>

namespace skipping {

/// The exit code that ctest takes for "skipped" (SKIP_RETURN_CODE in CMakeLists.txt).
inline constexpr int code = 77;

inline bool skipped = false;

/// The exit code of a program whose cases ended with `result`.
inline int result_of(int result) { return result == 0 && skipped ? code : result; }

}  // namespace skipping

/// Leaves the test case and reports why.
#define SKIP(why)              \
  do {                         \
    MESSAGE("skipped: ", why); \
    skipping::skipped = true;  \
    return;                    \
  } while (false)
