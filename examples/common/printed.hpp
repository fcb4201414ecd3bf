// Whether all that a program printed was written.
#pragma once

#include <cstdio>
#include <iostream>

#include <convoy/core/error.hpp>

namespace examples {

/// Throws Error if the standard output took less than was printed, as on a full disk.
inline void expect_printed() {
  if (!std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    convoy::fail("the standard output cannot be written");
}

}  // namespace examples
